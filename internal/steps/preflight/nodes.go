// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

type capacity struct {
	diagnose.Candidate
	// small are resources of which the node never has enough, short those that others hold now.
	small, short []corev1.ResourceName
	// devices describe the counted resources and who holds them.
	devices []string
	// unknown is why the holders are not known.
	unknown error
}

func (p *probe) nodes(ctx context.Context) []Check {
	candidates, err := p.candidates()
	if err != nil {
		return []Check{unread("nodes", "the nodes", err)}
	}
	capacities := parallel.Map(candidates, func(candidate diagnose.Candidate) capacity { return p.capacity(ctx, candidate) })
	var checks []Check
	for _, c := range capacities {
		checks = append(checks, c.check())
	}
	checks = append(checks, p.enough(capacities)...)
	if i := slices.IndexFunc(capacities, func(c capacity) bool { return c.unknown != nil }); i >= 0 {
		checks = append(checks, unread("free devices", "the pods of other namespaces", capacities[i].unknown))
	}
	return checks
}

// counted returns the resources whose holders are named: GPUs and the rails' functions.
func (p *probe) counted() []corev1.ResourceName {
	names := []corev1.ResourceName{gpu}
	if p.rdma {
		for _, name := range slices.Sorted(maps.Keys(p.file.Network.RDMA.Resources)) {
			names = append(names, corev1.ResourceName(name))
		}
	}
	return names
}

func (p *probe) capacity(ctx context.Context, candidate diagnose.Candidate) capacity {
	c := capacity{Candidate: candidate}
	if candidate.Node == nil {
		return c
	}
	var pods []corev1.Pod
	pods, c.unknown = p.podsOn(ctx, candidate.Name)
	for _, name := range p.counted() {
		request, has := diagnose.RequestOf(p.podSpec(), name), candidate.Node.Status.Allocatable[name]
		all, known := candidate.Node.Status.Capacity[name] // while a device plugin restarts, nothing of it can be allocated
		if !known {
			all = has
		}
		held := diagnose.UsageOf(candidate.Name, pods, name)
		free := has.DeepCopy()
		free.Sub(held.Amount)
		text := fmt.Sprintf("%s %s", name, has.String())
		switch {
		case all.Cmp(request) < 0:
			c.small = append(c.small, name)
			text += fmt.Sprintf(" (want %s)", request.String())
		case c.unknown != nil:
			text += ", free unknown"
		default:
			if free.Sign() < 0 {
				free = resource.Quantity{}
			}
			if free.Cmp(request) < 0 {
				c.short = append(c.short, name)
			}
			text += fmt.Sprintf(", %s free", free.String())
			if has.Cmp(request) < 0 {
				text += fmt.Sprintf(" (of %s its device plugin offers only these)", all.String())
			}
		}
		if len(held.Holders) > 0 {
			text += " (" + humanize.First(held.Holders, 4) + ")"
		}
		c.devices = append(c.devices, text)
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request, has := diagnose.RequestOf(p.podSpec(), name), candidate.Node.Status.Allocatable[name]
		if has.Cmp(request) < 0 {
			c.small = append(c.small, name)
			c.devices = append(c.devices, fmt.Sprintf("%s %s (want %s)", name, has.String(), request.String()))
		}
	}
	return c
}

// podsOn returns a node's pods without the environment's own, whose resources it may keep.
func (p *probe) podsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := p.Clients.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fmt.Sprintf("spec.nodeName=%s,status.phase!=%s,status.phase!=%s", node, corev1.PodSucceeded, corev1.PodFailed),
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return pod.Namespace == p.Request.Namespace && pod.Labels[objects.EnvironmentLabel] == p.Request.Name
	}), nil
}

func (c capacity) check() Check {
	status := OK
	if c.Seen != "" || len(c.small)+len(c.short) > 0 {
		status = Warning
	}
	if c.Reason == fail.InvalidInput {
		status = Blocked // exclude-nodes names a node that does not exist
	}
	texts := append([]string{cmp.Or(c.Seen, "ready")}, c.devices...)
	return newCheck(nodePrefix+c.Name, status, c.Next, "%s", strings.Join(texts, "; ")).because(c.Reason)
}

func (p *probe) enough(all []capacity) []Check {
	const name = "nodes"
	requested := p.Request.Nodes
	keep := func(from []capacity, match func(capacity) bool) []capacity {
		return slices.DeleteFunc(slices.Clone(from), func(c capacity) bool { return !match(c) })
	}
	lasting := func(c capacity) bool { return c.Seen != "" && c.Final }
	rail := func(name corev1.ResourceName) bool { return p.file.Network.RDMA.Resources[string(name)] != 0 }
	notRail := func(name corev1.ResourceName) bool { return !rail(name) }
	usable := keep(all, func(c capacity) bool { return !lasting(c) && !slices.ContainsFunc(c.small, notRail) })
	seen := fmt.Sprintf("%d can be used, want %d", len(usable), requested)
	if excluded := p.Request.ExcludeNodes; len(excluded) > 0 {
		seen += ", without " + humanize.First(excluded, 8)
	}
	if len(usable) < requested {
		blocked := newCheck(name, Blocked, "ask for fewer with --nodes, or list more in nodes.gpu_nodes of the cluster file", "%s",
			seen).because(fail.NodesUnavailable)
		// The reason comes from the first unusable node.
		for _, c := range slices.Backward(all) {
			switch {
			case slices.Contains(c.small, gpu):
				blocked.Reason, blocked.Next = fail.GPUsUnavailable, "ask for what the nodes have, with --gpus-per-node or --nodes"
			case slices.ContainsFunc(c.small, notRail):
				blocked.Next = "lower resources.requests in the cluster file to what the nodes have"
			case lasting(c):
				blocked.Reason, blocked.Next = c.Reason, c.Next
			default:
				continue
			}
			blocked.Seen = fmt.Sprintf("%s: %s: %s", seen, c.Name, c.check().Seen)
		}
		return []Check{blocked}
	}
	for _, c := range keep(usable, func(c capacity) bool { return c.Seen == "" && len(c.short) == 0 }) {
		p.free = append(p.free, c.Name)
	}
	checks := []Check{newCheck(name, OK, "", "%s", seen)}
	if len(p.free) < requested {
		checks[0] = newCheck(name, Warning, "wait until it is released, ask its holders, or ask for fewer with --nodes",
			"%s; of these %d at this moment", seen, len(p.free))
	}
	if railed := keep(usable, func(c capacity) bool { return !slices.ContainsFunc(c.small, rail) }); len(railed) < requested {
		look := "oc get sriovnetworknodestates -n openshift-sriov-network-operator (is the node policy synced?)"
		if p.file.Network.RDMA.DescribeForm() == cluster.SharedDevices {
			look = "oc get nicclusterpolicy (is its rdmaSharedDevicePlugin ready, and do its selectors match the cards?)"
		}
		checks = append(checks, newCheck("rails", BlockedRDMA, look+", or correct network.rdma.resources in the cluster file",
			"%d nodes have the resources of network.rdma.resources, want %d", len(railed), requested))
	}
	return checks
}
