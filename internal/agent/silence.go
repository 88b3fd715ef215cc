// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"io"
	"time"
)

// WithSilence returns a context that ends, with a cause, when nothing was written to heard for the limit.
func WithSilence(ctx context.Context, limit time.Duration) (_ context.Context, heard io.Writer, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(fmt.Errorf("the server sent nothing for %s", limit)) })
	return ctx, restart{timer, limit}, func() {
		timer.Stop()
		cancel(nil)
	}
}

type restart struct {
	timer *time.Timer
	limit time.Duration
}

func (r restart) Write(p []byte) (int, error) {
	r.timer.Reset(r.limit)
	return len(p), nil
}
