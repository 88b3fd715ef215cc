// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// namesAsked returns the nodes that the pod's affinity names, or nil if it names none.
func namesAsked(spec *corev1.PodSpec) []string {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	var names []string
	for _, term := range required.NodeSelectorTerms {
		for _, r := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			if (r.Key == corev1.LabelHostname || r.Key == "metadata.name") && r.Operator == corev1.NodeSelectorOpIn {
				names = append(names, r.Values...)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// isCandidate reports whether the pod's selector and affinity allow the node, and whether it has the kinds of GPUs that the pod asks for.
func isCandidate(node *corev1.Node, spec *corev1.PodSpec) bool {
	required := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec})
	if allowed, err := required.Match(node); err != nil || !allowed {
		return false
	}
	if slices.Contains(namesAsked(spec), hostname(node)) {
		return true
	}
	for _, name := range gpusAsked(spec) {
		if q := node.Status.Capacity[name]; q.IsZero() {
			return false
		}
	}
	return true
}

func hostname(node *corev1.Node) string {
	return cmp.Or(node.Labels[corev1.LabelHostname], node.Name)
}

// untolerated returns the node's taints that keep the pod away, except passing marks, as on a node that is cordoned or lost.
func untolerated(node *corev1.Node, spec *corev1.PodSpec) (taints []corev1.Taint) {
	for _, taint := range node.Spec.Taints {
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || passing(taint) != "" {
			continue
		}
		if !slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(&taint) }) {
			taints = append(taints, taint)
		}
	}
	return taints
}

// notReady returns "is not ready" or "does not answer", with the node's message and since when, "" for a ready node.
func notReady(node *corev1.Node) (state, message string, since time.Time) {
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type != corev1.NodeReady || c.Status == corev1.ConditionTrue:
			continue
		case c.Status == corev1.ConditionUnknown:
			return "does not answer", oneLine(c.Message), c.LastTransitionTime.Time
		}
		return "is not ready", oneLine(c.Message), c.LastTransitionTime.Time
	}
	return "", "", time.Time{}
}

// cordoned is the problem that oc adm uncordon fixes.
const cordoned = "cordoned"

// whyUnfit returns why the node takes no new pods at all, or "".
func whyUnfit(node *corev1.Node) string {
	if state, message, _ := notReady(node); state != "" {
		return fmt.Sprintf("it %s (%s)", state, message)
	}
	if node.Spec.Unschedulable {
		return cordoned
	}
	for _, taint := range node.Spec.Taints {
		if short := passing(taint); short != "" && taint.Effect != corev1.TaintEffectPreferNoSchedule {
			return "marked " + short
		}
	}
	return ""
}

// passing returns the short name of a mark that its owner takes away again: Kubernetes, or what sets a node up (Cilium's, CSI drivers' and
// cloud providers' agents) or is about to delete it (the cluster autoscaler). Pods should not tolerate such marks.
func passing(taint corev1.Taint) string {
	domain, short, _ := strings.Cut(taint.Key, "/")
	switch {
	case domain == "node.kubernetes.io", short == "agent-not-ready", short == "uninitialized", short == "network-unavailable":
		return short
	case taint.Key == "ToBeDeletedByClusterAutoscaler":
		return taint.Key
	}
	return ""
}
