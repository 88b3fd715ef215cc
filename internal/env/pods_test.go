// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// TestRelease tests that only what the Lease owned is deleted: not the environment that another holder has created meanwhile.
func TestRelease(t *testing.T) {
	for lease, want := range map[types.UID]string{"mine": "env-1-of-others", "later": "env-0 env-1 env-1-of-others"} {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env", UID: "set",
			OwnerReferences: []metav1.OwnerReference{objects.LeaseReference("env", "mine")}}}
		pod := func(name string, owner types.UID) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: objects.Labels("env"),
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "env", UID: owner, Controller: new(true)}}}}
		}
		client := kubefake.NewClientset(set, pod("env-0", "set"), pod("env-1", "set"), pod("env-1-of-others", "another"))
		e := Of(&kube.Clients{Kube: client, Namespace: "ns"}, "env")
		e.endPods(t.Context(), lease)
		pods, err := e.Pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, pod := range pods {
			left = append(left, pod.Name)
		}
		slices.Sort(left)
		if got := strings.Join(left, " "); got != want {
			t.Errorf("lease %s: the pods %s are left, want %s", lease, got, want)
		}
		if _, err := e.StatefulSet(t.Context()); (err == nil) != (lease == "later") {
			t.Errorf("lease %s: the StatefulSet: %v", lease, err)
		}
	}
}

// Only the pods of a small environment are deleted one by one: the requests would grow with the nodes.
func TestReleaseOfManyPods(t *testing.T) {
	for count, want := range map[int]int{fewPods: fewPods, fewPods + 1: 0} {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env", UID: "set",
			OwnerReferences: []metav1.OwnerReference{objects.LeaseReference("env", "mine")}},
			Spec: appsv1.StatefulSetSpec{Replicas: new(int32(count))}}
		client := kubefake.NewClientset(set)
		for node := range count {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("env-", node), Labels: objects.Labels("env"),
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}}}
			if err := client.Tracker().Add(pod); err != nil {
				t.Fatal(err)
			}
		}
		Of(&kube.Clients{Kube: client, Namespace: "ns"}, "env").endPods(t.Context(), "mine")
		deleted := map[string]int{}
		for _, action := range client.Actions() {
			if action.GetVerb() == "delete" {
				deleted[action.GetResource().Resource]++
			}
		}
		if deleted["pods"] != want || deleted["statefulsets"] != 1 {
			t.Errorf("%d pods: deleted are %v, want the StatefulSet and %d pods", count, deleted, want)
		}
	}
}

// TestNodesThatStayAway: the error of a wait that ends reports how many nodes are ready.
func TestNodesThatStayAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := func(name string, ready corev1.ConditionStatus) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: objects.Labels("env")},
				Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
		}
		client := kubefake.NewClientset(pod("env-0", corev1.ConditionTrue), pod("env-1", corev1.ConditionFalse),
			&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env"}})
		over := errors.New("the nodes were not back in time")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, over)
		defer cancel()
		_, err := Of(&kube.Clients{Kube: client, Namespace: "ns"}, "env").WaitAllReady(ctx, 2, func(string) {})
		if fail.ReasonOf(err) != fail.PodsNotReady || !errors.Is(err, over) || !strings.Contains(err.Error(), "1 of 2 pods ready") {
			t.Errorf("got %v, want PodsNotReady with 1 of 2 pods", err)
		}
	})
}

// A pod that runs on another Kubernetes node by now stays, and so does what the StatefulSet may use.
func TestLeaveOutOfAPodThatHasMoved(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-1"}, Spec: corev1.PodSpec{NodeName: "c"}}
	client := kubefake.NewClientset(pod, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env"}})
	err := Of(&kube.Clients{Kube: client, Namespace: "ns"}, "env").LeaveOut(t.Context(), 1, 2, "b")
	if err == nil || !strings.Contains(err.Error(), "its pod has moved to c") {
		t.Errorf("got %v, want that the pod has moved", err)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "get" {
			t.Errorf("it asked to %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
}

// TestReplacePod: only the pod that was seen is deleted. Another one that has its name meanwhile is what ReplacePod is for.
func TestReplacePod(t *testing.T) {
	for name, answer := range map[string]error{
		"deleted": nil, "gone": apierrors.NewNotFound(corev1.Resource("pods"), "env-1"),
		"another": apierrors.NewConflict(corev1.Resource("pods"), "env-1", errors.New("the UID in the precondition")),
	} {
		client := kubefake.NewClientset()
		client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			of := action.(clienttesting.DeleteActionImpl)
			if uid := of.DeleteOptions.Preconditions.UID; of.Name != "env-1" || *uid != "seen" {
				t.Errorf("%s: deletes %s with UID %s", name, of.Name, *uid)
			}
			return true, nil, answer
		})
		if err := Of(&kube.Clients{Kube: client, Namespace: "ns"}, "env").ReplacePod(t.Context(), 1, "seen"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
