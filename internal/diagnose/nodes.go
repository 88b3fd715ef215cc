// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// nodeCounts are the nodes that a pod's selector and affinity allow, by their state.
type nodeCounts struct {
	allowed int
	// usable nodes would take the pod if they had enough free resources.
	usable []*corev1.Node
	// ours have a pod of the environment already; a node takes one.
	ours    []string
	down    []group
	tainted []group
}

// group is nodes with the same cause.
type group struct {
	why   string
	taint corev1.Taint
	names []string
}

func addToGroup(groups []group, g group, node string) []group {
	i := slices.IndexFunc(groups, func(other group) bool { return other.why == g.why })
	if i < 0 {
		groups, i = append(groups, g), len(groups)
	}
	groups[i].names = append(groups[i].names, node)
	return groups
}

func (e *explainer) countNodes(spec *corev1.PodSpec) nodeCounts {
	var p nodeCounts
	for i := range e.Nodes {
		node := &e.Nodes[i]
		if !isCandidate(node, spec) {
			continue
		}
		p.allowed++
		taints := untolerated(node, spec)
		switch why := whyUnfit(node); {
		case why != "":
			p.down = addToGroup(p.down, group{why: why}, node.Name)
		case len(taints) > 0:
			for _, t := range taints {
				p.tainted = addToGroup(p.tainted, group{why: t.ToString(), taint: t}, node.Name)
			}
		case e.ours(node.Name):
			p.ours = append(p.ours, node.Name)
		default:
			p.usable = append(p.usable, node)
		}
	}
	return p
}

// byNodes explains by the nodes themselves why none takes the pod.
func (e *explainer) byNodes(u pendingPod) []fail.Finding {
	p := e.countNodes(&u.pod.Spec)
	found := e.shortages(u, p)
	for _, g := range p.tainted {
		found = append(found, fail.Finding{
			Reason: fail.NodeTainted, Final: len(p.usable)+len(p.down) == 0, Next: toleration(g.taint),
			Seen: fmt.Sprintf("%s: the pod does not tolerate the taint %s", firstNames(g.names, 8), g.why),
		})
	}
	for _, g := range p.down {
		f := fail.Finding{Reason: fail.NodesUnavailable, Seen: firstNames(g.names, 8) + ": " + g.why, Next: "oc describe node" + joined(g.names)}
		if g.why == cordoned {
			f.Next = "oc adm uncordon" + joined(g.names)
		}
		found = append(found, f)
	}
	if absent := e.absent(namesAsked(&u.pod.Spec)); len(absent) > 0 {
		found = append(found, fail.Finding{
			Reason: fail.NodesUnavailable, Final: p.allowed < e.Replicas(),
			Seen: fmt.Sprintf("nodes.gpu_nodes lists %s, which the cluster does not have; its nodes with GPUs: %s", firstNames(absent, 8),
				e.gpuNodes()),
			Next: "correct nodes.gpu_nodes in the cluster file (oc get nodes)",
		})
	}
	if len(found) == 0 && len(p.usable) == 0 {
		found = append(found, e.tooFew(u, p))
	}
	return found
}

func (e *explainer) ours(node string) bool {
	return slices.ContainsFunc(e.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node && !released(&p) })
}

func released(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// absent returns the nodes among the names that the cluster does not have.
func (e *explainer) absent(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(e.Nodes, func(n corev1.Node) bool { return n.Name == name || hostname(&n) == name })
	})
}

func (e *explainer) gpuNodes() string {
	var names []string
	for i := range e.Nodes {
		if len(gpusIn(e.Nodes[i].Status.Capacity)) > 0 {
			names = append(names, e.Nodes[i].Name)
		}
	}
	return cmp.Or(firstNames(names, 8), "none")
}

// tooFew explains an environment whose pods take all allowed nodes.
func (e *explainer) tooFew(u pendingPod, p nodeCounts) fail.Finding {
	f := fail.Finding{
		Reason: fail.NodesUnavailable,
		Seen:   fmt.Sprintf("%d nodes are requested and %d may be used; the scheduler reports: %s", e.Replicas(), p.allowed, u.message.text),
		Next:   "ask for fewer nodes, or list more in nodes.gpu_nodes of the cluster file",
		Final:  namesAsked(&u.pod.Spec) != nil && p.allowed < e.Replicas(),
	}
	if p.allowed == 0 {
		f.Next = "oc get nodes --show-labels (no node has what the pod's node affinity and GPUs ask)"
	} else if len(p.ours) > 0 {
		f.Seen += "; taken by the environment's own pods: " + firstNames(p.ours, 8)
	}
	return f
}

// shortages returns the resources that the usable nodes have too little of.
func (e *explainer) shortages(u pendingPod, p nodeCounts) []fail.Finding {
	var found []fail.Finding
	// Nodes that may become usable, and pods without a node.
	later := 0
	for _, g := range slices.Concat(p.down, p.tainted) {
		later += len(g.names)
	}
	homeless := e.Replicas() - len(p.ours)
	if len(p.usable) == 0 {
		return nil
	}
	for _, name := range u.message.lackingResources() {
		ask := RequestOf(&u.pod.Spec, name)
		var parts, names, silent []string
		fitting := 0
		for _, node := range p.usable {
			has := node.Status.Capacity[name]
			switch {
			case has.Cmp(ask) >= 0 && !has.IsZero():
				fitting++
			case isGPU(name) && node.Labels["nvidia.com/gpu.present"] == "true" && len(gpusIn(node.Status.Capacity)) == 0:
				silent = append(silent, node.Name) // its device plugin may only be late
			}
			parts = append(parts, e.describeUsage(node, name))
			names = append(names, node.Name)
		}
		f := fail.Finding{
			Reason: fail.NodesUnavailable,
			Seen:   fmt.Sprintf("the pod asks %s %s; %s", ask.String(), name, strings.Join(parts, "; ")),
			Next:   describeNodes(names),
			// The cluster may add nodes unless the nodes are listed.
			Final: namesAsked(&u.pod.Spec) != nil && fitting+later+len(silent) < homeless,
		}
		switch {
		case isGPU(name):
			f.Reason = fail.GPUsUnavailable
			if len(silent) > 0 {
				f.Seen += "; the device plugin offers none of the GPUs of " + firstNames(silent, 8)
				f.Next = fmt.Sprintf("oc get pods -A -o wide --field-selector spec.nodeName=%s | grep -e device-plugin -e mps-control-daemon "+
					"(their logs show why: an MPS daemon that does not answer, or several kinds of MIG devices with strategy single)", silent[0])
			} else if others := otherGPUs(p.usable, name); others != "" {
				f.Seen += "; their GPUs have other names: " + others
				f.Next = fmt.Sprintf("have the GPUs of some nodes offered as %s (MIG strategy single, or no MIG; no other name for shared ones), and "+
					"name these in nodes.gpu_nodes of the cluster file", name)
			} else if f.Final {
				f.Next = "ask for fewer nodes, or for fewer GPUs each"
			}
		case isDevice(name):
			f.Next, f.Rail = resourceNames(name), true
		case f.Final:
			f.Next = fmt.Sprintf("lower resources.requests.%s in the cluster file to what the nodes have", name)
		}
		found = append(found, f)
	}
	return found
}

// otherGPUs has the names by which nodes offer their GPUs that offer none by that name, as MIG devices or as shares in time.
func otherGPUs(on []*corev1.Node, name corev1.ResourceName) string {
	var others []string
	for _, node := range on {
		if has := node.Status.Capacity[name]; !has.IsZero() {
			return ""
		}
		for _, other := range GPUs(node.Status.Allocatable) {
			if !slices.Contains(others, string(other)) {
				others = append(others, string(other))
			}
		}
	}
	return firstNames(others, 4)
}
