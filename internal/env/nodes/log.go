// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// FollowLog copies a job's log to w until it is complete, through broken connections and without repetition. After each
// break it calls lost, whose error ends it.
func FollowLog(ctx context.Context, client *agent.Client, id, name string, w io.Writer, lost func(error) error) error {
	counted := &counter{w: w}
	for {
		err := copyLog(ctx, client, id, name, counted)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if counted.err != nil {
			return counted.err
		}
		if err := lost(err); err != nil {
			return err
		}
	}
}

// RetryUntilDone is for FollowLog's lost, and for watching a job: it waits a little after a broken connection. It gives
// up if the job is unknown, and when ctx is done.
func RetryUntilDone(ctx context.Context) func(error) error {
	return func(err error) error {
		if agent.IsNotFound(err) {
			return err
		}
		select {
		case <-time.After(500 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func copyLog(ctx context.Context, client *agent.Client, id, name string, w *counter) error {
	log, err := client.Log(ctx, id, name, w.n, true)
	if err != nil {
		return err
	}
	defer log.Close()
	// A step follows thousands of ranks, most of which print little: only a log that fills its buffer gets a larger one.
	const small, most = 4 << 10, 256 << 10
	for buffer := make([]byte, small); ; {
		n, err := log.Read(buffer)
		if _, failed := w.Write(buffer[:n]); failed != nil {
			return failed
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if n == len(buffer) && n < most {
			buffer = make([]byte, 2*n)
		}
	}
}

// counter counts the copied bytes, and keeps the writer's errors apart from the reader's.
type counter struct {
	w   io.Writer
	n   int64
	err error
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	c.err = err
	return n, err
}
