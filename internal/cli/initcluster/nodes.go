// SPDX-License-Identifier: Apache-2.0

package initcluster

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// productLabel is from GPU feature discovery (NVIDIA/k8s-device-plugin), which writes spaces as hyphens.
const productLabel = "nvidia.com/gpu.product"

// mostListed is how many nodes are listed if the cluster has no others with GPUs.
const mostListed = 16

type kind struct {
	gpus    int64
	product string
}

func (k kind) String() string {
	return fmt.Sprintf("%s of %s", humanize.Count(int(k.gpus), "GPU"), cmp.Or(k.product, "unknown type"))
}

func kindOf(node *corev1.Node) kind {
	amount := node.Status.Allocatable[gpu]
	return kind{amount.Value(), node.Labels[productLabel]}
}

// usual returns the most frequent kind and its nodes; of two, the kind with more GPUs.
func usual(nodes []corev1.Node) (kind, []corev1.Node) {
	groups := map[kind][]corev1.Node{}
	for i := range nodes {
		if k := kindOf(&nodes[i]); k.gpus > 0 {
			groups[k] = append(groups[k], nodes[i])
		}
	}
	var best kind
	for k, group := range groups {
		if c := cmp.Or(cmp.Compare(len(group), len(groups[best])), cmp.Compare(k.gpus, best.gpus), cmp.Compare(k.product, best.product)); c > 0 {
			best = k
		}
	}
	return best, groups[best]
}

func (w *writer) nodes(f Facts) []corev1.Node {
	w.section("nodes")
	most, chosen := usual(f.Nodes)
	if len(chosen) == 0 {
		if err := f.Unknown[nodesSubject]; err != nil {
			w.unknown(1, "nodes.gpu_nodes: you may not read the nodes; null allows any node with GPUs (%s)", firstLine(err))
		} else {
			w.unknown(1, "nodes.gpu_nodes: no node has %s now; null allows any that will", gpu)
		}
		w.line(1, "gpu_nodes: null")
		return nil
	}
	if err := f.Unknown[podsSubject]; err != nil {
		w.unknown(1, "nodes.gpu_nodes: how many GPUs are free; you may not read the pods of other namespaces (%s)", firstLine(err))
	}
	w.listed(f, most, chosen)
	w.tolerations(chosen)
	w.racks(chosen)
	return chosen
}

// listed writes the chosen nodes, which are of the most frequent kind, or null for many that are all alike.
func (w *writer) listed(f Facts, most kind, chosen []corev1.Node) {
	switch {
	case len(chosen) < len(f.Nodes):
		w.guess(1, "nodes.gpu_nodes: the nodes with %s; others are left out, because the nodes of a job should be alike", most)
	case len(chosen) > mostListed:
		w.comment(1, "Any node with GPUs: the %d are alike.", len(chosen))
		w.line(1, "gpu_nodes: null")
		return
	default:
		w.comment(1, "All nodes with GPUs; null would include future ones.")
	}
	w.line(1, "gpu_nodes:")
	for i := range chosen {
		w.line(1, "- %s # %s", chosen[i].Name, f.state(&chosen[i]))
	}
	for i := range f.Nodes {
		if kindOf(&f.Nodes[i]) != most {
			w.comment(1, "- %s: %s; %s", f.Nodes[i].Name, kindOf(&f.Nodes[i]), f.state(&f.Nodes[i]))
		}
	}
}

func (f Facts) state(node *corev1.Node) string {
	has := node.Status.Allocatable[gpu]
	text := humanize.Count(int(has.Value()), "GPU")
	if f.Unknown[podsSubject] == nil {
		held := diagnose.UsageOf(node.Name, f.Pods, gpu)
		free := has.DeepCopy()
		free.Sub(held.Amount)
		text = fmt.Sprintf("%d of %d GPUs free", max(0, free.Value()), has.Value())
		if len(held.Holders) > 0 {
			text += ": " + strings.Join(held.Holders, ", ")
		}
	}
	if candidates := diagnose.Candidates([]corev1.Node{*node},
		&corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}); len(candidates) > 0 &&
		candidates[0].Seen != "" {
		text += "; " + candidates[0].Seen
	}
	return humanize.OneLine(text, 200)
}

// tolerations writes the taints of the nodes, except the taint of GPU nodes, which is always tolerated, and the taints that
// Kubernetes sets on unhealthy nodes.
func (w *writer) tolerations(nodes []corev1.Node) {
	on := map[corev1.Taint][]string{}
	for _, node := range nodes {
		for _, taint := range node.Spec.Taints {
			if taint.Key == string(gpu) || strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
				continue
			}
			taint.TimeAdded = nil
			on[taint] = append(on[taint], node.Name)
		}
	}
	if len(on) == 0 {
		return
	}
	w.guess(1, "nodes.tolerations: the taints of the nodes; ask their owner, because a taint may be meant to keep you away")
	w.line(1, "tolerations:")
	for _, taint := range slices.SortedFunc(maps.Keys(on), func(a, b corev1.Taint) int {
		return strings.Compare(a.ToString(), b.ToString())
	}) {
		w.comment(1, "on %d of %d: %s", len(on[taint]), len(nodes), strings.Join(on[taint], ", "))
		match := "operator: Exists"
		if taint.Value != "" {
			match = fmt.Sprintf("value: %q", taint.Value)
		}
		w.line(1, "- {key: %s, %s, effect: %s}", taint.Key, match, taint.Effect)
	}
}

// unit is a rack and its unit in a node's name, as in moc-r4pcc02u17.
var unit = regexp.MustCompile(`(\d+)u\d+`)

// racks writes the label or the part of the name that has the rack, so that ranks of one rack become neighbors.
func (w *writer) racks(nodes []corev1.Node) {
	values := func(label string) []string {
		var all []string
		for _, node := range nodes {
			if value := node.Labels[label]; value != "" {
				all = append(all, value)
			}
		}
		return all
	}
	if len(values(corev1.LabelTopologyZone)) == len(nodes) {
		w.comment(1, "Racks come from %s, which needs no key: %s.", corev1.LabelTopologyZone,
			strings.Join(unique(values(corev1.LabelTopologyZone)), ", "))
		return
	}
	for _, label := range slices.Sorted(maps.Keys(nodes[0].Labels)) {
		if strings.Contains(strings.ToLower(label), "rack") && len(values(label)) == len(nodes) {
			w.guess(1, "nodes.rack_label: by its name, and because every node has it: %s", strings.Join(unique(values(label)), ", "))
			w.set(1, "rack_label", label)
			return
		}
	}
	var racks []string
	for _, node := range nodes {
		if match := unit.FindStringSubmatch(node.Name); match != nil {
			racks = append(racks, match[1])
		}
	}
	if len(racks) == len(nodes) {
		w.guess(1, "nodes.rack_pattern: the nodes' names end in a rack and its unit: racks %s", strings.Join(unique(racks), ", "))
		w.set(1, "rack_pattern", unit.String())
		return
	}
	w.comment(1, "Neither labels nor names have the nodes' racks; rack_label or rack_pattern can.")
}

func unique(values []string) []string { return slices.Compact(slices.Sorted(slices.Values(values))) }

func (w *writer) gpus(nodes []corev1.Node) {
	w.section("gpus")
	if len(nodes) == 0 {
		w.unknown(1, "gpus.per_node: number and type of the GPUs; this is the default")
		w.line(1, "per_node: 4")
		return
	}
	k := kindOf(&nodes[0])
	w.line(1, "per_node: %d", k.gpus)
	if k.product == "" {
		w.unknown(1, "gpus.type: no node has the label %s", productLabel)
	} else {
		w.guess(1, "gpus.type: from the label %s=%s, which has hyphens for spaces", productLabel, k.product)
		w.set(1, "type", strings.ReplaceAll(strings.TrimSuffix(k.product, "-SHARED"), "-", " ")) // SHARED is of time slicing
	}
	w.line(1, "default_nodes: %d", min(2, len(nodes)))
}

// resources writes the default requests and limits, or fractions of the smallest node if that has less.
func (w *writer) resources(nodes []corev1.Node) {
	w.section("resources")
	least := func(name corev1.ResourceName) resource.Quantity {
		var smallest resource.Quantity
		for _, node := range nodes {
			if q := node.Status.Allocatable[name]; smallest.IsZero() || q.Cmp(smallest) < 0 {
				smallest = q
			}
		}
		return smallest
	}
	requestMemory, limitMemory, requestCPU, limitCPU := "128Gi", "256Gi", "32", "64"
	if len(nodes) == 0 {
		w.unknown(1, "resources.requests, resources.limits: what the nodes have; these are the defaults")
	} else {
		memory, cpu := least(corev1.ResourceMemory), least(corev1.ResourceCPU)
		if gib := memory.Value() >> 30; gib < 256 {
			requestMemory, limitMemory = gibibytes(gib/2), gibibytes(gib*3/4)
		}
		if cores := cpu.MilliValue(); cores < 64000 {
			requestCPU, limitCPU = millis(cores/2), millis(cores)
		}
		w.guess(1, "resources.requests, resources.limits: of a node of the environment; the smallest node has %s and %s processors, including "+
			"those in use", humanize.Bytes(memory.Value()), cpu.String())
	}
	w.line(1, "requests:")
	w.set(2, "memory", requestMemory)
	w.line(2, "cpu: %s", requestCPU)
	w.line(1, "limits:")
	w.set(2, "memory", limitMemory)
	w.line(2, "cpu: %s", limitCPU)
}

func gibibytes(n int64) string { return fmt.Sprintf("%dGi", max(1, n)) }

func millis(n int64) string {
	return resource.NewMilliQuantity(max(n, 1), resource.DecimalSI).String()
}

func firstLine(err error) string { return humanize.OneLine(err.Error(), 160) }
