package runs

import (
	"bytes"
	"errors"
	"io"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
)

// plainLog writes a log to a terminal without the control characters that a training may have printed. It writes whole
// lines, and each state of a line that is rewritten, as progress bars are.
type plainLog struct {
	to    io.Writer
	split lines.Splitter
	// failed is the error of writing.
	failed error
}

func newPlainLog(to io.Writer) *plainLog {
	p := &plainLog{to: to}
	p.split = lines.Splitter{Ends: "\r\n", Each: func(line []byte) {
		text := bytes.TrimRight(line, "\r\n")
		_, err := p.to.Write(append([]byte(humanize.Plain(string(text))), line[len(text):]...))
		p.failed = errors.Join(p.failed, err)
	}}
	return p
}

// Write implements io.Writer.
func (p *plainLog) Write(b []byte) (int, error) {
	_, _ = p.split.Write(b) // it does not fail
	return len(b), p.failed
}
