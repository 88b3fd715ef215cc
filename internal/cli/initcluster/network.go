// SPDX-License-Identifier: Apache-2.0

package initcluster

import (
	"cmp"
	"fmt"
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
	form := w.rdma(f, nodes, w.rails(f, nodes))
	w.proxy(f)
	w.security(f, form)
}

// form is how pods get their RDMA devices.
type form int

const (
	noRDMA form = iota
	plugged
	hostDevices
)

// rails are the RDMA resources that all nodes have, with their attachments.
type rails struct {
	attachments []attachment.Definition
	resources   []string
	shared      bool
}

// rails finds the resources with attachments. Comments name resources that are left out.
func (w *writer) rails(f Facts, nodes []corev1.Node) (found rails) {
	for _, subject := range []string{attachmentsSubject, policiesSubject, nicPoliciesSubject} {
		if err := f.Unknown[subject]; err != nil {
			w.unknown(2, "network.rdma.enabled: you may not read the %s (%s)", subject, firstLine(err))
		}
	}
	for _, resource := range devices(f, nodes) {
		on := 0
		for _, node := range nodes {
			if has := node.Status.Allocatable[corev1.ResourceName(resource)]; !has.IsZero() {
				on++
			}
		}
		attachments := f.attachmentsOf(resource)
		switch {
		case on < len(nodes):
			w.comment(2, "%s is on %d of %d nodes: left out.", resource, on, len(nodes))
		case len(attachments) == 0 && f.Unknown[attachmentsSubject] == nil:
			w.comment(2, "%s is on all nodes, but has no attachment in namespace default or %s: left out.", resource, f.Namespace)
		case f.shared(resource) && len(found.resources) > 0 && !found.shared:
			w.comment(2, "%s is on all nodes, too: left out, because the others give each pod devices of its own.", resource)
		case len(attachments) > 0:
			found.shared = f.shared(resource)
			found.resources = append(found.resources, resource)
			for _, a := range attachments { // selectors that name no interface leave open whose they are
				if !slices.ContainsFunc(found.attachments, func(other attachment.Definition) bool { return other.Name == a.Name }) {
					found.attachments = append(found.attachments, a)
				}
			}
		}
	}
	return found
}

// attachmentsOf returns the attachments that belong to a resource: one with its annotation, or those of the interfaces of its shared
// devices.
func (f *Facts) attachmentsOf(resource string) []attachment.Definition {
	if !f.shared(resource) {
		at := slices.IndexFunc(f.Attachments, func(a attachment.Definition) bool { return a.Resource == resource })
		if at < 0 {
			return nil
		}
		return f.Attachments[at : at+1]
	}
	of := f.Shared[resource]
	return slices.DeleteFunc(slices.Clone(f.Attachments), func(a attachment.Definition) bool {
		return !a.OnShared() || len(of) > 0 && a.Master != "" && !slices.Contains(of, a.Master)
	})
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
			if (rdma || f.shared(resource)) && !amount.IsZero() {
				names[resource] = true
			}
		}
	}
	// Devices of a pod's own come first.
	return slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		if shared := f.shared(a); shared != f.shared(b) {
			return map[bool]int{false: -1, true: 1}[shared]
		}
		return strings.Compare(a, b)
	})
}

func (w *writer) rdma(f Facts, nodes []corev1.Node, found rails) form {
	if len(found.resources) > 0 {
		w.plugged(f, found)
		return plugged
	}
	signs := cards(nodes)
	switch {
	case len(nodes) == 0:
		w.unknown(2, "network.rdma.enabled: whether the nodes have RDMA devices")
	case len(signs) == 0:
		w.guess(2, "network.rdma.enabled: no node has an RDMA resource with an attachment, or the label of an RDMA card")
	case f.may(func(c constraint) bool { return c.privileged }) == "":
		w.guess(2, "network.rdma.enabled: all nodes have RDMA cards by %s, but no RDMA resources with attachments, and service account %s "+
			"may not create privileged pods, which host devices need; see mlenv admin, then set enabled, security.requires_privileged_scc and "+
			"security.ipc_lock",
			strings.Join(signs, ", "), f.ServiceAccount)
	default:
		w.guess(2, "network.rdma.enabled: host devices in privileged pods, because all nodes have RDMA cards by %s and no RDMA "+
			"resources with attachments",
			strings.Join(signs, ", "))
		w.line(2, "enabled: true")
		w.comment(2, "Devices are detected. If storage uses one, list the others in devices.")
		return hostDevices
	}
	w.line(2, "enabled: false")
	return noRDMA
}

func (w *writer) plugged(f Facts, found rails) {
	rails := found.attachments
	switch {
	case found.shared:
		w.guess(2, "network.rdma.enabled: by shared devices, because all nodes have resources of the RDMA shared device plugin, and there are "+
			"attachments of the host's interfaces")
		w.comment(2, "A resource gives a pod every card of its selector. 1 of it is enough: its amount on a node counts pods, not cards.")
	case len(f.RDMA) > 0:
		w.comment(2, "By SR-IOV: the policies of these resources have isRdma.")
	default:
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
		of := ""
		if r.OnShared() {
			of = fmt.Sprintf("%s of %s, ", r.Type, cmp.Or(r.Master, "the default interface"))
		}
		w.line(2, "- %s # %s%s", r.Name, of, cmp.Or(strings.Join(humanize.Each(r.Ranges, attachment.Range.String), ", "), r.Problem))
		for _, other := range f.Attachments {
			if r.Resource != "" && other.Resource == r.Resource && other.Name != r.Name {
				w.comment(2, "- %s has the same resource", other.Name)
			}
		}
	}
	w.line(2, "resources:")
	for _, resource := range found.resources {
		w.line(3, "%s: 1", resource)
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
	own := form == plugged && scc != "" && scc != "privileged"
	switch {
	case own:
		w.guess(1, "security.scc: the constraint that allows IPC_LOCK and the least else")
	case form == plugged:
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
