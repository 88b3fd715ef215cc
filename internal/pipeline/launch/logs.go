package launch

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// ErrNoLog is of a task whose pod is gone, or has not run yet.
var ErrNoLog = errors.New("its pod is gone or has not run")

// Logs tells the lines that a task has printed until now, of its last attempt; the last
// so many where tail is more than 0. Errors: ErrNoLog, PermissionDenied.
func Logs(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun, task run.TaskRun, tail int64, tell Observer) error {
	if task.Pod == "" {
		return ErrNoLog
	}
	pod, err := clients.Kube.CoreV1().Pods(of.Namespace).Get(ctx, task.Pod, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ErrNoLog
	} else if err != nil {
		return kube.Problem(err)
	}
	for _, container := range steps(pod) {
		s := newStream(snapshotOf(clients.Kube, of.Namespace, pod.Name, container, tail))
		err := s.read(ctx, true, func(at time.Time, line string) {
			tell(Event{Kind: Line, Time: at, Task: task.Task, Text: line})
		})
		switch {
		case apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
			return ErrNoLog
		case err != nil:
			return kube.Problem(err)
		}
	}
	return nil
}

// steps are the containers of a TaskRun's pod that are its steps.
func steps(pod *corev1.Pod) (names []string) {
	for _, container := range pod.Spec.Containers {
		if strings.HasPrefix(container.Name, stepPrefix) {
			names = append(names, container.Name)
		}
	}
	return names
}

// stepPrefix is before a step's name in its container's, as Tekton has it.
const stepPrefix = "step-"

func snapshotOf(client kubernetes.Interface, namespace, pod, container string, tail int64) opener {
	return func(ctx context.Context, _ time.Time) (io.ReadCloser, error) {
		options := &corev1.PodLogOptions{Container: container, Timestamps: true}
		if tail > 0 {
			options.TailLines = &tail
		}
		return client.CoreV1().Pods(namespace).GetLogs(pod, options).Stream(ctx)
	}
}
