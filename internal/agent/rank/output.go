// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pyerror"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// tracebackStart is the title of a traceback.
var tracebackStart = []byte("Traceback (most recent call last)")

// most is how much of the end of a log is searched for last words, in bytes.
const most = 256 << 10

// output copies a rank's output into its log and records when an error begins.
type output struct {
	log  io.Writer
	seen atomic.Int64

	mu sync.Mutex
	// unwritten is the end of what the log could not take, for example because the disk was full.
	unwritten []byte
}

// write never fails: a rank would hang if nothing read its output.
func (o *output) write(p []byte) {
	n, err := o.log.Write(p)
	if err == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unwritten == nil {
		fmt.Fprintln(os.Stderr, "mlenv-agent rank: the log is incomplete:", err)
	}
	all := slices.Concat(o.unwritten, p[n:])
	o.unwritten = slices.Clone(all[max(0, len(all)-most):])
}

// lastWords returns the last lines of the log at path and the Python error in them. If the log could not take all output, it reads the
// end of the output instead.
func (o *output) lastWords(path string) (tail []string, python *agent.PythonError) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unwritten != nil {
		return words(o.unwritten, o.tracebackSeen())
	}
	return LastWords(path, o.tracebackSeen())
}

// copyUntilClosed returns when the last writer has closed the pipe.
func (o *output) copyUntilClosed(from io.Reader) error {
	buffer := make([]byte, 256<<10)
	var overlap []byte
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			o.write(buffer[:n])
			across := slices.Concat(overlap, buffer[:min(n, len(tracebackStart))])
			if bytes.Contains(buffer[:n], tracebackStart) || bytes.Contains(across, tracebackStart) {
				o.seen.Store(time.Now().UnixNano())
			}
			overlap = slices.Concat(overlap, buffer[max(0, n-len(tracebackStart)):n])
			overlap = overlap[max(0, len(overlap)-len(tracebackStart)+1):]
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// tracebackSeen returns when the last traceback began, zero for none.
func (o *output) tracebackSeen() time.Time {
	if at := o.seen.Load(); at != 0 {
		return time.Unix(0, at).UTC()
	}
	return time.Time{}
}

// LastWords returns the last lines of a rank's log and the last Python error in them. seen is when that error began; zero means
// the time of the last write.
func LastWords(path string, seen time.Time) (tail []string, python *agent.PythonError) {
	content, info, err := claimfile.ReadTail(path, most)
	if err != nil {
		return nil, nil
	}
	if seen.IsZero() {
		seen = info.ModTime().UTC()
	}
	return words(content, seen)
}

func words(content []byte, seen time.Time) (tail []string, python *agent.PythonError) {
	lines := pyerror.SplitLines(content)
	python = pyerror.LastTraceback(lines)
	if python != nil {
		python.Seen = seen
	}
	lines = pyerror.Shorten(lines)
	const last = 20
	return lines[max(0, len(lines)-last):], python
}
