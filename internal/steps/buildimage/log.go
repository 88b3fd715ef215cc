// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
)

// keptLines is how many lines of a failed build's log are searched for the cause.
const keptLines = 400

// logFollower copies a build's log across broken connections: each attempt reads the log from its start and skips what was
// copied.
type logFollower struct {
	client    rest.Interface
	namespace string
	build     string
	out       io.Writer
	// ended is set when the build has ended, so that the log no longer grows.
	ended atomic.Bool

	copied int64
	mu     sync.Mutex
	lines  []string
	split  lines.Splitter
}

// follow returns when ctx ends, or when the build has ended and its log is complete. The server waits half a minute for a
// build that has not started, and then answers with an error. A build that never ran has no log.
func (l *logFollower) follow(ctx context.Context) {
	const firstPause, lastPause = 500 * time.Millisecond, 5 * time.Second // the first and the longest pause before the log is asked for again
	pause := firstPause
	for ctx.Err() == nil {
		over := l.ended.Load()
		before := l.copied
		err := l.copyOnce(ctx)
		if over && (err == nil || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err)) {
			return
		}
		if l.copied > before {
			pause = firstPause
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		case <-ctx.Done():
		}
	}
}

func (l *logFollower) copyOnce(ctx context.Context) error {
	stream, err := l.client.Get().Namespace(l.namespace).Resource("builds").Name(l.build).SubResource("log").
		Param("follow", "true").Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	if _, err := io.CopyN(io.Discard, stream, l.copied); err != nil {
		return err
	}
	_, err = io.Copy(l, stream)
	return err
}

// Write implements io.Writer.
func (l *logFollower) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.copied += int64(len(p))
	l.split.Each = func(line []byte) {
		text := humanize.PlainLine(string(line))
		fmt.Fprintln(l.out, text)
		l.lines = append(l.lines, text)
	}
	_, _ = l.split.Write(p) // it does not fail
	if over := len(l.lines) - keptLines; over > 0 {
		l.lines = slices.Clone(l.lines[over:])
	}
	return len(p), nil
}

// copiedSoFar returns how much of the log has been copied, and its last line.
func (l *logFollower) copiedSoFar() (copied int64, last string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) > 0 {
		last = l.lines[len(l.lines)-1]
	}
	return l.copied, last
}

// silence notices that a build prints nothing, as while it pulls a large base.
type silence struct {
	copied       int64
	since, shown time.Time
}

// quietTime is how long a build may print nothing before a line reports that it is still running, and again after each such time.
const quietTime = 2 * time.Minute

// dueReport returns how long the log has not grown, if it is time to report it, and 0 otherwise.
func (s *silence) dueReport(now time.Time, copied int64) time.Duration {
	if copied != s.copied || s.since.IsZero() {
		*s = silence{copied, now, now}
	}
	if now.Sub(s.shown) < quietTime {
		return 0
	}
	s.shown = now
	return now.Sub(s.since)
}

func (l *logFollower) lastLines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.split.Flush()
	return slices.Clone(l.lines)
}

func records(log *slog.Logger) io.Writer {
	return &lines.Splitter{Each: func(line []byte) {
		log.Info(strings.TrimSuffix(string(line), "\n"), "event", "output", slog.String("source", "build"))
	}}
}
