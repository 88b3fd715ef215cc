package rank

import (
	"bytes"
	"io"
	"sync/atomic"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pyerror"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

var tracebackStart = []byte("Traceback (most recent call last)")

// output copies a rank's output into its log and records when an error begins.
type output struct {
	log  io.Writer
	seen atomic.Int64
}

// copy returns when the last writer has closed the pipe.
func (o *output) copy(from io.Reader) error {
	buffer := make([]byte, 256<<10)
	var overlap []byte
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := o.log.Write(buffer[:n]); err != nil {
				return err
			}
			if bytes.Contains(buffer[:n], tracebackStart) || bytes.Contains(append(overlap, buffer[:min(n, len(tracebackStart))]...), tracebackStart) {
				o.seen.Store(time.Now().UnixNano())
			}
			overlap = append(overlap[:0], buffer[max(0, n-len(tracebackStart)):n]...)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// tracebackSeen is when the last traceback began, zero for none.
func (o *output) tracebackSeen() time.Time {
	if at := o.seen.Load(); at != 0 {
		return time.Unix(0, at).UTC()
	}
	return time.Time{}
}

// LastWords returns the last lines of a rank's log and the last Python error in them. seen is when that error began; zero means
// the time of the last write.
func LastWords(path string, seen time.Time) (tail []string, python *agent.PythonError) {
	const most = 256 << 10
	content, info, err := claimfile.Tail(path, most)
	if err != nil {
		return nil, nil
	}
	if seen.IsZero() {
		seen = info.ModTime().UTC()
	}
	lines := pyerror.Lines(content)
	python = pyerror.Last(lines)
	if python != nil {
		python.Seen = seen
	}
	const last = 20
	return lines[max(0, len(lines)-last):], python
}
