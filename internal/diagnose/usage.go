// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// describeUsage returns what a node has of a resource, what is free, and the holders. For resources other than GPUs only the
// node's own amount is known.
func (e *explainer) describeUsage(node *corev1.Node, name corev1.ResourceName) string {
	has := node.Status.Allocatable[name]
	text := fmt.Sprintf("%s has %s", node.Name, has.String())
	if !isGPU(name) {
		return text + " allocatable, free unknown"
	}
	if capacity := node.Status.Capacity[name]; capacity.Cmp(has) > 0 {
		text += fmt.Sprintf(" usable of %s", capacity.String())
	}
	held := UsageOf(node.Name, slices.Concat(e.Pods, e.OtherPods), name)
	free := has.DeepCopy()
	free.Sub(held.Amount)
	switch {
	case !e.AllPods:
		text += ", free unknown because pods of other namespaces may not be read"
	case free.Sign() < 0:
		text += ", 0 free"
	default:
		text += fmt.Sprintf(", %s free", free.String())
	}
	if len(held.Holders) > 0 {
		text += " (" + firstNames(held.Holders, 6) + ")"
	}
	return text
}

// holdersHere names the readable pods that hold the resource, on any node.
func (e *explainer) holdersHere(name corev1.ResourceName) string {
	var holders []string
	for i := range e.OtherPods {
		pod := &e.OtherPods[i]
		if q := RequestOf(&pod.Spec, name); !q.IsZero() && pod.Spec.NodeName != "" && !released(pod) {
			holders = append(holders, holder(pod, q)+" on "+pod.Spec.NodeName)
		}
	}
	if holders == nil {
		return ""
	}
	return "; readable holders: " + firstNames(holders, 6)
}

func holder(pod *corev1.Pod, q resource.Quantity) string {
	text := fmt.Sprintf("%s/%s holds %s", pod.Namespace, pod.Name, q.String())
	if name := pod.Labels[objects.EnvironmentLabel]; name != "" {
		text += " for environment " + name
	}
	return text
}
