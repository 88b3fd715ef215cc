// SPDX-License-Identifier: Apache-2.0

package pyerror

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// Raised is an uncaught exception as sitecustomize.py of package pylib writes it.
type Raised struct {
	// Time is in seconds since 1970, 0 if it is not known.
	Time float64 `json:"time"`
	// Chain has the exception that ended the process, then the one during whose handling it was raised.
	Chain []Exception `json:"chain"`
	// Printed is what Python prints.
	Printed string `json:"printed"`
}

// Exception is one of a chain, its frames from the outermost on.
type Exception struct {
	Type    string  `json:"type"`
	Message string  `json:"message"`
	Frames  []Frame `json:"frames"`
}

// Frame is a file and a line, in JSON a list of both.
type Frame struct {
	File string
	Line int
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Frame) UnmarshalJSON(content []byte) error {
	return json.Unmarshal(content, &[]any{&f.File, &f.Line})
}

// Error returns the exception as Last does, nil for none.
func (r Raised) Error() *agent.PythonError {
	if len(r.Chain) == 0 {
		return nil
	}
	seen := time.Unix(0, int64(r.Time*float64(time.Second))).UTC()
	// Another process has raised it first, and its traceback is in the message.
	if slices.ContainsFunc(r.Chain, func(e Exception) bool { return strings.Contains(e.Message, title) }) {
		if p := LastTraceback(SplitLines([]byte(r.Printed))); p != nil {
			p.Seen = seen
			return p
		}
	}
	p := r.Chain[0].error()
	p.Seen, p.Traceback = seen, bounded(shorten(SplitLines([]byte(r.Printed))))
	if last := len(r.Chain) - 1; last > 0 {
		first := r.Chain[last].error()
		p.First = strings.TrimSuffix(first.Type+": "+first.Message, ": ")
	}
	return p
}

func (e Exception) error() *agent.PythonError {
	p := &agent.PythonError{Type: e.Type}
	if lines := SplitLines([]byte(strings.TrimSpace(e.Message))); len(lines) > 0 {
		p.Message = lines[0]
		if words := NCCLWords(lines[1:]); words != "" {
			p.Message += "; " + words
		}
		p.Message += continued(p, lines[1:])
	}
	p.File, p.Line = innermost(e.Frames)
	return p
}

// innermost returns the innermost frame outside of the Python installation, else the innermost frame.
func innermost(frames []Frame) (file string, line int) {
	for _, frame := range slices.Backward(frames) {
		if !Installed(frame.File) {
			return frame.File, frame.Line
		}
	}
	if last := len(frames) - 1; last >= 0 {
		return frames[last].File, frames[last].Line
	}
	return "", 0
}
