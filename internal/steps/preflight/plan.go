// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/racks"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// Plan is what a run would create on the cluster as it is now, with the checks that decide whether it would start.
type Plan struct {
	// Verdict is the result in a sentence, such as "tcp because ..." or "blocked because of ...".
	Verdict string `json:"verdict"`
	// Blocked is true if no environment of the request can start.
	Blocked bool `json:"blocked"`
	// Environment is the name of the environment.
	Environment string `json:"environment"`
	// Namespace is its namespace.
	Namespace string `json:"namespace"`
	// Asked is the requested mode: auto, rdma or tcp.
	Asked agent.Mode `json:"asked"`
	// Mode is the mode that the run would be in: rdma or tcp.
	Mode agent.Mode `json:"mode"`
	// Why is the reason for the mode.
	Why string `json:"why"`
	// Nodes is the number of nodes.
	Nodes int `json:"nodes"`
	// GPUsPerNode is the number of GPUs per node.
	GPUsPerNode int `json:"gpusPerNode"`
	// FreeNodes are the Kubernetes nodes that have room for the pods at this moment.
	FreeNodes []string `json:"freeNodes"`
	// Racks are the racks of the free nodes, each empty if it is unknown.
	Racks []string `json:"racks,omitempty"`
	// Objects are the objects that the run would create: kinds and names, in order.
	Objects []string `json:"objects"`
	// Storage is what the claims ask for together, if none of them exists.
	Storage int64 `json:"storageBytes,omitempty"`
	// Expected is the bus bandwidth that is expected, 0 if none is.
	Expected rdma.BytesPerSecond `json:"expectedBytesPerSecond,omitempty"`
	// Source is where the expected bandwidth comes from, or why there is none.
	Source string `json:"expectedBy"`
	// Checks are all checks, with what they saw.
	Checks []Check `json:"checks"`
}

// PlanOf returns the plan that follows from a report. The client reads the receipts of earlier runs.
func PlanOf(ctx context.Context, client kubernetes.Interface, r Report) Plan {
	mode, why := r.Mode()
	p := Plan{
		Verdict: r.Verdict(), Blocked: r.Err() != nil, Environment: r.request.Name, Namespace: r.request.Namespace,
		Asked: r.Asked, Mode: mode, Why: why,
		Nodes: r.request.Nodes, GPUsPerNode: r.request.GPUs(), FreeNodes: r.free, Checks: r.Checks,
	}
	p.Racks = network.Racks(ctx, client, r.request.Cluster.Nodes, kueue.Queue{Namespace: p.Namespace, Name: r.request.Queue}, p.FreeNodes)
	planned, known := r.objects[mode]
	if known {
		names := r.request.Names()
		p.Objects = append(p.Objects, "Lease "+names.Lease, "Secret "+names.ServerSecret, "Secret "+names.ClientSecret)
		for _, object := range planned.InOrder() {
			text := object.GetObjectKind().GroupVersionKind().Kind + " " + object.GetName()
			if claim, ok := object.(*corev1.PersistentVolumeClaim); ok {
				p.Storage += claim.Spec.Resources.Requests.Storage().Value()
				text += fmt.Sprintf(", %s, unless it exists", claim.Spec.Resources.Requests.Storage())
			}
			p.Objects = append(p.Objects, text)
		}
		if planned.PodMonitor != nil {
			p.Objects = append(p.Objects, "Secret "+names.MetricsSecret, "PodMonitor "+names.PodMonitor)
		}
		for _, claim := range planned.StatefulSet.Spec.VolumeClaimTemplates {
			p.Storage += int64(p.Nodes) * claim.Spec.Resources.Requests.Storage().Value()
			p.Objects = append(p.Objects, fmt.Sprintf("PersistentVolumeClaim %s of each node, %s, unless it exists", claim.Name,
				claim.Spec.Resources.Requests.Storage()))
		}
	}
	file := r.request.Cluster.Network.RDMA
	switch {
	case !known:
		p.Source = "not known"
	case mode == agent.TCP && r.request.Cluster.Network.TCP.ExpectedBandwidth > 0:
		p.Expected = rdma.BytesPerSecond(r.request.Cluster.Network.TCP.ExpectedBandwidth)
		p.Source = "network.tcp.expected_bandwidth of the cluster file"
	case mode == agent.TCP:
		p.Source = "nothing is expected of TCP"
	case file.ExpectedBandwidth > 0:
		p.Expected, p.Source = rdma.BytesPerSecond(file.ExpectedBandwidth), "network.rdma.expected_bandwidth of the cluster file"
	default:
		p.Expected, p.Source = expectedBefore(ctx, client, p)
	}
	return p
}

func expectedBefore(ctx context.Context, client kubernetes.Interface, p Plan) (expected rdma.BytesPerSecond, source string) {
	last, ok, err := receipt.Latest(ctx, client, p.Namespace, p.Environment)
	switch {
	case err != nil:
		return 0, fmt.Sprintf("not known: %v", err)
	case ok && last.Fabric != nil && last.Fabric.Expected > 0:
		return last.Fabric.Expected, fmt.Sprintf("the ports and PCIe links of the nodes of run %s; it reached %s", last.Run,
			last.Fabric.Bandwidth)
	}
	return 0, "not known before the nodes run: check-fabric derives it from their ports and PCIe links"
}

// order returns the order that ranks would have on the free nodes, and what it saves.
func (p Plan) order() string {
	names := map[string][]string{} // by rack
	order := racks.RankOrder(p.Racks)
	var listed []string
	for i := range p.FreeNodes {
		if order != nil {
			i = order[i]
		}
		rack := cmp.Or(p.Racks[i], "unknown")
		if names[rack] == nil {
			listed = append(listed, rack)
		}
		names[rack] = append(names[rack], p.FreeNodes[i])
	}
	if len(listed) == 1 {
		return "in the order of the pods: the rack of all free nodes is " + listed[0]
	}
	for i, rack := range listed {
		listed[i] = rack + " (" + strings.Join(names[rack], ", ") + ")"
	}
	return fmt.Sprintf("by rack: %s; a ring of all free nodes crosses between racks %d times, %d without this order",
		strings.Join(listed, ", "), racks.Crossings(p.Racks, order), racks.Crossings(p.Racks, nil))
}

// Print writes the plan as text, without the verdict and the checks.
func (p Plan) Print(w io.Writer) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("environment", "%s/%s", p.Namespace, p.Environment)
	row("nodes", "%s with %s each; free now: %s", humanize.Count(p.Nodes, "node"), humanize.Count(p.GPUsPerNode, "GPU"),
		cmp.Or(strings.Join(p.FreeNodes, ", "), "none, or not known"))
	if p.Storage > 0 {
		format := resource.BinarySI
		if p.Storage%(1<<30) != 0 {
			format = resource.DecimalSI
		}
		row("storage", "%s in all, as far as its claims do not exist yet", resource.NewQuantity(p.Storage, format))
	}
	if p.Nodes > 1 && len(p.FreeNodes) > 1 {
		row("ranks", "%s", p.order())
	}
	row("transport", "%s because %s", p.Mode, p.Why)
	if p.Expected > 0 {
		row("bandwidth", "%s, by %s", p.Expected, p.Source)
	} else {
		row("bandwidth", "%s", p.Source)
	}
	name := "objects"
	for _, object := range p.Objects {
		row(name, "%s", object)
		name = ""
	}
}
