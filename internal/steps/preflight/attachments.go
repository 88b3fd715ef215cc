package preflight

import (
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

// attachments are those of the cluster file: whether they are there, are of its
// resources, and have addresses for every node that nobody else's rail has.
func (p *probe) attachments(ctx context.Context) []Check {
	if !p.rdma {
		return nil
	}
	wanted := slices.Compact(slices.Sorted(slices.Values(p.file.Network.RDMA.Attachments)))
	read := make([]*attachment.Definition, len(wanted))
	checks := make([][]Check, len(wanted))
	var all sync.WaitGroup
	for i, name := range wanted {
		all.Go(func() { read[i], checks[i] = p.attachment(ctx, name) })
	}
	all.Wait()
	found := slices.Concat(checks...)
	there := slices.DeleteFunc(read, func(a *attachment.Definition) bool { return a == nil })
	return append(append(found, shared(there)...), p.unattached(there, len(wanted))...)
}

// attachment reads one.
func (p *probe) attachment(ctx context.Context, name string) (*attachment.Definition, []Check) {
	check := Check{Name: "attachment " + name, Verdict: BlockedRDMA}
	namespace, short, _ := strings.Cut(name, "/")
	object, err := p.Dynamic.Resource(attachment.Resource()).Namespace(namespace).Get(ctx, short, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		check.Seen = "it does not exist"
		check.Fix = fmt.Sprintf("oc get network-attachment-definitions -n %s, then correct network.rdma.attachments in the cluster file; %s says what each must have", namespace, p.admin())
		return nil, []Check{check}
	case err != nil:
		return nil, []Check{unread(check.Name, "it", err)}
	}
	a := attachment.Read(object)
	return &a, p.judgeAttachment(&a, check)
}

// judgeAttachment looks at one by itself.
func (p *probe) judgeAttachment(a *attachment.Definition, check Check) []Check {
	resources := p.file.Network.RDMA.Resources
	if _, asked := resources[a.Resource]; a.Resource != "" && !asked {
		check.Seen = fmt.Sprintf("its annotation %s is %s, which network.rdma.resources of the cluster file does not have: pods would stay Pending or get no device", attachment.ResourceAnnotation, a.Resource)
		check.Fix = fmt.Sprintf("make it one of %s, or correct network.rdma.resources", listed(slices.Sorted(maps.Keys(resources)), 8))
		return []Check{check}
	}
	text := "resource " + a.Resource
	if a.Resource == "" {
		text = "no resource"
	}
	if a.Problem != "" {
		check.Verdict, check.Seen = Unknown, text+"; whether it has addresses enough is not known: "+a.Problem
		return []Check{check}
	}
	var names []string
	size := uint64(0)
	for _, r := range a.Ranges {
		names = append(names, r.String())
		size += r.Size()
	}
	if size < uint64(p.Request.Nodes) {
		check.Seen = fmt.Sprintf("its range %s has %d addresses, and %s want one each", strings.Join(names, ", "), size, humanize.Count(p.Request.Nodes, "node"))
		check.Fix = "give the attachment a larger range (ipam in its spec.config)"
		return []Check{check}
	}
	check.Verdict, check.Seen = OK, fmt.Sprintf("%s, addresses %s", text, strings.Join(names, ", "))
	return []Check{check}
}

// shared finds attachments whose subnets overlap: rails are told apart by their
// subnets, by NCCL, by the kernel's routes and by us. Four attachments with one range
// trained on two nodes and hung on eight.
func shared(all []*attachment.Definition) []Check {
	var found []Check
	for i, a := range all {
		var others []string
		for _, b := range all[i+1:] {
			if a.Overlaps(*b) {
				others = append(others, b.Name)
			}
		}
		// One finding for a group: its first member tells of the others.
		told := slices.ContainsFunc(all[:i], func(b *attachment.Definition) bool { return a.Overlaps(*b) })
		if len(others) == 0 || told {
			continue
		}
		found = append(found, Check{
			Name: "attachments", Verdict: BlockedRDMA,
			Seen: fmt.Sprintf("the range of %s (%s) overlaps with that of %s: rails on one subnet get each other's traffic, and collectives hang", a.Name, a.Ranges[0], listed(others, 8)),
			Fix:  "give each attachment a subnet of its own (ipam in its spec.config)",
		})
	}
	return found
}

// unattached finds resources that no attachment uses: their devices get no address.
func (p *probe) unattached(read []*attachment.Definition, wanted int) []Check {
	if wanted == 0 && len(p.file.Network.RDMA.Resources) > 0 {
		return []Check{{
			Name: "attachments", Verdict: Warning,
			Seen: "pods are given devices by network.rdma.resources and no network.rdma.attachments: they have no net1 and so on, and devices of Ethernet no address. " +
				"Who tells NCCL to use net1 nevertheless reads Bootstrap : no socket interface found",
			Fix: fmt.Sprintf("name the attachments of these resources in network.rdma.attachments of the cluster file (oc get network-attachment-definitions -A); %s makes copies in the namespace", p.admin("--attachments=copy")),
		}}
	}
	if len(read) < wanted {
		return nil
	}
	var idle []string
	for _, name := range slices.Sorted(maps.Keys(p.file.Network.RDMA.Resources)) {
		if !slices.ContainsFunc(read, func(a *attachment.Definition) bool { return a.Resource == name }) {
			idle = append(idle, name)
		}
	}
	if len(idle) == 0 {
		return nil
	}
	return []Check{{
		Name: "attachments", Verdict: Warning, Seen: fmt.Sprintf("no attachment is of resource %s: its devices will have no address", listed(idle, 8)),
		Fix: "add its attachment to network.rdma.attachments in the cluster file, or leave the resource out",
	}}
}
