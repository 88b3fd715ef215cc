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

// productLabel and the like are GPU feature discovery's (NVIDIA/k8s-device-plugin), which
// writes spaces as hyphens.
const productLabel = "nvidia.com/gpu.product"

// kind is what tells GPU nodes apart.
type kind struct {
	gpus    int64
	product string
}

func (k kind) String() string {
	return fmt.Sprintf("%s of %s", humanize.Count(int(k.gpus), "GPU"), cmp.Or(k.product, "a type that no label says"))
}

func kindOf(node *corev1.Node) kind {
	amount := node.Status.Allocatable[gpu]
	return kind{amount.Value(), node.Labels[productLabel]}
}

// usual are the nodes of the kind that most have; of two, the one with more GPUs.
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

// nodes writes that section, and returns the nodes that are meant.
func (w *writer) nodes(f Facts) []corev1.Node {
	w.section("nodes")
	if err := f.Unknown[nodesSubject]; err != nil {
		w.unknown(1, "the nodes may not be read: null allows any node with GPUs (%s)", firstLine(err))
		w.line(1, "gpu_nodes: null")
		return nil
	}
	most, chosen := usual(f.Nodes)
	if len(chosen) == 0 {
		w.unknown(1, "no node has %s now: null allows any that will", gpu)
		w.line(1, "gpu_nodes: null")
		return nil
	}
	if err := f.Unknown[podsSubject]; err != nil {
		w.unknown(1, "how many GPUs are free: the pods of other namespaces may not be read (%s)", firstLine(err))
	}
	if len(chosen) == len(f.Nodes) {
		w.comment(1, "All nodes with GPUs; null allows those that will come, too.")
	} else {
		w.guess(1, "the nodes that have %s; others are left out, as a job's nodes want to be alike", most)
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
	w.tolerations(chosen)
	w.racks(chosen)
	return chosen
}

// state is what a node has at this moment.
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
	if places := diagnose.Candidates([]corev1.Node{*node}, &corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}); len(places) > 0 && places[0].Problem != "" {
		text += "; " + places[0].Problem
	}
	return humanize.OneLine(text, 200)
}

// tolerations are for the taints of the nodes but that of GPU nodes, which is always
// tolerated, and those that Kubernetes puts on nodes in trouble.
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
	w.guess(1, "the nodes have these taints; ask whose they are: a taint may be there to keep you away")
	w.line(1, "tolerations:")
	for _, taint := range slices.SortedFunc(maps.Keys(on), func(a, b corev1.Taint) int { return strings.Compare(a.ToString(), b.ToString()) }) {
		w.comment(1, "on %d of %d: %s", len(on[taint]), len(nodes), strings.Join(on[taint], ", "))
		fields := "key: " + taint.Key
		if taint.Value == "" {
			fields += ", operator: Exists"
		} else {
			fields += fmt.Sprintf(", value: %q", taint.Value)
		}
		w.line(1, "- {%s, effect: %s}", fields, taint.Effect)
	}
}

// unit is a rack and a unit of it in a node's name, as in moc-r4pcc02u17.
var unit = regexp.MustCompile(`(\d+)u\d+`)

// racks say which label or part of the name tells the rack: ranks of one rack are
// neighbours then.
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
		w.comment(1, "Racks are told by %s, which needs no key: %s.", corev1.LabelTopologyZone, strings.Join(unique(values(corev1.LabelTopologyZone)), ", "))
		return
	}
	for _, label := range slices.Sorted(maps.Keys(nodes[0].Labels)) {
		if strings.Contains(strings.ToLower(label), "rack") && len(values(label)) == len(nodes) {
			w.guess(1, "the label's name, and that every node has it: %s", strings.Join(unique(values(label)), ", "))
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
		w.guess(1, "the nodes' names end in a rack and its unit: racks %s", strings.Join(unique(racks), ", "))
		w.set(1, "rack_pattern", unit.String())
		return
	}
	w.comment(1, "No label and no part of the names tells the nodes' racks; rack_label or rack_pattern would.")
}

func unique(values []string) []string { return slices.Compact(slices.Sorted(slices.Values(values))) }

func (w *writer) gpus(nodes []corev1.Node) {
	w.section("gpus")
	if len(nodes) == 0 {
		w.unknown(1, "how many GPUs a node has, and of which type: this is the default")
		w.line(1, "per_node: 4")
		return
	}
	k := kindOf(&nodes[0])
	w.line(1, "per_node: %d", k.gpus)
	if k.product == "" {
		w.unknown(1, "the type: no node has the label %s; gpus.type says it to people", productLabel)
	} else {
		w.guess(1, "of the label %s=%s, which has hyphens for spaces", productLabel, k.product)
		w.set(1, "type", strings.ReplaceAll(k.product, "-", " "))
	}
	w.line(1, "default_nodes: %d", min(2, len(nodes)))
}

// Requests and limits of the default, as fractions of the least node where that has less.
func (w *writer) resources(nodes []corev1.Node) {
	w.section("resources")
	if len(nodes) == 0 {
		w.unknown(1, "what the nodes have: these are the defaults")
	}
	least := func(name corev1.ResourceName) resource.Quantity {
		var smallest resource.Quantity
		for _, node := range nodes {
			if q := node.Status.Allocatable[name]; smallest.IsZero() || q.Cmp(smallest) < 0 {
				smallest = q
			}
		}
		return smallest
	}
	memory, cpu := least(corev1.ResourceMemory), least(corev1.ResourceCPU)
	requestMemory, limitMemory, requestCPU, limitCPU := "128Gi", "256Gi", "32", "64"
	if gib := memory.Value() >> 30; len(nodes) > 0 && gib < 256 {
		requestMemory, limitMemory = gibibytes(gib/2), gibibytes(gib*3/4)
	}
	if cores := cpu.MilliValue(); len(nodes) > 0 && cores < 64000 {
		requestCPU, limitCPU = millis(cores/2), millis(cores)
	}
	if len(nodes) > 0 {
		w.guess(1, "of a node of the environment, beside its GPUs; the least node has %s and %s processors, others' pods included", humanize.Bytes(memory.Value()), cpu.String())
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
	q := resource.NewMilliQuantity(max(n, 1), resource.DecimalSI)
	return q.String()
}

// firstLine is what an error says in short.
func firstLine(err error) string { return humanize.OneLine(err.Error(), 160) }
