package diagnose

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// namesAsked are the nodes that the pod's affinity names one by one, nil where
// any node of a kind will do.
func namesAsked(spec *corev1.PodSpec) []string {
	required := requiredAffinity(spec)
	if required == nil {
		return nil
	}
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

func requiredAffinity(spec *corev1.PodSpec) *corev1.NodeSelector {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// isCandidate is true of a node that the pod's selector and affinity allow, and that
// is of the kind that has GPUs where the pod asks for some.
func isCandidate(node *corev1.Node, spec *corev1.PodSpec) bool {
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(labels.Set(node.Labels)) {
		return false
	}
	if required := requiredAffinity(spec); required != nil {
		if !slices.ContainsFunc(required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return matches(node, t) }) {
			return false
		}
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
	if name := node.Labels[corev1.LabelHostname]; name != "" {
		return name
	}
	return node.Name
}

// matches is a term's verdict on a node. An empty term matches nothing.
func matches(node *corev1.Node, term corev1.NodeSelectorTerm) bool {
	if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
		return false
	}
	fields := map[string]string{"metadata.name": node.Name}
	for _, r := range term.MatchExpressions {
		if !fits(node.Labels, r) {
			return false
		}
	}
	for _, r := range term.MatchFields {
		if !fits(fields, r) {
			return false
		}
	}
	return true
}

func fits(values map[string]string, r corev1.NodeSelectorRequirement) bool {
	value, there := values[r.Key]
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return there && slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !there || !slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpExists:
		return there
	case corev1.NodeSelectorOpDoesNotExist:
		return !there
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if !there || len(r.Values) != 1 {
			return false
		}
		has, err := strconv.ParseInt(value, 10, 64)
		bound, err2 := strconv.ParseInt(r.Values[0], 10, 64)
		if err != nil || err2 != nil {
			return false
		}
		if r.Operator == corev1.NodeSelectorOpGt {
			return has > bound
		}
		return has < bound
	}
	return false
}

// untolerated are the node's taints that keep the pod away, less those by which
// Kubernetes itself marks a node that is cordoned, lost or under pressure.
func untolerated(node *corev1.Node, spec *corev1.PodSpec) (taints []corev1.Taint) {
	for _, taint := range node.Spec.Taints {
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			continue
		}
		if !slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) }) {
			taints = append(taints, taint)
		}
	}
	return taints
}

func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	switch {
	case t.Effect != "" && t.Effect != taint.Effect:
		return false
	case t.Key == "":
		return t.Operator == corev1.TolerationOpExists
	case t.Key != taint.Key:
		return false
	}
	return t.Operator == corev1.TolerationOpExists || t.Value == taint.Value
}

// cordoned is unfit's word for what oc adm uncordon mends.
const cordoned = "cordoned"

// unfit says why the node takes no new pods at all, "" if it does.
func unfit(node *corev1.Node) string {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			if c.Status == corev1.ConditionUnknown {
				return "it does not answer (" + oneLine(c.Message) + ")"
			}
			return "it is not ready (" + oneLine(c.Message) + ")"
		}
	}
	if node.Spec.Unschedulable {
		return cordoned
	}
	for _, taint := range node.Spec.Taints {
		if short, ok := strings.CutPrefix(taint.Key, "node.kubernetes.io/"); ok && taint.Effect != corev1.TaintEffectPreferNoSchedule {
			return "marked " + short
		}
	}
	return ""
}
