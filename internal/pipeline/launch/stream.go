// SPDX-License-Identifier: Apache-2.0

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

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

const (
	// firstPause is the first pause before a log that broke is opened again. Later pauses are longer.
	firstPause = time.Second
	// lastPause is the longest pause before a log that broke is opened again.
	lastPause = 15 * time.Second
)

// opener opens a container's log, each line with its time in front, from the second of since on; a zero since is the
// first line.
type opener func(ctx context.Context, since time.Time) (io.ReadCloser, error)

func podLogOpener(client kubernetes.Interface, namespace, pod string, options corev1.PodLogOptions) opener {
	return func(ctx context.Context, since time.Time) (io.ReadCloser, error) {
		options := options.DeepCopy()
		options.Timestamps = true
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

// ErrNoLog is the error of Logs for a task whose pod was deleted or has not run yet.
var ErrNoLog = errors.New("its pod is gone or has not run")

// ReadTaskLog emits the lines that the last attempt of a task has printed so far; with a tail above 0 only that many. Errors:
// ErrNoLog, PermissionDenied.
func ReadTaskLog(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun, task run.TaskRun, tail int64, emit Observer) error {
	if task.Pod == "" {
		return ErrNoLog
	}
	pod, err := clients.Kube.CoreV1().Pods(of.Namespace).Get(ctx, task.Pod, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ErrNoLog
	} else if err != nil {
		return kube.Problem(err)
	}
	for _, container := range pod.Spec.Containers {
		if !strings.HasPrefix(container.Name, "step-") { // Tekton's prefix of steps
			continue
		}
		options := corev1.PodLogOptions{Container: container.Name}
		if tail > 0 {
			options.TailLines = &tail
		}
		s := newStream(podLogOpener(clients.Kube, of.Namespace, pod.Name, options))
		err := s.read(ctx, true, func(at time.Time, line string) {
			emit(Event{Kind: Line, Time: at, Task: task.Task, Text: line})
		})
		switch {
		case apierrors.IsBadRequest(err), apierrors.IsNotFound(err), errors.Is(err, errContainerGone):
			return ErrNoLog
		case err != nil:
			return kube.Problem(err)
		}
	}
	return nil
}

type stream struct {
	open opener
	// task is whose log it is.
	task string
	// ended is closed when the container has ended; done after the last line.
	ended, done chan struct{}
	end         func()

	// last is the time of the last line, and same the number of lines with that time: after a break the API server
	// repeats the lines of a whole second.
	last time.Time
	same int
}

func newStream(open opener) *stream {
	s := &stream{open: open, ended: make(chan struct{}), done: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.ended) })
	return s
}

// refusedTime is how long a log of a container that has ended may be refused.
const refusedTime = 30 * time.Second

// follow passes each line to emit once. It returns nil after the last line, or if the pod was deleted.
func (s *stream) follow(ctx context.Context, emit func(time.Time, string)) error {
	pause := firstPause // before the log is opened again
	var refused time.Time
	for {
		over := false
		select {
		case <-s.ended:
			over = true
		default:
		}
		before := s.last
		err := s.read(ctx, over, emit)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && over, apierrors.IsNotFound(err), over && apierrors.IsBadRequest(err):
			return nil
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return kube.Problem(err)
		}
		if s.last.After(before) {
			pause = firstPause
		}
		// The API server answers, but the node's kubelet gives it no log, which may last.
		noLog := apierrors.IsInternalError(err) || errors.Is(err, errContainerGone)
		switch {
		case !over || !noLog || s.last.After(before):
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		case time.Since(refused) >= refusedTime:
			return kube.Problem(err)
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

// goneBody begins the answer 200 of a kubelet whose container runtime has no such container any more (kubernetes/kubernetes#142258, up to
// 1.36 at least). A line that a container printed begins with its time.
const goneBody = "unable to retrieve container logs for "

var errContainerGone = errors.New("the Kubernetes node has deleted its container")

// read passes the new lines of one connection to emit. A line without its end counts only if over is true.
func (s *stream) read(ctx context.Context, over bool, emit func(time.Time, string)) error {
	log, err := s.open(ctx, s.last)
	if err != nil {
		return err
	}
	defer log.Close()
	again := s.same // repeated lines of the time last
	from := s.last
	for lines := bufio.NewReader(log); ; {
		line, err := lines.ReadString('\n')
		if err == nil || errors.Is(err, io.EOF) && over && line != "" {
			at, text := cut(strings.TrimSuffix(line, "\n"))
			if strings.HasPrefix(line, goneBody) {
				return errContainerGone
			}
			switch {
			case at.Before(from):
			case at.Equal(from) && again > 0:
				again--
			default:
				if at.After(s.last) {
					s.last, s.same = at, 0
				}
				s.same++
				emit(at, text)
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

// cut splits a line into its time and its text. A line without a time is new.
func cut(line string) (time.Time, string) {
	stamp, text, _ := strings.Cut(line, " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		return time.Now(), line
	}
	return at, strings.TrimSuffix(text, "\r")
}
