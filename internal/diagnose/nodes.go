package diagnose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// nodeCounts are the nodes that a pod's selector and affinity allow, each by what
// else is to be said of it.
type nodeCounts struct {
	allowed int
	// usable nodes would take the pod if they had enough left.
	usable []*corev1.Node
	// ours have a pod of the environment: there is one on each node.
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
		switch why := unfit(node); {
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

// byNodes looks at the nodes themselves: which may be used, and why each of them
// takes no pod now.
func (e *explainer) byNodes(u pendingPod) []fail.Finding {
	p := e.countNodes(&u.pod.Spec)
	found := e.shortages(u, p)
	for _, g := range p.tainted {
		found = append(found, fail.Finding{
			Reason: fail.NodeTainted, Final: len(p.usable)+len(p.down) == 0, Next: toleration(g.taint),
			Seen: fmt.Sprintf("%s: the pod does not tolerate the taint %s", list(g.names, 8), g.why),
		})
	}
	for _, g := range p.down {
		f := fail.Finding{Reason: fail.NodesUnavailable, Seen: list(g.names, 8) + ": " + g.why, Next: "oc describe node" + joined(g.names)}
		if g.why == cordoned {
			f.Next = "oc adm uncordon" + joined(g.names)
		}
		found = append(found, f)
	}
	if absent := e.absent(&u.pod.Spec); len(absent) > 0 {
		found = append(found, fail.Finding{
			Reason: fail.NodesUnavailable, Final: p.allowed < e.replicas(),
			Seen: fmt.Sprintf("nodes.gpu_nodes lists %s, which the cluster does not have; its nodes with GPUs: %s", list(absent, 8), e.gpuNodes()),
			Next: "correct nodes.gpu_nodes in the cluster file (oc get nodes)",
		})
	}
	if len(found) == 0 && len(p.usable) == 0 {
		found = append(found, e.tooFew(u, p))
	}
	return found
}

// ours is true of a node that a pod of the environment is on already: each node
// takes one.
func (e *explainer) ours(node string) bool {
	return slices.ContainsFunc(e.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node && !released(&p) })
}

// released is true of a pod that holds nothing of its node any more.
func released(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// absent are the nodes that the pod's affinity names and the cluster has not.
func (e *explainer) absent(spec *corev1.PodSpec) []string {
	var names []string
	for _, name := range namesAsked(spec) {
		if !slices.ContainsFunc(e.Nodes, func(n corev1.Node) bool { return n.Name == name || hostname(&n) == name }) {
			names = append(names, name)
		}
	}
	return names
}

func (e *explainer) gpuNodes() string {
	var names []string
	for i := range e.Nodes {
		for name, q := range e.Nodes[i].Status.Capacity {
			if isGPU(name) && !q.IsZero() {
				names = append(names, e.Nodes[i].Name)
				break
			}
		}
	}
	if names == nil {
		return "none"
	}
	return list(names, 8)
}

// tooFew is where every node that may be used has a pod of the environment.
func (e *explainer) tooFew(u pendingPod, p nodeCounts) fail.Finding {
	f := fail.Finding{
		Reason: fail.NodesUnavailable,
		Seen:   fmt.Sprintf("%d nodes are asked and %d may be used; the scheduler says: %s", e.replicas(), p.allowed, u.message.text),
		Next:   "ask for fewer with --nodes, or list more in nodes.gpu_nodes of the cluster file",
		Final:  namesAsked(&u.pod.Spec) != nil && p.allowed < e.replicas(),
	}
	if p.allowed == 0 {
		f.Next = "oc get nodes --show-labels (no node has what the pod's node affinity and GPUs ask)"
	} else if len(p.ours) > 0 {
		f.Seen += "; taken by the environment's own pods: " + list(p.ours, 8)
	}
	return f
}

// shortages are the resources that too little is left of on the usable nodes.
func (e *explainer) shortages(u pendingPod, p nodeCounts) []fail.Finding {
	var found []fail.Finding
	// Nodes that may yet become usable, and pods that have none.
	later := 0
	for _, g := range slices.Concat(p.down, p.tainted) {
		later += len(g.names)
	}
	homeless := e.replicas() - len(p.ours)
	for _, name := range u.message.short() {
		name := corev1.ResourceName(name)
		if len(p.usable) == 0 {
			break
		}
		ask := podRequest(&u.pod.Spec, name)
		var parts, names []string
		fitting := 0
		for _, node := range p.usable {
			has := node.Status.Capacity[name]
			if has.Cmp(ask) >= 0 {
				fitting++
			}
			parts = append(parts, e.describeUsage(node, name))
			names = append(names, node.Name)
		}
		f := fail.Finding{
			Reason: fail.NodesUnavailable,
			Seen:   fmt.Sprintf("the pod asks %s %s; %s", ask.String(), name, strings.Join(parts, "; ")),
			Next:   describeNodes(names),
			// Listed nodes stay what they are; else the cluster may add some.
			Final: namesAsked(&u.pod.Spec) != nil && fitting+later < homeless,
		}
		switch {
		case isGPU(name):
			f.Reason = fail.GPUsUnavailable
			if f.Final {
				f.Next = "ask for what the nodes have, with --gpus-per-node or --nodes"
			}
		case isDevice(name):
			f.Next = resourceNames(name)
		case f.Final:
			f.Next = fmt.Sprintf("lower resources.requests.%s in the cluster file to what the nodes have", name)
		}
		found = append(found, f)
	}
	return found
}
