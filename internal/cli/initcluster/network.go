// SPDX-License-Identifier: Apache-2.0

package initcluster

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/install/admin"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
)

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

// rails returns the attachments of the RDMA resources that all nodes have. Comments name resources that are left out.
func (w *writer) rails(f Facts, nodes []corev1.Node) []attachment.Definition {
	for _, subject := range []string{attachmentsSubject, policiesSubject} {
		if err := f.Unknown[subject]; err != nil {
			w.unknown(2, "network.rdma.enabled: you may not read the %s (%s)", subject, firstLine(err))
		}
	}
	var rails []attachment.Definition
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
			w.comment(2, "%s is on all nodes, but has no attachment in namespace default or %s: left out.", resource, f.Namespace)
		case at >= 0:
			rails = append(rails, f.Attachments[at])
		}
	}
	return rails
}

// devices returns the nodes' RDMA resources, by their policies, or else by their names.
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

func (w *writer) rdma(f Facts, nodes []corev1.Node, rails []attachment.Definition) form {
	if len(rails) > 0 {
		w.sriov(f, rails)
		return sriov
	}
	signs := cards(nodes)
	switch {
	case len(nodes) == 0:
		w.unknown(2, "network.rdma.enabled: whether the nodes have RDMA devices")
	case len(signs) == 0:
		w.guess(2, "network.rdma.enabled: no node has an SR-IOV resource with an attachment, or the label of an RDMA card")
	case f.may(func(c constraint) bool { return c.privileged }) == "":
		w.guess(2, "network.rdma.enabled: all nodes have RDMA cards by %s, but no SR-IOV resources, and service account %s may not create "+
			"privileged pods, which host devices need; see mlenv admin, then set enabled, security.requires_privileged_scc and security.ipc_lock",
			strings.Join(signs, ", "), f.ServiceAccount)
	default:
		w.guess(2, "network.rdma.enabled: host devices in privileged pods, because all nodes have RDMA cards by %s and no SR-IOV resources",
			strings.Join(signs, ", "))
		w.line(2, "enabled: true")
		w.comment(2, "Devices are detected. If storage uses one, list the others in devices.")
		return hostDevices
	}
	w.line(2, "enabled: false")
	return noRDMA
}

func (w *writer) sriov(f Facts, rails []attachment.Definition) {
	if len(f.RDMA) > 0 {
		w.comment(2, "By SR-IOV: the policies of these resources have isRdma.")
	} else {
		w.guess(2, "network.rdma.enabled: by SR-IOV, because all nodes have resources with rdma in their names, each with its attachment")
	}
	w.line(2, "enabled: true")
	isolated := len(rails) > 1 && !slices.ContainsFunc(rails, func(r attachment.Definition) bool { return len(r.Ranges) == 0 })
	overlaps := attachment.Overlaps(rails)
	for _, overlap := range overlaps {
		w.guess(2, "network.rdma.attachments: %s, so two pods may get one address; correct the attachments", overlap)
	}
	if isolated && len(overlaps) == 0 {
		w.guess(2, "network.rdma.cross_nic: each rail has its own subnet, and such subnets usually have no route to each other")
		w.set(2, "cross_nic", "0")
	}
	w.line(2, "attachments:")
	for _, r := range rails {
		w.line(2, "- %s # %s", r.Name, cmp.Or(strings.Join(humanize.Each(r.Ranges, attachment.Range.String), ", "), r.Problem))
		for _, other := range f.Attachments {
			if other.Resource == r.Resource && other.Name != r.Name {
				w.comment(2, "- %s has the same resource", other.Name)
			}
		}
	}
	w.line(2, "resources:")
	for _, r := range rails {
		w.line(3, "%s: 1", r.Resource)
	}
}

// cards returns the labels of node feature discovery that all nodes have and that mean RDMA. They come from its source rdma, and from
// PCI devices of Mellanox, vendor 15b3 (kubernetes-sigs/node-feature-discovery).
func cards(nodes []corev1.Node) []string {
	on := map[string]int{}
	for _, node := range nodes {
		for label, value := range node.Labels {
			feature, is := strings.CutPrefix(label, "feature.node.kubernetes.io/")
			if is && value == "true" && (strings.HasPrefix(feature, "rdma.") || strings.HasPrefix(feature, "pci-") &&
				strings.Contains(feature, "15b3.present")) {
				on[label]++
			}
		}
	}
	maps.DeleteFunc(on, func(_ string, n int) bool { return n < len(nodes) })
	return slices.Sorted(maps.Keys(on))
}

// may returns a constraint that the account may use and that fits, "" for none. ml-dev-env's own comes first, privileged ones
// last.
func (f Facts) may(fits func(constraint) bool) string {
	order := []func(constraint) bool{
		func(c constraint) bool { return c.name == admin.OwnSCC },
		func(c constraint) bool { return !c.privileged },
		func(constraint) bool { return true },
	}
	for _, first := range order {
		for _, c := range f.Constraints {
			if fits(c) && first(c) {
				return c.name
			}
		}
	}
	return ""
}

func (w *writer) security(f Facts, form form) {
	w.section("security")
	w.set(1, "service_account", f.ServiceAccount)
	if !f.OpenShift {
		w.comment(1, "OpenShift would choose the user of the pods, who must not be root.")
		w.line(1, "run_as_user: 1001")
	}
	if err := f.Unknown[constraintsSubject]; err != nil {
		w.unknown(1, "security.scc: the constraints that %s may use (%s)", f.ServiceAccount, firstLine(err))
	}
	if len(f.Constraints) > 0 {
		w.comment(1, "%s may use %s.", f.ServiceAccount, strings.Join(humanize.Each(f.Constraints, func(c constraint) string { return c.name }),
			", "))
	}
	scc := f.may(func(c constraint) bool { return c.ipcLock })
	own := form == sriov && scc != "" && scc != "privileged"
	switch {
	case own:
		w.guess(1, "security.scc: the constraint that allows IPC_LOCK and the least else")
	case form == sriov:
		w.guess(1, "security.ipc_lock: pods can lock memory without IPC_LOCK if the nodes' limit is lifted; see mlenv admin for that, or for a "+
			"constraint with IPC_LOCK%s",
			map[bool]string{true: "; privileged would allow it too, with everything else"}[scc != ""])
	}
	w.line(1, "requires_privileged_scc: %t", form == hostDevices)
	w.line(1, "ipc_lock: %t", form == hostDevices || own)
	if own {
		w.set(1, "scc", scc)
	}
}
