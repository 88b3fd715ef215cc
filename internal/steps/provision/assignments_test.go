// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// A pod holds its GPUs from the moment at which it was scheduled. Those of a gang wait for the last one.
func TestAssignments(t *testing.T) {
	began := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	pod := func(status corev1.ConditionStatus, seconds int) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: status, LastTransitionTime: metav1.NewTime(at(seconds))}}}}
	}
	scheduled := func(seconds int) *corev1.Pod { return pod(corev1.ConditionTrue, seconds) }
	for _, tc := range []struct {
		name string
		pods []*corev1.Pod
		want *receipt.GPUs
	}{
		{"all at once", []*corev1.Pod{scheduled(5), scheduled(5)}, &receipt.GPUs{Count: 8, Since: at(5)}},
		{"one after the other", []*corev1.Pod{scheduled(5), scheduled(65)}, &receipt.GPUs{Count: 8, Since: at(65), Before: 4 * 60}},
		{"one never", []*corev1.Pod{scheduled(40), pod(corev1.ConditionFalse, 1)}, &receipt.GPUs{Count: 8, Before: 4 * 60}},
		{"an environment that existed", []*corev1.Pod{scheduled(-500), scheduled(-400)}, &receipt.GPUs{Count: 8, Since: began}},
		{"none yet", nil, &receipt.GPUs{Count: 8}},
	} {
		a := &assignments{began: began}
		a.recordPods(objects.Request{Nodes: 2, GPUsPerNode: new(4)}, tc.pods)
		a.recordPods(objects.Request{Nodes: 2, GPUsPerNode: new(4)}, nil) // they were released
		if diff := cmp.Diff(tc.want, a.gpus(at(100))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	if got := (&assignments{}).gpus(began); got != nil {
		t.Errorf("without any pod: %+v, want nil", got)
	}
}
