package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Pauses before a log that broke is opened again.
const (
	firstPause = time.Second
	lastPause  = 15 * time.Second
)

// opener opens a container's log, every line with its time in front, from the second
// in which since lies on; from the first line where since is zero. It ends when the container does.
type opener func(ctx context.Context, since time.Time) (io.ReadCloser, error)

func logsOf(client kubernetes.Interface, namespace, pod, container string) opener {
	return func(ctx context.Context, since time.Time) (io.ReadCloser, error) {
		options := &corev1.PodLogOptions{Container: container, Follow: true, Timestamps: true}
		if !since.IsZero() {
			options.SinceTime = &metav1.Time{Time: since}
		}
		log, err := client.CoreV1().Pods(namespace).GetLogs(pod, options).Stream(ctx)
		if err != nil {
			return nil, fmt.Errorf("reading the log of pod %s/%s: %w", namespace, pod, err)
		}
		return log, nil
	}
}

// stream is one container's log.
type stream struct {
	open opener
	// pause is before the log is opened a second time; it doubles while nothing comes.
	pause time.Duration
	// ended is closed when the container has ended; done when all of the log is told.
	ended, done chan struct{}
	end         func()

	// last is the time of the last line that was told, and same how many lines of that very time were.
	// The API server takes whole seconds, so after a break lines come again.
	last time.Time
	same int
}

func newStream(open opener) *stream {
	s := &stream{open: open, pause: firstPause, ended: make(chan struct{}), done: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.ended) })
	return s
}

// follow tells every line once. It returns nil when the log is whole, or when there is nothing more
// to read because the pod is gone.
func (s *stream) follow(ctx context.Context, tell func(time.Time, string)) error {
	pause := s.pause
	for {
		over := closed(s.ended)
		before := s.last
		err := s.read(ctx, over, tell)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && over, apierrors.IsNotFound(err), over && apierrors.IsBadRequest(err):
			return nil
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return kube.Problem(err)
		}
		if s.last.After(before) {
			pause = s.pause
		}
		wake := s.ended
		if over {
			wake = nil
		}
		select {
		case <-wake:
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// read tells the lines of one connection that were not told before. A line that breaks
// off is told only where no more can come.
func (s *stream) read(ctx context.Context, over bool, tell func(time.Time, string)) error {
	log, err := s.open(ctx, s.last)
	if err != nil {
		return err
	}
	defer log.Close()
	again := s.same // lines of the time last that come again
	from := s.last
	for lines := bufio.NewReader(log); ; {
		line, err := lines.ReadString('\n')
		whole := err == nil || errors.Is(err, io.EOF) && over && line != ""
		if whole {
			at, text := cut(strings.TrimSuffix(line, "\n"))
			switch {
			case at.Before(from):
			case at.Equal(from) && again > 0:
				again--
			default:
				s.advance(at)
				tell(at, text)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (s *stream) advance(at time.Time) {
	switch {
	case at.After(s.last):
		s.last, s.same = at, 1
	default:
		s.same++
	}
}

// cut parts the time from a line. What has none is as late as can be: it is not known to be told.
func cut(line string) (time.Time, string) {
	stamp, text, _ := strings.Cut(line, " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		return time.Now(), line
	}
	return at, strings.TrimSuffix(text, "\r")
}
