package initcluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/install/admin"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
)

// rail is a resource of the nodes with the attachment that gives its device an address.
type rail struct {
	resource string
	attachment.Definition
}

// network writes that section and the one about security, which follows from it.
func (w *writer) network(f Facts, nodes []corev1.Node) {
	w.section("network")
	w.line(1, "rdma:")
	rails := w.rails(f, nodes)
	form := w.rdma(f, nodes, rails)
	w.proxy(f)
	w.security(f, form)
}

// form is how pods get their RDMA devices.
type form int

const (
	noRDMA form = iota
	sriov
	hostDevices
)

// rails are the resources that all nodes have and that an attachment is of; what else
// looks like one is said in a comment.
func (w *writer) rails(f Facts, nodes []corev1.Node) []rail {
	for _, subject := range []string{attachmentsSubject, policiesSubject} {
		if err := f.Unknown[subject]; err != nil {
			w.unknown(2, "the %s may not be read (%s)", subject, firstLine(err))
		}
	}
	var rails []rail
	for _, resource := range devices(f, nodes) {
		on := 0
		for _, node := range nodes {
			if has := node.Status.Allocatable[corev1.ResourceName(resource)]; !has.IsZero() {
				on++
			}
		}
		at := slices.IndexFunc(f.Attachments, func(a attachment.Definition) bool { return a.Resource == resource })
		switch {
		case on < len(nodes):
			w.comment(2, "%s is on %d of %d nodes: left out.", resource, on, len(nodes))
		case at < 0 && f.Unknown[attachmentsSubject] == nil:
			w.comment(2, "%s is on all nodes, and no attachment of namespace default or %s gives it an address: left out.", resource, f.Namespace)
		case at >= 0:
			rails = append(rails, rail{resource, f.Attachments[at]})
		}
	}
	return rails
}

// devices are the nodes' resources that are RDMA devices: by their policy or, where that
// may not be read, by their names.
func devices(f Facts, nodes []corev1.Node) []string {
	names := map[string]bool{}
	for _, node := range nodes {
		for name, amount := range node.Status.Allocatable {
			resource := string(name)
			rdma, known := f.RDMA[resource]
			attached := slices.ContainsFunc(f.Attachments, func(a attachment.Definition) bool { return a.Resource == resource })
			if !known {
				rdma = (attached || strings.HasPrefix(resource, "openshift.io/")) && strings.Contains(strings.ToLower(resource), "rdma")
			}
			if rdma && !amount.IsZero() {
				names[resource] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// rdma writes that part, and returns the form that it came to.
func (w *writer) rdma(f Facts, nodes []corev1.Node, rails []rail) form {
	if len(rails) > 0 {
		w.sriov(f, rails)
		return sriov
	}
	signs := cards(nodes)
	switch {
	case len(nodes) == 0:
		w.unknown(2, "whether the nodes have RDMA devices")
	case len(signs) == 0:
		w.guess(2, "no node has a resource of an SR-IOV pool with an attachment, or a label of an RDMA card")
	case f.may(func(c constraint) bool { return c.privileged }) == "":
		w.guess(2, "all nodes have RDMA cards by %s, but no SR-IOV resources, and service account %s may not make privileged pods, which the host's devices want: mlenv admin says how; then set enabled, security.requires_privileged_scc and security.ipc_lock", strings.Join(signs, ", "), account())
	default:
		w.guess(2, "the host's devices, in privileged pods: all nodes have RDMA cards by %s, and no SR-IOV resources", strings.Join(signs, ", "))
		w.line(2, "enabled: true")
		w.comment(2, "Devices are detected. Where one is storage's, name the others in devices.")
		return hostDevices
	}
	w.line(2, "enabled: false")
	return noRDMA
}

func (w *writer) sriov(f Facts, rails []rail) {
	if len(f.RDMA) > 0 {
		w.comment(2, "By SR-IOV: the policies of these resources have isRdma.")
	} else {
		w.guess(2, "by SR-IOV: resources of all nodes whose names say rdma, each with its attachment")
	}
	w.line(2, "enabled: true")
	var definitions []attachment.Definition
	isolated := len(rails) > 1
	for _, r := range rails {
		definitions = append(definitions, r.Definition)
		isolated = isolated && len(r.Ranges) > 0
	}
	overlaps := attachment.Overlaps(definitions)
	for _, overlap := range overlaps {
		w.guess(2, "%s: two pods may get one address; mend the attachments", overlap)
	}
	if isolated && len(overlaps) == 0 {
		w.guess(2, "each rail has a subnet of its own, and mostly no route leads from one to another")
		w.set(2, "cross_nic", "0")
	}
	w.line(2, "attachments:")
	for _, r := range rails {
		var ranges []string
		for _, one := range r.Ranges {
			ranges = append(ranges, one.String())
		}
		if len(ranges) == 0 {
			ranges = []string{r.Problem}
		}
		w.line(2, "- %s # %s", r.Name, strings.Join(ranges, ", "))
		for _, other := range f.Attachments {
			if other.Resource == r.resource && other.Name != r.Name {
				w.comment(2, "- %s is of the same resource", other.Name)
			}
		}
	}
	w.line(2, "resources:")
	for _, r := range rails {
		w.line(3, "%s: 1", r.resource)
	}
}

// cards are labels of node feature discovery that say of all nodes that they have RDMA:
// its source rdma, and PCI devices of Mellanox, vendor 15b3 (kubernetes-sigs/node-feature-discovery).
func cards(nodes []corev1.Node) []string {
	on := map[string]int{}
	for _, node := range nodes {
		for label, value := range node.Labels {
			feature, is := strings.CutPrefix(label, "feature.node.kubernetes.io/")
			if is && value == "true" && (strings.HasPrefix(feature, "rdma.") || strings.HasPrefix(feature, "pci-") && strings.Contains(feature, "15b3.present")) {
				on[label]++
			}
		}
	}
	maps.DeleteFunc(on, func(_ string, n int) bool { return n < len(nodes) })
	return slices.Sorted(maps.Keys(on))
}

func account() string { return cluster.Default().Security.ServiceAccount }

// may is a constraint that the account may use and that fits, "" for none; our own before
// others, and those that allow less before privileged ones.
func (f Facts) may(fits func(constraint) bool) string {
	name := ""
	rank := func(c constraint) int {
		switch {
		case c.name == admin.OwnSCC:
			return 0
		case !c.privileged:
			return 1
		}
		return 2
	}
	best := 3
	for _, c := range f.Constraints {
		if fits(c) && rank(c) < best {
			name, best = c.name, rank(c)
		}
	}
	return name
}

// security is what pods in mode rdma ask for.
func (w *writer) security(f Facts, form form) {
	w.section("security")
	w.set(1, "service_account", account())
	if err := f.Unknown[constraintsSubject]; err != nil {
		w.unknown(1, "which constraints %s may use (%s)", account(), firstLine(err))
	}
	var names []string
	for _, c := range f.Constraints {
		names = append(names, c.name)
	}
	if len(names) > 0 {
		w.comment(1, "%s may use %s.", account(), strings.Join(names, ", "))
	}
	scc := f.may(func(c constraint) bool { return c.ipcLock })
	switch {
	case form == noRDMA:
		w.line(1, "requires_privileged_scc: false")
		w.line(1, "ipc_lock: false")
	case form == hostDevices:
		w.line(1, "requires_privileged_scc: true")
		w.line(1, "ipc_lock: true")
	case scc != "" && scc != "privileged":
		w.guess(1, "of those the one that allows IPC_LOCK and least else")
		w.line(1, "requires_privileged_scc: false")
		w.line(1, "ipc_lock: true")
		w.set(1, "scc", scc)
	default:
		w.guess(1, "%s", fmt.Sprintf("pods may lock memory without IPC_LOCK, where the nodes' limit is lifted; mlenv admin says how, or gives a constraint with IPC_LOCK%s",
			map[bool]string{true: "; privileged would allow it too, and everything else"}[scc != ""]))
		w.line(1, "requires_privileged_scc: false")
		w.line(1, "ipc_lock: false")
	}
}
