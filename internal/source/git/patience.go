package git

import (
	"context"
	"fmt"
	"io"
	"time"
)

// maxSilence is how long a server may say nothing. git servers say something
// every 5 s while they work.
const maxSilence = 2 * time.Minute

// patience ends a context when nothing was read for too long.
type patience struct {
	silence time.Duration
	timer   *time.Timer
	cancel  context.CancelCauseFunc
}

func newPatience(ctx context.Context, silence time.Duration) (context.Context, *patience) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &patience{silence: silence, cancel: cancel}
	p.timer = time.AfterFunc(silence, func() {
		cancel(fmt.Errorf("the server said nothing for %s", silence))
	})
	return ctx, p
}

// stop ends the context.
func (p *patience) stop() {
	p.timer.Stop()
	p.cancel(context.Canceled)
}

// reader renews the patience with all that is read.
func (p *patience) reader(r io.Reader) io.Reader { return &patientReader{from: r, patience: p} }

type patientReader struct {
	from     io.Reader
	patience *patience
}

func (r *patientReader) Read(b []byte) (int, error) {
	r.patience.timer.Reset(r.patience.silence)
	return r.from.Read(b)
}
