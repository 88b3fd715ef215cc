// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
)

// parseQuantities reads "pods=1,requests.nvidia.com/gpu=4". It omits invalid quantities.
func parseQuantities(text string) corev1.ResourceList {
	found := corev1.ResourceList{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		if q, err := cluster.ParseQuantity(value); err == nil {
			found[corev1.ResourceName(name)] = q
		}
	}
	return found
}

// refreshQuota replaces an event's numbers by the quota's current ones.
func (e *explainer) refreshQuota(name string, used, hard corev1.ResourceList) {
	quota := findNamed(e.Quotas, name)
	if quota == nil {
		return
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

func amount(list corev1.ResourceList, name corev1.ResourceName) string {
	q, ok := list[name]
	if !ok {
		return "unknown"
	}
	return q.String()
}

// RequestOf returns what a pod takes of its node. A container without a request takes its limit.
func RequestOf(spec *corev1.PodSpec, name corev1.ResourceName) resource.Quantity {
	pod := &corev1.Pod{Spec: *spec.DeepCopy()}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			requests := corev1.ResourceList{}
			maps.Copy(requests, containers[i].Resources.Limits)
			maps.Copy(requests, containers[i].Resources.Requests)
			containers[i].Resources.Requests = requests
		}
	}
	return helper.PodRequests(pod, helper.PodResourcesOptions{})[name]
}

// isGPU reports whether a resource is a GPU, a slice of one, or another maker's GPU.
func isGPU(name corev1.ResourceName) bool {
	domain, rest, ok := strings.Cut(string(name), "/")
	slice := domain == "nvidia.com" && strings.HasPrefix(rest, "mig-") // its other resources are NICs
	return ok && (strings.Contains(rest, "gpu") || slice || strings.HasPrefix(domain, "gpu."))
}

// isDevice reports whether a resource is a device plugin's but no GPU, as openshift.io/eno5np0rdma.
func isDevice(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !isGPU(name)
}

func gpusAsked(spec *corev1.PodSpec) []corev1.ResourceName {
	var names []corev1.ResourceName
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		names = slices.Concat(names, gpusIn(c.Resources.Requests), gpusIn(c.Resources.Limits))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// GPUs returns the resources of a list that are GPUs or parts of them, sorted.
func GPUs(list corev1.ResourceList) []corev1.ResourceName {
	return slices.Sorted(slices.Values(gpusIn(list)))
}

func gpusIn(list corev1.ResourceList) (names []corev1.ResourceName) {
	for name, q := range list {
		if isGPU(name) && !q.IsZero() {
			names = append(names, name)
		}
	}
	return names
}
