// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"slices"
	"strings"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

func steps(secret string) *corev1.ServiceAccount {
	return accountWith(ServiceAccount, secret)
}

func accountWith(name, secret string) *corev1.ServiceAccount {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if secret != "" {
		account.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret}}
	}
	return account
}

// TestStartWaitsForPullSecrets: a run that starts before the account of its steps has its pull secrets fails with
// ImageUnavailable.
func TestStartWaitsForPullSecrets(t *testing.T) {
	clients := fakes()
	kubes := kubefake.NewClientset(steps(""), accountWith("default", "default-dockercfg-1"))
	asked, early := 0, true
	kubes.PrependReactor("get", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() == ServiceAccount {
			asked++
		}
		if asked < 3 {
			return false, nil, nil
		}
		early = false
		return true, steps(ServiceAccount + "-dockercfg-1"), nil
	})
	clients.Kube = kubes
	clients.Tekton.(*fake.Clientset).PrependReactor("create", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
		if early {
			t.Error("the run was created before its account had its pull secrets")
		}
		return false, nil, nil
	})
	var said []string
	request := Request{Pipeline: pipeline(), Name: "mine", Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"}},
		Say: func(line string) { said = append(said, line) }}
	if _, err := Start(t.Context(), clients, request); err != nil ||
		!slices.Equal(said, []string{"Waiting until service account mlenv-pipeline has its pull secrets."}) {
		t.Errorf("got %v, and said %q", err, said)
	}
}

// TestFollowExplainsPulls has the words of Tekton 1.9 and 1.15 while a pod waits for its image, and after Tekton has deleted it.
func TestFollowExplainsPulls(t *testing.T) {
	const image = "registry.example.com/steps@sha256:1"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-1"}}
	pod.Spec.ServiceAccountName = ServiceAccount
	pod.Spec.Containers = []corev1.Container{{Name: "step-s", Image: image}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "step-s", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: "ErrImagePull", Message: "unexpected status from HEAD request: 401 Unauthorized",
		}}}}
	waiting := taskRun("preflight", func(r *v1.TaskRun) {
		r.Status.PodName = pod.Name
		r.Status.Steps = []v1.StepState{
			{Name: "s", Container: "step-s", ContainerState: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}
		r.Status.TaskSpec = &v1.TaskSpec{Steps: []v1.Step{{Image: image}}}
		r.Status.SetCondition(condition(corev1.ConditionUnknown, "PullImageFailed",
			`build step "step-s" is pending with reason "401 Unauthorized"`))
	})
	failed := ended(waiting.DeepCopy(), corev1.ConditionFalse, "TaskRunImagePullFailed",
		`the step "s" in TaskRun "mine-preflight" failed to pull the image "". The pod errored with the message: "Back-off pulling image."`)
	other := taskRun("build-image", ran("pod-2", nil))
	over := followed(func(r *v1.PipelineRun) {
		r.Status.SetCondition(condition(corev1.ConditionFalse, "Failed", "Tasks Completed: 1"))
	})
	for _, test := range []struct {
		name  string
		seen  []*v1.TaskRun
		early bool
	}{
		{"nothing of the run has started", []*v1.TaskRun{waiting}, true},
		{"another step runs", []*v1.TaskRun{other, waiting}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			kubes := kubefake.NewClientset(pod, steps(ServiceAccount+"-dockercfg-1"))
			clients := &kube.Clients{Kube: kubes, Tekton: fake.NewSimpleClientset(over, failed), Namespace: "ns"}
			var events []Event
			ctx, stop := context.WithCancel(t.Context())
			f := &follower{ctx: ctx, clients: clients, of: over, quiet: true, tasks: map[string]*task{}, unpulled: map[string]string{},
				observe: func(e Event) {
					if e.Kind == TaskWaiting {
						events = append(events, e)
					}
				}}
			f.update(test.seen)
			f.update(test.seen) // the same again is no news
			stop()
			if len(events) != 1 || events[0].Early != test.early ||
				!strings.Contains(events[0].Text, "before service account mlenv-pipeline got its pull secrets") ||
				events[0].Next != "mlenv run --like mine -n ns" {
				t.Fatalf("got %+v", events)
			}
			f.ctx, f.of = t.Context(), over
			if err := kubes.CoreV1().Pods("ns").Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			o, err := f.outcome(t.Context(), over)
			if err != nil || o.Reason != "ImageUnavailable" || !strings.Contains(o.Message, image) ||
				!strings.Contains(o.Message, "\nnext: mlenv run --like mine") {
				t.Errorf("got %+v, %v", o, err)
			}
			// Another client, which has not followed the run, knows what Tekton says.
			if o, err = OutcomeOf(t.Context(), clients, over); err != nil || strings.Contains(o.Message, `""`) ||
				!strings.Contains(o.Message, image) {
				t.Errorf("got %+v, %v; want the image in the message", o, err)
			}
		})
	}
}

// TestRestart: the fake deletes at once, and no TaskRun is left to wait for.
func TestRestart(t *testing.T) {
	clients := fakes()
	request := Request{Pipeline: pipeline(), Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"}}}
	named := request
	named.Name = "mine"
	first, err := Start(t.Context(), clients, named)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Restart(t.Context(), clients, first, request)
	if err != nil || again.Name != "mine" {
		t.Fatalf("got %+v, %v; want a run of the same name", again, err)
	}
	deleted := slices.ContainsFunc(clients.Tekton.(*fake.Clientset).Actions(), func(a clienttesting.Action) bool {
		d, ok := a.(clienttesting.DeleteActionImpl)
		return ok && *d.DeleteOptions.PropagationPolicy == metav1.DeletePropagationForeground
	})
	if !deleted {
		t.Error("the first run was not deleted with its TaskRuns")
	}
}
