package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// silence is how long a server may say nothing: one that is gone without a word would have all
// files after it wait until the pod's end.
const silence = 2 * time.Minute

// idleTransport ends requests to a server that says nothing for a while, its answer's body included.
type idleTransport struct {
	next     http.RoundTripper
	patience time.Duration
}

// RoundTrip implements http.RoundTripper.
func (i idleTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(i.patience, func() { cancel(fmt.Errorf("the server said nothing for %s", i.patience)) })
	response, err := i.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		timer.Stop()
		err = because(ctx, err)
		cancel(nil)
		return nil, err
	}
	response.Body = &idleBody{ReadCloser: response.Body, ctx: ctx, cancel: cancel, timer: timer, patience: i.patience}
	return response, nil
}

// idleBody is a body of which something is to come all the time.
type idleBody struct {
	io.ReadCloser
	ctx      context.Context //nolint:containedctx // it says why reading ended
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	patience time.Duration
}

func (a *idleBody) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if n > 0 {
		a.timer.Reset(a.patience)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = because(a.ctx, err)
	}
	return n, err
}

func (a *idleBody) Close() error {
	a.timer.Stop()
	err := a.ReadCloser.Close()
	a.cancel(nil)
	return err
}

// because is the cause where ctx has ended, which err alone does not tell.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
