// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
)

// attachments checks the attachments in the cluster file: they exist, use its
// resources, and have addresses for every node that no other rail has.
func (p *probe) attachments(ctx context.Context) []Check {
	if !p.rdma {
		return nil
	}
	names := slices.Compact(slices.Sorted(slices.Values(p.file.Network.RDMA.AttachmentsIn(p.Request.Namespace))))
	read := make([]*attachment.Definition, len(names))
	checks := make([]Check, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { read[i], checks[i] = p.attachment(ctx, name) })
	}
	all.Wait()
	var definitions []attachment.Definition
	for _, definition := range read {
		if definition != nil {
			definitions = append(definitions, *definition)
		}
	}
	return slices.Concat(checks, overlapping(definitions), p.unattached(definitions, len(names)))
}

func (p *probe) attachment(ctx context.Context, name string) (*attachment.Definition, Check) {
	check := "attachment " + name
	namespace, short, _ := strings.Cut(name, "/")
	object, err := p.Clients.Objects.Resource(attachment.Resource()).Namespace(namespace).Get(ctx, short, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		next := fmt.Sprintf("oc get network-attachment-definitions -n %s, then correct network.rdma.attachments in the cluster file; %s prints "+
			"what each must have", namespace, p.adminCommand())
		if namespace == p.Request.Namespace {
			next = p.copies() + " prints copies of those in namespace default; or correct network.rdma.attachments in the cluster file"
		}
		return nil, newCheck(check, BlockedRDMA, next, "it does not exist")
	case err != nil:
		return nil, unread(check, "it", err)
	}
	a := attachment.Read(object)
	return &a, p.judgeAttachment(check, a)
}

// copies returns the command that prints the attachments for the environment's namespace.
func (p *probe) copies() string { return p.adminCommand("--attachments=copy") }

func (p *probe) judgeAttachment(check string, a attachment.Definition) Check {
	resources := p.file.Network.RDMA.Resources
	if _, asked := resources[a.Resource]; a.Resource != "" && !asked {
		return newCheck(check, BlockedRDMA, fmt.Sprintf("make it one of %s, or correct network.rdma.resources",
			humanize.First(slices.Sorted(maps.Keys(resources)), 8)),
			"its annotation %s is %s, which network.rdma.resources of the cluster file does not have: pods would stay Pending or get no device",
			attachment.ResourceAnnotation, a.Resource)
	}
	text := "resource " + a.Resource
	switch {
	case a.OnShared():
		text = fmt.Sprintf("%s of %s", a.Type, cmp.Or(a.Master, "the default interface"))
	case a.Resource == "":
		text = "no resource"
	}
	if a.Problem != "" {
		return newCheck(check, Unknown, "", "%s; whether it has enough addresses is not known: %s", text, a.Problem)
	}
	var names []string
	size := uint64(0)
	for _, r := range a.Ranges {
		names = append(names, r.String())
		size += r.Size()
	}
	ranges := strings.Join(names, ", ")
	if size < uint64(p.Request.Nodes) {
		return newCheck(check, BlockedRDMA, "give the attachment a larger range (ipam in its spec.config)",
			"its range %s has %d addresses, and %s want one each", ranges, size, humanize.Count(p.Request.Nodes, "node"))
	}
	if a.PerNode && p.Request.Nodes > 1 {
		return newCheck(check, Warning, "give the attachment an ipam that knows the whole cluster, as whereabouts or nv-ipam",
			"%s, addresses %s by host-local, which counts on each Kubernetes node by itself: two pods may get the same address", text, ranges)
	}
	return newCheck(check, OK, "", "%s, addresses %s", text, ranges)
}

// overlapping finds attachments whose subnets overlap. A group of them is one check.
func overlapping(definitions []attachment.Definition) (checks []Check) {
	reported := map[string]bool{}
	for i, a := range definitions {
		var others []string
		for _, b := range definitions[i+1:] {
			if a.Overlaps(b) {
				others = append(others, b.Name)
			}
		}
		if len(others) > 0 && !reported[a.Name] {
			checks = append(checks, newCheck("attachments", BlockedRDMA, "give each attachment a subnet of its own (ipam in its spec.config)",
				"the range of %s (%s) overlaps with that of %s: rails on one subnet get each other's traffic, and collectives hang", a.Name,
				a.Ranges[0], humanize.First(others, 8)))
		}
		for _, name := range others {
			reported[name] = true
		}
	}
	return checks
}

// unattached finds resources without an attachment: their devices get no address.
func (p *probe) unattached(definitions []attachment.Definition, named int) []Check {
	const check = "attachments"
	resources := slices.Sorted(maps.Keys(p.file.Network.RDMA.Resources))
	switch {
	case named == 0 && len(resources) > 0:
		return []Check{newCheck(check, Warning,
			fmt.Sprintf("name the attachments of these resources in network.rdma.attachments of the cluster file "+
				"(oc get network-attachment-definitions -A); %s prints copies for the namespace", p.copies()),
			"network.rdma.resources gives pods devices, but without network.rdma.attachments they have no net1 and so on, and Ethernet devices "+
				"have no address. If NCCL_SOCKET_IFNAME names net1, NCCL prints Bootstrap : no socket interface found")}
	case len(definitions) < named:
		return nil
	}
	idle := slices.DeleteFunc(resources, func(name string) bool {
		return slices.ContainsFunc(definitions, func(a attachment.Definition) bool { return a.Resource == name })
	})
	// Without a resource an attachment may be of the interface of a shared device.
	shared := slices.ContainsFunc(definitions, func(a attachment.Definition) bool { return a.Resource == "" })
	if len(idle) == 0 || shared {
		return nil
	}
	return []Check{newCheck(check, Warning, "add its attachment to network.rdma.attachments in the cluster file, or leave the resource out",
		"no attachment is of resource %s: its devices will have no address", humanize.First(idle, 8))}
}
