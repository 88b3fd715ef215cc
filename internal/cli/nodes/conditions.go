// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Programs that set conditions, labels and taints of nodes.
const (
	kubernetes          = "kubernetes"
	nodeProblemDetector = "node-problem-detector"
	nvSentinel          = "nvsentinel"
	gpuOperator         = "gpu-operator"
	others              = "other"
)

// setters have the types of conditions by the program that sets them, as of node-problem-detector 6632ca6 (config/*.json), and NVSentinel's
// docs/INTEGRATIONS.md and nic-health-monitor in autumn 2026. All of them are True for a problem. The GPU operator v26 sets none.
var setters = map[string][]string{
	kubernetes: {"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"},
	nodeProblemDetector: {"KernelDeadlock", "ReadonlyFilesystem", "XfsShutdown", "CperHardwareErrorFatal", "DiskBadBlock", "NTPProblem",
		"CorruptDockerOverlay2", "FrequentUnregisterNetDevice", "FrequentKubeletRestart", "FrequentDockerRestart", "FrequentContainerdRestart",
		"ContainerRuntimeUnhealthy", "KubeletUnhealthy", "KubeProxyUnhealthy"},
	nvSentinel: {"DCGMError", "CSPMaintenance", "SyslogError", "NVSwitchFatalError", "NVSwitchDown", "NVSwitchNonFatalError",
		"InfiniBandStateCheck", "InfiniBandDegradationCheck", "EthernetStateCheck", "EthernetDegradationCheck"},
}

// condition is one of a Kubernetes node.
type condition struct {
	// Type is the type of the condition, such as Ready.
	Type string `json:"type"`
	// Status is one of True, False and Unknown.
	Status string `json:"status"`
	// By is one of kubernetes, node-problem-detector, nvsentinel, and other for a type that mlenv does not know.
	By string `json:"by"`
	// Problem reports whether the condition means a problem. It is false for a type that mlenv does not know.
	Problem bool `json:"problem"`
	// Reason is the reason that the program gives, in one word.
	Reason string `json:"reason,omitempty"`
	// Message is its explanation.
	Message string `json:"message,omitempty"`
	// Since is when the status last changed.
	Since time.Time `json:"since,omitzero"`
}

// conditionsOf returns the conditions of a node with what they mean, problems first, Ready before all.
func conditionsOf(n *corev1.Node) []condition {
	var all []condition
	for _, c := range n.Status.Conditions {
		by, problem := meaning(c)
		all = append(all, condition{Type: string(c.Type), Status: string(c.Status), By: by, Problem: problem, Reason: c.Reason,
			Message: c.Message, Since: c.LastTransitionTime.UTC()})
	}
	rank := func(c condition) int {
		switch {
		case c.Type == string(corev1.NodeReady):
			return 0
		case c.Problem:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b condition) int { return cmp.Or(rank(a)-rank(b), cmp.Compare(a.Type, b.Type)) })
	return all
}

// meaning returns which program set a condition, and whether it means a problem.
func meaning(c corev1.NodeCondition) (by string, problem bool) {
	if c.Type == corev1.NodeReady {
		return kubernetes, c.Status != corev1.ConditionTrue
	}
	return setterOf(c), setterOf(c) != others && c.Status == corev1.ConditionTrue
}

func setterOf(c corev1.NodeCondition) string {
	name := string(c.Type)
	for by, types := range setters {
		if slices.Contains(types, name) {
			return by
		}
	}
	// NVSentinel's conditions are named after its checks, and their reasons after both.
	check := strings.HasPrefix(name, "Gpu") && strings.HasSuffix(name, "Watch") || strings.HasPrefix(name, "SysLogs")
	if check || c.Reason == name+"IsHealthy" || c.Reason == name+"IsNotHealthy" {
		return nvSentinel
	}
	return others
}

// sign is a label or taint by which a program marks a node.
type sign struct {
	// By is one of gpu-operator, nvsentinel, and other for a taint of another program.
	By string `json:"by"`
	// Text is the label or taint, as in nvidia.com/gpu-driver-upgrade-state=drain-required.
	Text string `json:"text"`
}

// Labels by which programs mark nodes that they work on.
const (
	driverUpgrade = "nvidia.com/gpu-driver-upgrade-state" // the GPU operator, by k8s-operator-libs
	migState      = "nvidia.com/mig.config.state"         // its MIG manager
	sentinelState = "dgxc.nvidia.com/nvsentinel-state"
	cordonedBy    = "k8saas.nvidia.com/cordon-by"
	cordonReason  = "k8saas.nvidia.com/cordon-reason"
)

// signsOf returns the labels by which the GPU operator and NVSentinel mark a node that they repair or change, and its taints, except those
// of Kubernetes itself and the usual one of GPU nodes.
func signsOf(n *corev1.Node) (signs []sign) {
	for _, label := range []struct {
		by, key string
		fine    []string // its values on a node that needs nothing
	}{
		{gpuOperator, driverUpgrade, []string{"", "upgrade-done"}},
		{gpuOperator, migState, []string{"", "success"}},
		{nvSentinel, sentinelState, []string{""}},
	} {
		if value := n.Labels[label.key]; !slices.Contains(label.fine, value) {
			signs = append(signs, sign{label.by, label.key + "=" + value})
		}
	}
	if n.Spec.Unschedulable && n.Labels[cordonedBy] != "" { // the labels stay after a later uncordon
		text := cordonedBy + "=" + n.Labels[cordonedBy]
		if reason := n.Labels[cordonReason]; reason != "" {
			text += ", " + cordonReason + "=" + reason
		}
		signs = append(signs, sign{nvSentinel, text})
	}
	for _, taint := range n.Spec.Taints {
		switch {
		case strings.HasPrefix(taint.Key, "node.kubernetes.io/"), strings.HasPrefix(taint.Key, "node-role.kubernetes.io/"),
			taint.Key == "nvidia.com/gpu":
		case strings.HasPrefix(taint.Key, "nvidia.com/") && strings.HasSuffix(taint.Key, "-error"): // as NVSentinel's rules name them
			signs = append(signs, sign{nvSentinel, "taint " + taint.ToString()})
		default:
			signs = append(signs, sign{others, "taint " + taint.ToString()})
		}
	}
	return signs
}
