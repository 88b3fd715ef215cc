package buildimage

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// keptLines is how much of a build's log is looked at when it has failed.
const keptLines = 400

// Pauses between tries to read a log.
const (
	firstPause = 500 * time.Millisecond
	lastPause  = 5 * time.Second
)

// logFollower copies a build's log, through broken connections: each try begins
// at the start of the log, and what has been copied is passed over.
type logFollower struct {
	client    rest.Interface
	namespace string
	build     string
	out       io.Writer
	// ended is set when the build has: the log will not grow any more.
	ended atomic.Bool

	copied int64
	mu     sync.Mutex
	lines  []string
	cut    lineCutter
}

// follow ends with ctx, or when the build has ended and its log is complete.
// The server waits half a minute for a build that has not started and then
// answers with an error, and it has no log of a build that never ran.
func (l *logFollower) follow(ctx context.Context) {
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

// Write implements io.Writer: it is what the log is copied into.
func (l *logFollower) Write(p []byte) (int, error) {
	n, err := l.out.Write(p)
	l.copied += int64(n)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut.add(p[:n], func(line string) { l.lines = append(l.lines, strings.TrimRight(line, "\r")) })
	if over := len(l.lines) - keptLines; over > 0 {
		l.lines = append([]string(nil), l.lines[over:]...)
	}
	return n, err
}

// lastLines are the last of what was copied.
func (l *logFollower) lastLines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := append([]string(nil), l.lines...)
	if len(l.cut.part) > 0 {
		lines = append(lines, string(l.cut.part))
	}
	return lines
}

// recordWriter logs every line as a record of its own, for machines.
type recordWriter struct {
	log *slog.Logger
	cut lineCutter
}

func (w *recordWriter) Write(p []byte) (int, error) {
	w.cut.add(p, func(line string) { w.log.Info(line, slog.String("source", "build")) })
	return len(p), nil
}

// lineCutter cuts what is written piece by piece into lines.
type lineCutter struct{ part []byte }

func (c *lineCutter) add(p []byte, each func(line string)) {
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		c.part = append(c.part, line...)
		if whole {
			each(string(c.part))
			c.part = c.part[:0]
		}
		rest = after
	}
}
