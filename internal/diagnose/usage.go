package diagnose

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// describeUsage is what a node has of a resource, what is left, and who has it. Of
// other resources than GPUs only what it has is known.
func (e *explainer) describeUsage(node *corev1.Node, name corev1.ResourceName) string {
	has := node.Status.Allocatable[name]
	text := fmt.Sprintf("%s has %s", node.Name, has.String())
	if !isGPU(name) {
		return text + " allocatable, free unknown"
	}
	if capacity := node.Status.Capacity[name]; capacity.Cmp(has) > 0 {
		text += fmt.Sprintf(" usable of %s", capacity.String())
	}
	free := has.DeepCopy()
	var holders []string
	for _, pods := range [][]corev1.Pod{e.Pods, e.OtherPods} {
		for i := range pods {
			if pods[i].Spec.NodeName != node.Name || released(&pods[i]) {
				continue
			}
			if q := podRequest(&pods[i].Spec, name); !q.IsZero() {
				free.Sub(q)
				holders = append(holders, holder(&pods[i], q))
			}
		}
	}
	switch {
	case !e.AllPods:
		text += ", free unknown because pods of other namespaces may not be read"
	case free.Sign() < 0:
		text += ", 0 free"
	default:
		text += fmt.Sprintf(", %s free", free.String())
	}
	if len(holders) > 0 {
		text += " (" + list(holders, 6) + ")"
	}
	return text
}

// holdersHere names the readable pods that hold the resource, on any node.
func (e *explainer) holdersHere(name corev1.ResourceName) string {
	var holders []string
	for i := range e.OtherPods {
		pod := &e.OtherPods[i]
		if q := podRequest(&pod.Spec, name); !q.IsZero() && pod.Spec.NodeName != "" && !released(pod) {
			holders = append(holders, holder(pod, q)+" on "+pod.Spec.NodeName)
		}
	}
	if holders == nil {
		return ""
	}
	return "; of what may be read: " + list(holders, 6)
}

// environmentLabel is on every pod of an environment and names it.
const environmentLabel = "ml-dev-env/environment"

func holder(pod *corev1.Pod, q resource.Quantity) string {
	text := fmt.Sprintf("%s/%s holds %s", pod.Namespace, pod.Name, q.String())
	if name := pod.Labels[environmentLabel]; name != "" {
		text += " for environment " + name
	}
	return text
}
