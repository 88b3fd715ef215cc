// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestConditions(t *testing.T) {
	node := &corev1.Node{}
	for _, c := range [][3]string{{"NPUHealthy", "True", ""}, {"KernelDeadlock", "False", "KernelHasNoDeadlock"},
		{"MemoryPressure", "False", ""},
		{"GpuMemWatch", "True", "GpuMemWatchIsNotHealthy"}, {"SysLogsXIDError", "False", "SysLogsXIDErrorIsHealthy"},
		{"NewCheck", "True", "NewCheckIsNotHealthy"}, {"ReadonlyFilesystem", "Unknown", ""}, {"Ready", "Unknown", "NodeStatusUnknown"}} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(c[0]),
			Status: corev1.ConditionStatus(c[1]), Reason: c[2]})
	}
	var got []string
	for _, c := range conditionsOf(node) {
		got = append(got, fmt.Sprintf("%s=%s %s %t", c.Type, c.Status, c.By, c.Problem))
	}
	want := []string{"Ready=Unknown kubernetes true", "GpuMemWatch=True nvsentinel true", "NewCheck=True nvsentinel true",
		"KernelDeadlock=False node-problem-detector false", "MemoryPressure=False kubernetes false", "NPUHealthy=True other false",
		"ReadonlyFilesystem=Unknown node-problem-detector false", "SysLogsXIDError=False nvsentinel false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	node.Labels = map[string]string{"nvidia.com/gpu-driver-upgrade-state": "drain-required", "nvidia.com/mig.config.state": "success",
		"dgxc.nvidia.com/nvsentinel-state": "draining", "k8saas.nvidia.com/cordon-by": "NVSentinel"}
	node.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule},
		{Key: "nvidia.com/gpu-xid-error", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}, {Key: "team", Effect: corev1.TaintEffectNoExecute}}
	if diff := cmp.Diff([]sign{{gpuOperator, "nvidia.com/gpu-driver-upgrade-state=drain-required"},
		{nvSentinel, "dgxc.nvidia.com/nvsentinel-state=draining"}, {nvSentinel, "taint nvidia.com/gpu-xid-error=true:NoSchedule"},
		{others, "taint team:NoExecute"}}, signsOf(node)); diff != "" {
		t.Errorf("signs (-want +got):\n%s", diff)
	}
}
