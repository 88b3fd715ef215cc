package podagent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// pod returns a running pod with containers sidecar and trainer, as changed by change.
func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": "h-kim"}},
		Spec: corev1.PodSpec{NodeName: "wrk-97", Containers: []corev1.Container{{Name: "sidecar"}, {
			Name: "trainer", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.128.0.7"},
	}
	if change != nil {
		change(p)
	}
	return p
}

func TestFind(t *testing.T) {
	client := fake.NewClientset(
		pod("h-kim-10", nil), pod("h-kim-2", func(p *corev1.Pod) { p.Annotations = map[string]string{defaultContainer: "trainer"} }),
		pod("ended", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("alone", func(p *corev1.Pod) { p.Labels["app"] = "alone"; p.Spec.Containers = p.Spec.Containers[:1] }),
		pod("crashes", func(p *corev1.Pod) {
			p.Labels["app"] = "other"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "trainer", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
		}),
	)
	for _, test := range []struct {
		name string
		s    Selection
		want string
	}{
		{"a selector, by number", Selection{Pods: "app=h-kim", Container: "trainer"}, "h-kim-2/trainer/4 h-kim-10/trainer/4"},
		{"the pod's default container", Selection{Pods: "app=h-kim"}, "h-kim-2/trainer/4 h-kim-10/sidecar/0"},
		{"names, in their order", Selection{Pods: "h-kim-10,h-kim-2", Container: "sidecar"}, "h-kim-10/sidecar/0 h-kim-2/sidecar/0"},
	} {
		found, err := Find(t.Context(), client, "ns", test.s)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		var got []string
		for _, p := range found {
			got = append(got, p.Name+"/"+p.Container+"/"+string(rune('0'+p.GPUs)))
		}
		if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", test.name, diff)
		}
	}
	for _, test := range []struct {
		s    Selection
		want []string
	}{
		{Selection{Pods: "h-kim-2,missing,ended,alone,crashes", Container: "trainer"}, []string{
			"pod missing: not found", "pod ended: it is Succeeded: want Running", "pod alone: it has no container trainer: want one of sidecar",
			"pod crashes: container trainer waits: CrashLoopBackOff",
		}},
		{Selection{Pods: "app=alone"}, []string{"1 pod: want at least two pods"}},
		{Selection{Pods: "app=nobody"}, []string{"0 pods: want at least two pods"}},
	} {
		_, err := Find(t.Context(), client, "ns", test.s)
		if fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("%v: got %v, want InvalidInput", test.s, err)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: got %v; want %q in it", test.s, err, want)
			}
		}
	}
}

func TestSelectionCheck(t *testing.T) {
	for _, test := range []struct {
		pods string
		want []string
	}{
		{"a,b", nil},
		{"app=h-kim,tier in (x, y)", nil},
		{"a", []string{"one pod"}},
		{"", []string{"a name is empty", "one pod"}},
		{"a,,a", []string{"a name is empty", "a is named twice"}},
		{"app=h kim", []string{"or a label selector"}},
	} {
		err := Selection{Pods: test.pods}.Check()
		if (err == nil) != (test.want == nil) {
			t.Errorf("%q: got %v", test.pods, err)
		}
		for _, want := range test.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: got %v, want %q in it", test.pods, err, want)
			}
		}
	}
}

// The fake does not answer access reviews by itself: the reactors stand in for RBAC.
func TestAllowed(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action kubetesting.Action) (bool, runtime.Object, error) {
		review, ok := action.(kubetesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		if !ok {
			t.Fatalf("got %v", action)
		}
		a := review.Spec.ResourceAttributes
		review.Status.Allowed = a.Namespace == "ns" && a.Resource == "pods" && (a.Verb == "get" || a.Subresource == "exec")
		return true, review, nil
	})
	client.PrependReactor("create", "selfsubjectreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: "h-kim"}}}, nil
	})
	err := Allowed(t.Context(), client, "ns", Selection{Pods: "app=x"})
	if fail.ReasonOf(err) != fail.PermissionDenied || !strings.Contains(err.Error(), "h-kim may not list pods, create pods/portforward in namespace ns") {
		t.Errorf("got %v, want PermissionDenied with both rights", err)
	}
	next := fail.NextOf(err)
	for _, want := range []string{"--verb=list,watch --resource=pods\n", "--verb=create --resource=pods/portforward\n", "--user=h-kim"} {
		if !strings.Contains(next, want) {
			t.Errorf("next: %s\nwant %q in it", next, want)
		}
	}
	if err := Allowed(t.Context(), client, "ns", Selection{Pods: "a,b"}); strings.Contains(err.Error(), "get pods") {
		t.Errorf("got %v, want getting pods to be allowed", err)
	}
}
