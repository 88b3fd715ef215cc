// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestLongPullIsReported: every half minute the log reports that a pull continues, and nothing in between.
func TestLongPullIsReported(t *testing.T) {
	began := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	const image = "registry.test/train:1"
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-of-" + types.UID(name), Labels: objects.Labels("env"),
			CreationTimestamp: metav1.NewTime(began)}
	}
	set := &appsv1.StatefulSet{ObjectMeta: meta("env"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1))}}
	pod := &corev1.Pod{
		ObjectMeta: meta("env-0"),
		Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "train", Image: image}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "train", Image: image, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
		}}},
	}
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pulling"}, Reason: "Pulling", Message: `Pulling image "` + image + `"`, Count: 1,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: pod.Name, UID: pod.UID},
		FirstTimestamp: metav1.NewTime(began), LastTimestamp: metav1.NewTime(began),
	}
	p := newPlace(t, set, pod, event)
	now := began
	report := &reporter{p: p.provisioner(func(s *provisioner) { s.now = func() time.Time { return now } }), set: set}
	for range 80 {
		if err := report.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	lines := strings.Split(p.messages(), "\n")
	if len(lines) != 3 {
		t.Errorf("%d lines in 80 s, want one at the start and two later:\n%s", len(lines), p.messages())
	}
	for i, line := range lines {
		if !strings.Contains(line, "env-0: on node-1, pulling image "+image) || i > 0 && line == lines[i-1] {
			t.Errorf("line %q; want the pull and how long it has taken", line)
		}
	}
}

// TestManyPodsShareALine: hundreds of pods do not print hundreds of lines each time that they get further.
func TestManyPodsShareALine(t *testing.T) {
	began := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	const nodes = 512
	known := []runtime.Object{&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env", UID: "uid-of-env",
		Labels: objects.Labels("env")}, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(nodes))}}}
	for i := range 300 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("env-%d", i), UID: types.UID(fmt.Sprint("uid-", i)),
				Labels: objects.Labels("env"), CreationTimestamp: metav1.NewTime(began)},
			Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", i)},
		}
		if i < 100 {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		known = append(known, pod)
	}
	p := newPlace(t, known...)
	report := &reporter{p: p.provisioner(func(s *provisioner) { s.now = func() time.Time { return began } }),
		set: known[0].(*appsv1.StatefulSet)}
	if err := report.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"  env-0, env-1, env-2 and 97 more: ready", "  env-100, env-101, env-102 and 197 more: starting",
		"  env-300, env-301, env-302 and 209 more: not created yet",
	}
	if diff := cmp.Diff(want, strings.Split(p.messages(), "\n")); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// A look that fails ends nothing: the nodes may come up without one. A missing right stays missing.
func TestLookThatFails(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env"}}
	for _, tc := range []struct {
		resource string
		failed   error
		want     fail.Reason
	}{
		{"resourcequotas", apierrors.NewInternalError(errors.New("etcd is away")), ""},
		{"pods", apierrors.NewInternalError(errors.New("etcd is away")), ""},
		{"pods", apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no")), fail.PermissionDenied},
	} {
		p := newPlace(t, set)
		p.kube.PrependReactor("list", tc.resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tc.failed })
		err := (&reporter{p: p.provisioner(), set: set}).look(t.Context())
		if got := fail.ReasonOf(err); err != nil && got != tc.want || err == nil && tc.want != "" {
			t.Errorf("%s: got %v, want %q", tc.resource, err, tc.want)
		}
	}
}

// TestPauseAfterALook: a look at hundreds of pods reads megabytes, and must not be all that the step and the API server do.
func TestPauseAfterALook(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond:  500 * time.Millisecond,
		300 * time.Millisecond: 3 * time.Second,
		5 * time.Second:        10 * time.Second,
	} {
		if got := pauseAfter(took); got != want {
			t.Errorf("after a look of %s: got a pause of %s, want %s", took, got, want)
		}
	}
}
