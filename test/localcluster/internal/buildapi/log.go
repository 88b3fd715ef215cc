// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"context"
	"fmt"
	"io"
	"log"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	buildclient "github.com/openshift/client-go/build/clientset/versioned/typed/build/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes"
)

// logTimeout is the maximum time that a log waits for its build to start.
const logTimeout = 30 * time.Second

// logREST is builds/log.
type logREST struct {
	builds buildclient.BuildV1Interface
	pods   kubernetes.Interface
}

var _ rest.GetterWithOptions = logREST{}

func (logREST) New() runtime.Object { return &buildv1.BuildLog{} }
func (logREST) Destroy()            {}
func (logREST) NewGetOptions() (runtime.Object, bool, string) {
	return &buildv1.BuildLogOptions{}, false, ""
}
func (logREST) ProducesMIMETypes(string) []string { return []string{"text/plain"} }
func (logREST) ProducesObject(string) any         { return "" }

// Get implements rest.GetterWithOptions.
func (r logREST) Get(ctx context.Context, name string, opts runtime.Object) (runtime.Object, error) {
	options := opts.(*buildv1.BuildLogOptions)
	namespace := genericapirequest.NamespaceValue(ctx)
	build, err := r.builds.Builds(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	switch build.Status.Phase {
	case buildv1.BuildPhaseNew, buildv1.BuildPhasePending:
		if options.NoWait {
			return &stream{}, nil
		}
		if build, err = waitStarted(ctx, r.builds, namespace, name, logTimeout); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("unable to wait for build %s to run: %v", name, err))
		}
		switch build.Status.Phase {
		case buildv1.BuildPhaseError:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("build %s encountered an error: %s", name, noLogs))
		case buildv1.BuildPhaseCancelled:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("build %s was cancelled: %s", name, noLogs))
		}
	case buildv1.BuildPhaseCancelled:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("build %s was cancelled. %s", name, noLogs))
	case buildv1.BuildPhaseError:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("build %s is in an error state. %s", name, noLogs))
	}
	pod, err := r.pods.CoreV1().Pods(namespace).Get(ctx, PodName(name), metav1.GetOptions{})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	reader, writer := io.Pipe()
	go func() {
		err := r.copyAll(ctx, pod, options, writer)
		if err != nil && ctx.Err() == nil {
			log.Printf("streaming the log of build %s/%s: %v", namespace, name, err)
		}
		_ = writer.Close() // never fails
	}()
	return &stream{ReadCloser: reader, follow: options.Follow}, nil
}

// copyAll copies the logs of the pod's containers in the order in which they
// run, up to the first that failed.
func (r logREST) copyAll(ctx context.Context, pod *corev1.Pod, options *buildv1.BuildLogOptions, out io.Writer) error {
	var order []string
	for _, c := range pod.Spec.InitContainers {
		order = append(order, c.Name)
	}
	for _, c := range pod.Spec.Containers {
		order = append(order, c.Name)
	}
	for _, container := range order {
		state, err := r.waitContainer(ctx, pod, container, options.Follow)
		if err != nil {
			return err
		}
		if state == nil {
			// The build has not started: the client does not wait for it, or it will never start.
			return nil
		}
		podOptions := &corev1.PodLogOptions{
			Container: container, Follow: options.Follow && state.Terminated == nil, Timestamps: options.Timestamps,
			SinceSeconds: options.SinceSeconds, SinceTime: options.SinceTime, TailLines: options.TailLines, LimitBytes: options.LimitBytes,
		}
		content, err := r.pods.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, podOptions).Stream(ctx)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, content)
		content.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// waitContainer returns the state of the container once it has started. It returns nil if the container has not
// started, and either the pod has ended or wait is not set.
func (r logREST) waitContainer(ctx context.Context, pod *corev1.Pod, container string, wait bool) (*corev1.ContainerState, error) {
	for {
		latest, err := r.pods.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		state := stateOf(latest, container)
		if state != nil || !wait || ended(latest) {
			return state, nil
		}
		watcher, err := r.pods.CoreV1().Pods(pod.Namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", pod.Name).String(), ResourceVersion: latest.ResourceVersion,
		})
		if err != nil {
			return nil, err
		}
		for event := range watcher.ResultChan() {
			seen, ok := event.Object.(*corev1.Pod)
			if !ok || stateOf(seen, container) != nil || ended(seen) {
				break
			}
		}
		watcher.Stop()
	}
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || pod.DeletionTimestamp != nil
}

func stateOf(pod *corev1.Pod, container string) *corev1.ContainerState {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range statuses {
			if s.Name == container && (s.State.Running != nil || s.State.Terminated != nil) {
				return &s.State
			}
		}
	}
	return nil
}

// stream is a log that is sent to a client. A stream without a reader is an empty answer.
type stream struct {
	io.ReadCloser
	follow bool
}

var _ rest.ResourceStreamer = &stream{}

func (*stream) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. A stream can be read only once.
func (*stream) DeepCopyObject() runtime.Object { panic("a stream cannot be copied") }

// InputStream implements rest.ResourceStreamer.
func (s *stream) InputStream(context.Context, string, string) (io.ReadCloser, bool, string, error) {
	if s.ReadCloser == nil {
		return nil, false, "", nil
	}
	return s.ReadCloser, s.follow, "text/plain", nil
}
