// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestPlaces(t *testing.T) {
	node := func(name string, change func(*corev1.Node)) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Capacity:   corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}
		change(&n)
		return n
	}
	nodes := []corev1.Node{
		node("b-cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		node("a-fit", func(*corev1.Node) {}),
		node("c-tainted", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "team", Effect: corev1.TaintEffectNoSchedule}}
		}),
		node("d-lost", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
		node("e-no-gpus", func(n *corev1.Node) { n.Status.Capacity = nil }),
	}
	spec := &corev1.PodSpec{
		Containers: []corev1.Container{
			{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}}
	type seen struct {
		Name   string
		Reason fail.Reason
		Lasts  bool
	}
	var got []seen
	for _, place := range Candidates(nodes, spec) {
		got = append(got, seen{place.Name, place.Reason, place.Final})
	}
	want := []seen{{"a-fit", "", false}, {"b-cordoned", fail.NodesUnavailable, true}, {"c-tainted", fail.NodeTainted, true},
		{"d-lost", fail.NodesUnavailable, false}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRefused(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "team"}}
	set.Spec.Template.Spec.ServiceAccountName = "sa"
	set.Spec.Template.Annotations = map[string]string{objects.SCCAnnotation: "nccl-scc"}
	tests := []struct {
		name, text string
		want       fail.Finding
	}{
		{
			"pinned to what may not be used",
			`pods "e-" is forbidden: unable to validate against any security context constraint: [provider "nccl-scc": Forbidden: not usable by ` +
				`user or serviceaccount]`,
			fail.Finding{Reason: fail.SecurityRefused, Final: true, Seen: "the pod is pinned to nccl-scc, which is not usable by user or service " +
				"account sa", Next: "oc adm policy add-scc-to-user nccl-scc -z sa -n team"},
		},
		{
			"pinned to what refuses one thing",
			`pods "e-" is forbidden: unable to validate against any security context constraint: provider nccl-scc: ` +
				`.containers[0].capabilities.add: Invalid value: "SYS_RESOURCE": capability may not be added`,
			fail.Finding{Reason: fail.SecurityRefused, Final: true, Seen: "nccl-scc refuses capabilities.add SYS_RESOURCE of containers[0]: " +
				"capability may not be added", Next: "leave SYS_RESOURCE out of security.capabilities in the cluster file: RDMA does not need it: if " +
				"IPC_LOCK is effective, the memlock limit does not count; or have it allowed: oc describe scc nccl-scc"},
		},
		{
			"pinned to what refuses",
			`pods "e-" is forbidden: unable to validate against any security context constraint: [provider nccl-scc: ` +
				`.containers[0].capabilities.add: Invalid value: "SYS_RESOURCE": capability may not be added]`,
			fail.Finding{Reason: fail.SecurityRefused, Final: true, Seen: "nccl-scc refuses capabilities.add SYS_RESOURCE of containers[0]: " +
				"capability may not be added", Next: "leave SYS_RESOURCE out of security.capabilities in the cluster file: RDMA does not need it: if " +
				"IPC_LOCK is effective, the memlock limit does not count; or have it allowed: oc describe scc nccl-scc"},
		},
		{"in words of its own", `pods "e-" is forbidden: because`,
			fail.Finding{Reason: fail.PodsNotReady, Seen: `pods "e-" is forbidden: because`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, ExplainRejection(set, nil, errors.New(test.text))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
