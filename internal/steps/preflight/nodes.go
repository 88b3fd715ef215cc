package preflight

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

// listPlaces are the nodes that the pods may be on.
func (p *probe) listPlaces(ctx context.Context) ([]diagnose.Candidate, error) {
	list, err := p.Clients.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return diagnose.Candidates(list.Items, p.spec()), nil
}

// seat is a node, with what the pods want of it.
type seat struct {
	diagnose.Candidate
	// small are resources that the node has too little of at any time, short those
	// that others hold now.
	small, short []corev1.ResourceName
	// devices says what it has of each resource that counts, and who has it.
	devices []string
	// unknown is why it is not known what others hold.
	unknown error
}

// nodes says of each node that may be used whether the pods can be on it, and
// whether there are enough.
func (p *probe) nodes(ctx context.Context) []Check {
	places, err := p.places()
	if err != nil {
		return []Check{unread("nodes", "the nodes", err)}
	}
	seats := make([]seat, len(places))
	var all sync.WaitGroup
	for i, place := range places {
		all.Go(func() { seats[i] = p.seat(ctx, place) })
	}
	all.Wait()
	var checks []Check
	for _, s := range seats {
		checks = append(checks, s.check())
	}
	checks = append(checks, p.enough(seats)...)
	if i := slices.IndexFunc(seats, func(s seat) bool { return s.unknown != nil }); i >= 0 {
		checks = append(checks, unread("free devices", "the pods of other namespaces", seats[i].unknown))
	}
	return checks
}

// counted are the resources whose holders are told: GPUs and the rails' functions.
func (p *probe) counted() []corev1.ResourceName {
	names := []corev1.ResourceName{gpu}
	if p.rdma {
		for _, name := range slices.Sorted(maps.Keys(p.file.Network.RDMA.Resources)) {
			names = append(names, corev1.ResourceName(name))
		}
	}
	return names
}

func (p *probe) seat(ctx context.Context, place diagnose.Candidate) seat {
	s := seat{Candidate: place}
	if place.Node == nil {
		return s
	}
	var pods []corev1.Pod
	pods, s.unknown = p.podsOn(ctx, place.Name)
	for _, name := range p.counted() {
		ask, has := diagnose.RequestOf(p.spec(), name), place.Node.Status.Allocatable[name]
		held := diagnose.UsageOf(place.Name, pods, name)
		free := has.DeepCopy()
		free.Sub(held.Amount)
		text := fmt.Sprintf("%s %s", name, has.String())
		switch {
		case has.Cmp(ask) < 0:
			s.small = append(s.small, name)
			text += fmt.Sprintf(" (want %s)", ask.String())
		case s.unknown != nil:
			text += ", free unknown"
		default:
			if free.Sign() < 0 {
				free = resource.Quantity{}
			}
			if free.Cmp(ask) < 0 {
				s.short = append(s.short, name)
			}
			text += fmt.Sprintf(", %s free", free.String())
		}
		if len(held.Holders) > 0 {
			text += " (" + listed(held.Holders, 4) + ")"
		}
		s.devices = append(s.devices, text)
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		ask, has := diagnose.RequestOf(p.spec(), name), place.Node.Status.Allocatable[name]
		if has.Cmp(ask) < 0 {
			s.small = append(s.small, name)
			s.devices = append(s.devices, fmt.Sprintf("%s %s (want %s)", name, has.String(), ask.String()))
		}
	}
	return s
}

// podsOn are a node's pods less the environment's own, whose place it may keep.
func (p *probe) podsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := p.Clients.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", node),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)), fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))).String(),
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return pod.Namespace == p.Request.Namespace && pod.Labels[objects.EnvironmentLabel] == p.Request.Name
	}), nil
}

func (s seat) check() Check {
	check := Check{Name: "node " + s.Name, Verdict: OK, Seen: cmp.Or(s.Problem, "ready"), Fix: s.Next}
	if len(s.devices) > 0 {
		check.Seen += "; " + strings.Join(s.devices, "; ")
	}
	if s.Problem != "" || len(s.small)+len(s.short) > 0 {
		check.Verdict = Warning
	}
	return check
}

// enough compares the nodes that can be used with those that are asked for.
func (p *probe) enough(seats []seat) []Check {
	wanted := p.Request.Nodes
	// fit counts the nodes without a lasting problem that have enough of what is asked of them.
	fit := func(has func(seat) bool) (names []string) {
		for _, s := range seats {
			if has(s) {
				names = append(names, s.Name)
			}
		}
		return names
	}
	lasting := func(s seat) bool { return s.Problem != "" && s.Final }
	rails := func(name corev1.ResourceName) bool {
		_, rail := p.file.Network.RDMA.Resources[string(name)]
		return rail
	}
	notRail := func(name corev1.ResourceName) bool { return !rails(name) }
	usable := fit(func(s seat) bool { return !lasting(s) && !slices.ContainsFunc(s.small, notRail) })
	if len(usable) < wanted {
		check := Check{Name: "nodes", Verdict: Blocked, Reason: fail.NodesUnavailable, Seen: fmt.Sprintf("%d can be used, want %d", len(usable), wanted), Fix: "ask for fewer with --nodes, or list more in nodes.gpu_nodes of the cluster file"}
		// What keeps the first node away is the reason, and is told in its own line.
		for _, s := range slices.Backward(seats) {
			switch {
			case slices.Contains(s.small, gpu):
				check.Reason, check.Fix = fail.GPUsUnavailable, "ask for what the nodes have, with --gpus-per-node or --nodes"
			case slices.ContainsFunc(s.small, notRail):
				check.Fix = "lower resources.requests in the cluster file to what the nodes have"
			case lasting(s):
				check.Reason, check.Fix = s.Reason, s.Next
			default:
				continue
			}
			check.Seen = fmt.Sprintf("%d can be used, want %d: %s: %s", len(usable), wanted, s.Name, s.check().Seen)
		}
		return []Check{check}
	}
	checks := []Check{{Name: "nodes", Verdict: OK, Seen: fmt.Sprintf("%d can be used, want %d", len(usable), wanted)}}
	railed := fit(func(s seat) bool { return slices.Contains(usable, s.Name) && !slices.ContainsFunc(s.small, rails) })
	if len(railed) < wanted {
		checks = append(checks, Check{
			Name: "rails", Verdict: BlockedRDMA, Seen: fmt.Sprintf("%d nodes have the resources of network.rdma.resources, want %d", len(railed), wanted),
			Fix: "oc get sriovnetworknodestates -n openshift-sriov-network-operator (is the node policy synced?), or correct network.rdma.resources in the cluster file",
		})
	}
	p.free = fit(func(s seat) bool { return slices.Contains(usable, s.Name) && s.Problem == "" && len(s.short) == 0 })
	if now := p.free; len(now) < wanted {
		checks[0].Verdict = Warning
		checks[0].Seen += fmt.Sprintf("; of these %d at this moment", len(now))
		checks[0].Fix = "wait until it is given back, ask its holders, or ask for fewer with --nodes"
	}
	return checks
}
