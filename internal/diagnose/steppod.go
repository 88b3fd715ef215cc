// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// StepPod is the pod of a run's step.
type StepPod struct {
	Namespace, Name string
	// Run is the name of the PipelineRun.
	Run string
	// Image and Account are the step's image and service account.
	Image, Account string
}

// WithoutImage explains why the pod cannot pull its image; the finding has no reason if it can. early reports whether the pod
// was created before its account had its pull secrets, so that a new pod can pull. Tekton deletes the pod when it gives up. Its
// events remain, and early then reports whether the registry refused the pull and the account has pull secrets by now.
func (p StepPod) WithoutImage(ctx context.Context, client kubernetes.Interface, now time.Time) (f fail.Finding, early bool, err error) {
	if p.Name == "" {
		return f, false, nil // it was never created
	}
	pod, err := client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		pod = p.deleted(now)
	case err != nil:
		return f, false, kube.Problem(fmt.Errorf("getting pod %s/%s: %w", p.Namespace, p.Name, err))
	}
	s := Snapshot{Pods: []corev1.Pod{*pod}}
	if err := readAll(ctx, "events", client.CoreV1().Events(p.Namespace), "involvedObject.name="+p.Name, &s.Events); err != nil {
		return f, false, err
	}
	if err := s.readAccount(ctx, client); err != nil {
		return f, false, err
	}
	containers := containersOf(pod)
	i := slices.IndexFunc(containers, container.lacksImage)
	if i < 0 {
		return f, false, nil
	}
	e, c := &explainer{Snapshot: s, now: now}, containers[i]
	f = e.explainImage(pod, c)
	early = refused(withoutImage(e.pullError(pod, c, c.State.Waiting.Message), c)) && (s.awaitsSecrets || len(WithoutPullSecrets(s)) > 0)
	if early {
		f.Next = fmt.Sprintf("mlenv run --like %s -n %s", p.Run, p.Namespace)
	}
	return f, early, nil
}

// deleted returns what is known of the pod after its deletion.
func (p StepPod) deleted(now time.Time) *corev1.Pod {
	waiting := &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, CreationTimestamp: metav1.NewTime(now)},
		Spec:       corev1.PodSpec{ServiceAccountName: p.Account, Containers: []corev1.Container{{Name: "step", Image: p.Image}}},
		Status: corev1.PodStatus{
			ContainerStatuses: []corev1.ContainerStatus{{Name: "step", Image: p.Image, State: corev1.ContainerState{Waiting: waiting}}}},
	}
}
