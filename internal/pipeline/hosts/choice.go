// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// faultsTime bounds the reading of receipts, which no run depends on.
const faultsTime = 20 * time.Second

// Choice is which Kubernetes nodes a new run must not use, and which it avoids.
type Choice struct {
	Namespace string
	// Quarantined are sorted by name.
	Quarantined []Record
	// Avoided are sorted by name. No quarantined node is among them.
	Avoided []Avoided
	// UnreadRecord and UnreadFaults are why the record, or some receipts, could not be read; nil if they were.
	UnreadRecord, UnreadFaults error
}

// Choose reads the namespace's record and receipts. What it cannot read is missing in the choice.
func Choose(ctx context.Context, client kubernetes.Interface, namespace string, now time.Time) Choice {
	c := Choice{Namespace: namespace}
	var records map[string]Record
	records, c.UnreadRecord = Records(ctx, client, namespace)
	for _, name := range slices.Sorted(maps.Keys(records)) {
		if r := records[name]; r.Active() {
			c.Quarantined = append(c.Quarantined, r)
		}
	}
	reading, cancel := context.WithTimeout(ctx, faultsTime)
	defer cancel()
	var runs []receipt.Memory
	runs, c.UnreadFaults = receipt.Memories(reading, client, namespace)
	for name, faults := range History(runs, now.Add(-Window), now) {
		if counted := Counted(faults, records[name], now); len(counted) >= Limit && !records[name].Active() {
			c.Avoided = append(c.Avoided, Avoided{Node: name, Faults: counted})
		}
	}
	slices.SortFunc(c.Avoided, func(a, b Avoided) int { return cmp.Compare(a.Node, b.Node) })
	return c
}

// For returns the choice among the nodes of a request: a node that the cluster file does not list, or that the request excludes, is no
// choice.
func (c Choice) For(r objects.Request) Choice {
	other := func(node string) bool {
		listed := r.Cluster.Nodes.GPUNodes
		return len(listed) > 0 && !slices.Contains(listed, node) || slices.Contains(r.ExcludeNodes, node)
	}
	c.Quarantined = slices.DeleteFunc(slices.Clone(c.Quarantined), func(r Record) bool { return other(r.Node) })
	c.Avoided = slices.DeleteFunc(slices.Clone(c.Avoided), func(a Avoided) bool { return other(a.Node) })
	return c
}

// QuarantinedNodes returns the names.
func (c Choice) QuarantinedNodes() []string {
	return humanize.Each(c.Quarantined, func(r Record) string { return r.Node })
}

// AvoidedNodes returns the names.
func (c Choice) AvoidedNodes() []string {
	return humanize.Each(c.Avoided, func(a Avoided) string { return a.Node })
}

// Record returns the quarantine of a node, nil if it has none.
func (c Choice) Record(node string) *Record {
	if i := slices.IndexFunc(c.Quarantined, func(r Record) bool { return r.Node == node }); i >= 0 {
		return &c.Quarantined[i]
	}
	return nil
}

// Why returns why new runs avoid a node, "" if they do not.
func (c Choice) Why(node string) string {
	if i := slices.IndexFunc(c.Avoided, func(a Avoided) bool { return a.Node == node }); i >= 0 {
		return c.Avoided[i].Why()
	}
	return ""
}

// Releases returns the commands that end the quarantines of nodes.
func Releases(nodes []string, namespace string) string {
	return strings.Join(humanize.Each(nodes, func(node string) string { return Release(node, namespace) }), "; ")
}

// TooFew returns the error, NodesUnavailable, of a request for more nodes than the cluster file lists without the quarantined ones. Without
// a list only the nodes themselves show whether enough are left.
func (c Choice) TooFew(r objects.Request) error {
	c = c.For(r)
	left := slices.DeleteFunc(slices.Clone(r.Cluster.Nodes.GPUNodes), func(node string) bool {
		return slices.Contains(r.ExcludeNodes, node) || c.Record(node) != nil
	})
	if len(r.Cluster.Nodes.GPUNodes) == 0 || len(c.Quarantined) == 0 || len(left) >= r.Nodes {
		return nil
	}
	quarantines := humanize.Each(c.Quarantined, func(r Record) string { return fmt.Sprintf("%s (%s)", r.Node, r.Quarantined) })
	return fail.Advise(fail.Becausef(fail.NodesUnavailable, "choosing Kubernetes nodes: the quarantine in namespace %s leaves %s of "+
		"nodes.gpu_nodes of the cluster file of %s, want %d; quarantined: %s", c.Namespace, humanize.Count(len(left), "node"),
		r.Cluster.Cluster.Name, r.Nodes, strings.Join(quarantines, ", ")), "%s; or ask for fewer nodes",
		Releases(c.QuarantinedNodes(), c.Namespace))
}
