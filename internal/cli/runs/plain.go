package runs

import (
	"bytes"
	"io"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// plainLog writes a log to a terminal without the control characters that a training may have printed. It writes whole
// lines, and each state of a line that is rewritten, as progress bars are.
type plainLog struct {
	to      io.Writer
	partial []byte
}

// maxPartial bounds the memory for a line that does not end.
const maxPartial = 64 << 10

// Write implements io.Writer.
func (p *plainLog) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		end := bytes.IndexAny(rest, "\r\n") + 1
		if end == 0 {
			if p.partial = append(p.partial, rest...); len(p.partial) >= maxPartial {
				return len(b), p.write(nil)
			}
			break
		}
		p.partial = append(p.partial, rest[:end-1]...)
		if err := p.write(rest[end-1 : end]); err != nil {
			return 0, err
		}
		rest = rest[end:]
	}
	return len(b), nil
}

func (p *plainLog) write(end []byte) error {
	line := append([]byte(humanize.Plain(string(p.partial))), end...)
	p.partial = p.partial[:0]
	_, err := p.to.Write(line)
	return err
}

func (p *plainLog) flush() { _ = p.write(nil) } // the log has ended
