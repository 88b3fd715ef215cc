// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
)

// TestNodeWithoutItsGPUIsLeftOut: the kubelet of node-a refuses each pod, and the scheduler would choose node-a again until the
// start-timeout.
func TestNodeWithoutItsGPUIsLeftOut(t *testing.T) {
	const (
		lost = "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = error " +
			"creating nvml.Device 5: nvml: GPU is lost, which is unexpected"
		unhealthy = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected"
	)
	for _, tc := range []struct {
		name, message string
		nodes         []string
		change        func(*appsv1.StatefulSet)
		since         time.Duration
		left          []string // the nodes that pods may use afterwards
		err           string
	}{
		{"a lost GPU", lost, []string{"node-a", "node-b", "node-c"}, nil, 0, []string{"node-b", "node-c"}, ""},
		{"no healthy GPU", unhealthy, []string{"node-a", "node-b", "node-c"}, nil, 0, []string{"node-b", "node-c"}, ""},
		{"no other node", lost, []string{"node-a", "node-b"}, nil, 0, []string{"node-a", "node-b"}, "leaves 1 node, want 2"},
		{"no other node, and the plugin may only restart", unhealthy, []string{"node-a", "node-b"}, nil, 0, []string{"node-a", "node-b"}, ""},
		{"no other node, for two minutes", unhealthy, []string{"node-a", "node-b"}, nil, 2 * time.Minute, []string{"node-a", "node-b"},
			"leaves 1 node, want 2"},
		{"nodes that are not listed", lost, nil, nil, 0, nil, "does not list it"},
		{"claims of its own", lost, []string{"node-a", "node-b", "node-c"}, func(set *appsv1.StatefulSet) {
			set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{}}
		}, 0, []string{"node-a", "node-b", "node-c"}, "exist only on this node"},
		{"a queue", lost, []string{"node-a", "node-b", "node-c"}, func(set *appsv1.StatefulSet) {
			set.Labels[kueue.QueueLabel] = "team-a"
		}, 0, []string{"node-a", "node-b", "node-c"}, "Kueue"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
			meta := metav1.ObjectMeta{Namespace: "ns", Name: "env", Labels: objects.Labels("env"),
				CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}
			set := &appsv1.StatefulSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"}, ObjectMeta: meta}
			set.Spec.Replicas = new(int32(1))
			set.Spec.Template.Spec.Affinity = &corev1.Affinity{}
			if tc.nodes != nil {
				set.Spec.Template.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
						NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
							{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: tc.nodes},
						}}},
					}}
			}
			if tc.change != nil {
				tc.change(set)
			}
			// The StatefulSet has created the pod again.
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-0", UID: "newer", Labels: objects.Labels("env")}}
			event := &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "refused"}, Reason: "UnexpectedAdmissionError", Message: tc.message,
				Source:         corev1.EventSource{Host: "node-a"},
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "env-0", UID: types.UID("older")},
				FirstTimestamp: metav1.NewTime(now.Add(-tc.since)), LastTimestamp: metav1.NewTime(now),
			}
			p := newPlace(t, pod, event)
			p.notReady = true
			if err := kube.Apply(t.Context(), p.kube, set); err != nil {
				t.Fatal(err)
			}
			step := p.provisioner(func(s *provisioner) { s.now = func() time.Time { return now }; s.request.Nodes = 2 })
			report := &reporter{p: step, set: set}
			var err error
			for range 2 { // the event stays for a while
				err = errors.Join(err, report.look(t.Context()))
			}
			if tc.err == "" && err != nil || tc.err != "" && (fail.ReasonOf(err) != fail.GPUMissing || !strings.Contains(fail.NextOf(err), tc.err)) {
				t.Errorf("got %s: %v, next %q; want %q", fail.ReasonOf(err), err, fail.NextOf(err), tc.err)
			}
			live, err := p.kube.AppsV1().StatefulSets("ns").Get(t.Context(), "env", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			allowed, excluded := objects.Placement(&live.Spec.Template.Spec)
			isOut := slices.Contains(excluded, "node-a")
			if !slices.Equal(allowed, tc.left) || isOut != (len(tc.left) < len(tc.nodes)) {
				t.Errorf("pods may use %q, not %q; want %q", allowed, excluded, tc.left)
			}
			if said := strings.Count(p.messages(), "node-a is left out from now on: node node-a: UnexpectedAdmissionError"); isOut != (said == 1) {
				t.Errorf("log %q, want one line if the node is left out", p.messages())
			}
			if isOut != slices.Contains(step.request.ExcludeNodes, "node-a") {
				t.Errorf("a later request excludes %q", step.request.ExcludeNodes)
			}
		})
	}
}
