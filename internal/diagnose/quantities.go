package diagnose

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// sane are quantities that can be parsed in no time: whoever may write events
// could write 1e-999999999.
var sane = regexp.MustCompile(`^[+-]?[0-9.]{1,30}(?:[kKMGTPEmnu]i?|[eE][0-9]{1,2})?$`)

// parseQuantities reads "pods=1,requests.nvidia.com/gpu=4". What is no quantity is left out.
func parseQuantities(text string) corev1.ResourceList {
	found := corev1.ResourceList{}
	for _, part := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(part, "=")
		if !ok || !sane.MatchString(value) {
			continue
		}
		if q, err := resource.ParseQuantity(value); err == nil {
			found[corev1.ResourceName(name)] = q
		}
	}
	return found
}

// refreshQuota puts the quota's present numbers in place of an older event's.
func (e *explainer) refreshQuota(name string, used, hard corev1.ResourceList) {
	for _, quota := range e.Quotas {
		if quota.Name != name || quota.Namespace != e.namespace() {
			continue
		}
		for resource := range hard {
			if q, ok := quota.Status.Used[resource]; ok {
				used[resource] = q
			}
			if q, ok := quota.Status.Hard[resource]; ok {
				hard[resource] = q
			}
		}
	}
}

// amount is a resource's amount, "unknown" where the list has none.
func amount(list corev1.ResourceList, name corev1.ResourceName) string {
	q, ok := list[name]
	if !ok {
		return "unknown"
	}
	return q.String()
}

// multiply is q, n times.
func multiply(q resource.Quantity, n int) resource.Quantity {
	total := q.DeepCopy()
	total.Mul(int64(n))
	return total
}

// podRequest is what a pod takes of its node: the most of any init container, or all
// containers together with the init containers that keep running.
func podRequest(spec *corev1.PodSpec, name corev1.ResourceName) resource.Quantity {
	var running, most resource.Quantity
	for _, c := range spec.InitContainers {
		q := request(c, name)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			running.Add(q)
			continue
		}
		q.Add(running)
		if q.Cmp(most) > 0 {
			most = q
		}
	}
	for _, c := range spec.Containers {
		running.Add(request(c, name))
	}
	if most.Cmp(running) > 0 {
		return most
	}
	return running
}

// request of a container. A limit alone is a request too.
func request(c corev1.Container, name corev1.ResourceName) resource.Quantity {
	if q, ok := c.Resources.Requests[name]; ok {
		return q.DeepCopy()
	}
	if q, ok := c.Resources.Limits[name]; ok {
		return q.DeepCopy()
	}
	return resource.Quantity{}
}

// isGPU is true of nvidia.com/gpu, of its slices and of other makers' GPUs.
func isGPU(name corev1.ResourceName) bool {
	domain, rest, ok := strings.Cut(string(name), "/")
	return ok && (strings.Contains(rest, "gpu") || domain == "nvidia.com")
}

// isDevice is true of what a device plugin counts that is no GPU, such as virtual
// functions: openshift.io/eno5np0rdma.
func isDevice(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !isGPU(name)
}

// gpusAsked are the GPU resources that a pod asks for.
func gpusAsked(spec *corev1.PodSpec) []corev1.ResourceName {
	var names []corev1.ResourceName
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for _, c := range containers {
			for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
				for name, q := range list {
					if isGPU(name) && !q.IsZero() && !slices.Contains(names, name) {
						names = append(names, name)
					}
				}
			}
		}
	}
	slices.Sort(names)
	return names
}
