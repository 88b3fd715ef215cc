// SPDX-License-Identifier: Apache-2.0

package fail

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Level is the effect of a finding on a training.
type Level string

// The levels, the worst first.
const (
	// Broken: pods do not start, or a training ends or hangs.
	Broken Level = "broken"
	// Unknown: so much could not be read that nothing is known.
	Unknown Level = "unknown"
	// Degraded: it works, but not as well as it could.
	Degraded Level = "degraded"
	// Suspicious: it may be why something is slow or hangs, and may be harmless.
	Suspicious Level = "suspicious"
	// Note: nothing is wrong by itself.
	Note Level = "note"
)

// Compare returns a negative number if l is worse than other.
func (l Level) Compare(other Level) int {
	levels := []Level{Broken, Unknown, Degraded, Suspicious, Note}
	return cmp.Compare(slices.Index(levels, l), slices.Index(levels, other))
}

// Finding is a problem, or something worth knowing. Its JSON has these keys wherever it is written.
type Finding struct {
	// Reason is one word of reasons.md, or of findings.md for a finding of the doctor.
	Reason Reason `json:"reason,omitempty"`
	// Level is one of broken, unknown, degraded, suspicious and note. It is left out where all findings have the same.
	Level Level `json:"level,omitempty"`
	// Object is what it is about, as in "pod ml-dev-env-1" or "node 1 (ml-dev-env-1 on gpu-b)".
	Object string `json:"object,omitempty"`
	// Seen is what was seen.
	Seen string `json:"seen"`
	// Wanted is what was expected. It may be empty, or part of `seen`.
	Wanted string `json:"wanted,omitempty"`
	// Next is the command or the change that would show or fix it. It may be empty.
	Next string `json:"next,omitempty"`
	// Since is when it was first seen. It is left out if that is not known.
	Since time.Time `json:"since,omitzero"`
	// Final is true if waiting longer cannot help by itself.
	Final bool `json:"-"`
	// Host is the Kubernetes node whose hardware it is about, "" if it is not about any.
	Host string `json:"-"`
	// Rail is true if pods without RDMA devices and network attachments would not have the problem.
	Rail bool `json:"-"`
}

// Evidence returns what was seen and what was wanted, in one text.
func (f Finding) Evidence() string {
	if f.Wanted == "" {
		return f.Seen
	}
	return f.Seen + ": want " + f.Wanted
}

// Err returns the finding as an error with its reason and advice. doing is what was done to the
// object when it was found, as in "waiting for".
func (f Finding) Err(doing string) error {
	return &Error{Reason: f.Reason, Err: &findingError{f, doing}, Next: f.Next}
}

// Message returns the finding as a message of several lines: what was seen, and what to do next.
func (f Finding) Message() string {
	message := (&findingError{Finding: f}).Error()
	if f.Next != "" {
		message += "\nnext: " + f.Next
	}
	return message
}

// FindingOf returns the finding that err was made of, with err's reason and advice. The text of any other error is what was seen.
func FindingOf(err error) Finding {
	f := Finding{Seen: err.Error()}
	var made *findingError
	if errors.As(err, &made) && made.Error() == f.Seen {
		f = made.Finding
	}
	f.Reason, f.Next = ReasonOf(err), NextOf(err)
	return f
}

type findingError struct {
	Finding
	doing string
}

// Error implements error.
func (e *findingError) Error() string {
	return strings.TrimSpace(e.doing+" "+e.Object) + ": " + e.Evidence()
}

// Print writes the finding as text: its reason and object, what was seen, and what to do
// next. remarks follow the level.
func (f Finding) Print(w io.Writer, remarks ...string) {
	fmt.Fprint(w, f.Reason)
	if f.Object != "" {
		fmt.Fprintf(w, ": %s", f.Object)
	}
	if f.Level != "" {
		fmt.Fprintf(w, " (%s)", strings.Join(append([]string{string(f.Level)}, remarks...), ": "))
	}
	fmt.Fprintf(w, "\n  seen: %s\n", indent(f.Evidence()))
	if f.Next != "" {
		fmt.Fprintf(w, "  next: %s\n", indent(f.Next))
	}
}

func indent(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n        ")
}
