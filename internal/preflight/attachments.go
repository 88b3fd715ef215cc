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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/words"
)

// resourceAnnotation of an attachment names the resource whose devices it uses
// (k8snetworkplumbingwg/network-attachment-definition-client).
const resourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"

var attachmentKind = schema.GroupVersionResource{Group: attachmentGroup, Version: "v1", Resource: "network-attachment-definitions"}

// attachment is a network that pods are attached to.
type attachment struct {
	// name is namespace/name, as pods ask for it.
	name     string
	resource string
	ranges   []addresses
	// problem says why the ranges are not known, "" where they are.
	problem string
}

// attachments are those of the cluster file: whether they are there, are of its
// resources, and have addresses for every node that nobody else's rail has.
func (p *probe) attachments(ctx context.Context) []Check {
	if !p.rdma {
		return nil
	}
	wanted := slices.Compact(slices.Sorted(slices.Values(p.file.Network.RDMA.Attachments)))
	read := make([]*attachment, len(wanted))
	checks := make([][]Check, len(wanted))
	var all sync.WaitGroup
	for i, name := range wanted {
		all.Go(func() { read[i], checks[i] = p.attachment(ctx, name) })
	}
	all.Wait()
	found := slices.Concat(checks...)
	there := slices.DeleteFunc(read, func(a *attachment) bool { return a == nil })
	return append(append(found, shared(there)...), p.unattached(there, len(wanted))...)
}

// attachment reads one.
func (p *probe) attachment(ctx context.Context, name string) (*attachment, []Check) {
	check := Check{Name: "attachment " + name, Verdict: BlockedRDMA}
	namespace, short, _ := strings.Cut(name, "/")
	object, err := p.Dynamic.Resource(attachmentKind).Namespace(namespace).Get(ctx, short, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		check.Seen = "it does not exist"
		check.Fix = fmt.Sprintf("oc get network-attachment-definitions -n %s, then correct network.rdma.attachments in the cluster file; or mlenv admin, which makes attachments", namespace)
		return nil, []Check{check}
	case err != nil:
		return nil, []Check{unread(check.Name, "it", err)}
	}
	config, _, _ := unstructured.NestedString(object.Object, "spec", "config")
	a := &attachment{name: name, resource: object.GetAnnotations()[resourceAnnotation]}
	a.ranges, a.problem = rangesOf(config)
	return a, p.judgeAttachment(a, check)
}

// judgeAttachment looks at one by itself.
func (p *probe) judgeAttachment(a *attachment, check Check) []Check {
	resources := p.file.Network.RDMA.Resources
	if _, asked := resources[a.resource]; a.resource != "" && !asked {
		check.Seen = fmt.Sprintf("its annotation %s is %s, which network.rdma.resources of the cluster file does not have: pods would stay Pending or get no device", resourceAnnotation, a.resource)
		check.Fix = fmt.Sprintf("make it one of %s, or correct network.rdma.resources", listed(slices.Sorted(maps.Keys(resources)), 8))
		return []Check{check}
	}
	text := "resource " + a.resource
	if a.resource == "" {
		text = "no resource"
	}
	if a.problem != "" {
		check.Verdict, check.Seen = Unknown, text+"; whether it has addresses enough is not known: "+a.problem
		return []Check{check}
	}
	var names []string
	size := uint64(0)
	for _, r := range a.ranges {
		names = append(names, r.String())
		size += r.size()
	}
	if size < uint64(p.Request.Nodes) {
		check.Seen = fmt.Sprintf("its range %s has %d addresses, and %s want one each", strings.Join(names, ", "), size, words.Count(p.Request.Nodes, "node"))
		check.Fix = "give the attachment a larger range (ipam in its spec.config)"
		return []Check{check}
	}
	check.Verdict, check.Seen = OK, fmt.Sprintf("%s, addresses %s", text, strings.Join(names, ", "))
	return []Check{check}
}

// shared finds attachments whose subnets overlap: rails are told apart by their
// subnets, by NCCL, by the kernel's routes and by us. Four attachments with one range
// trained on two nodes and hung on eight.
func shared(all []*attachment) []Check {
	var found []Check
	for i, a := range all {
		var others []string
		for _, b := range all[i+1:] {
			if overlap(a.ranges, b.ranges) {
				others = append(others, b.name)
			}
		}
		// One finding for a group: its first member tells of the others.
		told := slices.ContainsFunc(all[:i], func(b *attachment) bool { return overlap(a.ranges, b.ranges) })
		if len(others) == 0 || told {
			continue
		}
		found = append(found, Check{
			Name: "attachments", Verdict: BlockedRDMA,
			Seen: fmt.Sprintf("the range of %s (%s) overlaps with that of %s: rails on one subnet get each other's traffic, and collectives hang", a.name, a.ranges[0], listed(others, 8)),
			Fix:  "give each attachment a subnet of its own (ipam in its spec.config)",
		})
	}
	return found
}

func overlap(a, b []addresses) bool {
	for _, x := range a {
		if slices.ContainsFunc(b, func(y addresses) bool { return x.subnet.Overlaps(y.subnet) }) {
			return true
		}
	}
	return false
}

// unattached finds resources that no attachment uses: their devices get no address.
func (p *probe) unattached(read []*attachment, wanted int) []Check {
	if len(read) < wanted || wanted == 0 {
		return nil
	}
	var idle []string
	for _, name := range slices.Sorted(maps.Keys(p.file.Network.RDMA.Resources)) {
		if !slices.ContainsFunc(read, func(a *attachment) bool { return a.resource == name }) {
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
