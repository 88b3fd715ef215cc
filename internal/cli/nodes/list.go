// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/hosts"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// The states of a node, the first that fits.
const (
	quarantinedState = "quarantined"
	missingState     = "missing"
	notReadyState    = "not-ready"
	cordonedState    = "cordoned"
	unhealthyState   = "unhealthy"
	avoidedState     = "avoided"
	readyState       = "ready"
	unknownState     = "unknown"
)

// node is a Kubernetes node as mlenv nodes prints it.
type node struct {
	Name string `json:"name"`
	// State is quarantined, missing, not-ready, cordoned, unhealthy, avoided, ready or unknown: the first of these that fits.
	State string `json:"state"`
	// Why is the reason for the state.
	Why string `json:"why,omitempty"`
	// GPUs is how many GPUs, or MIG devices, of the node pods can have. It is left out if you may not list nodes.
	GPUs *int64 `json:"gpus,omitempty"`
	// Free is how many of them no pod has. It is left out if you may not list the pods of all namespaces.
	Free *int64 `json:"free,omitempty"`
	// Conditions are the node's, Ready first, then problems.
	Conditions []hosts.Condition `json:"conditions,omitempty"`
	// Signs are labels and taints by which programs mark the node.
	Signs []hosts.Sign `json:"signs,omitempty"`
	// Faults are those that runs met on the node in the last 30 days, the newest first.
	Faults []hosts.Fault `json:"faults"`
	// Counted is how many of them make new runs avoid the node, if they are 2 or more: faults of the last 7 days since its last release.
	Counted int `json:"countedFaults"`
	// Quarantined is the last quarantine in the namespace, and Released the last release.
	Quarantined *hosts.Mark `json:"quarantined,omitempty"`
	Released    *hosts.Mark `json:"released,omitempty"`
	// Unknown names what you may not read: gpus, free, conditions, faults, quarantine.
	Unknown []string `json:"unknown,omitempty"`
}

type list []node

// sources are what was read about nodes. A nil map was not read.
type sources struct {
	nodes   map[string]*corev1.Node
	pods    []corev1.Pod
	allPods bool
	faults  map[string][]hosts.Fault
	records map[string]hosts.Record
	unread  []string
}

// read returns the nodes, and what is missing. Its error is that of a cluster that does not answer.
func read(ctx context.Context, clients *kube.Clients, everywhere bool, now time.Time) (all list, notes []string, err error) {
	var s sources
	var problems []error
	skip := func(err error, what ...string) bool {
		if err == nil {
			return false
		}
		err = kube.Problem(err)
		problems = append(problems, err)
		note := fmt.Sprintf("unknown: %s: %v", strings.Join(what, ", "), err)
		if next := fail.NextOf(err); next != "" {
			note += "; " + strings.ReplaceAll(next, "\n", "; ")
		}
		notes, s.unread = append(notes, note), append(s.unread, what...)
		return true
	}
	found, err := clients.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if !skip(err, "gpus", "conditions") {
		s.nodes = map[string]*corev1.Node{}
		for i := range found.Items {
			s.nodes[found.Items[i].Name] = &found.Items[i]
		}
		pods, err := clients.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: fmt.Sprintf("status.phase!=%s,status.phase!=%s", corev1.PodSucceeded, corev1.PodFailed)})
		if s.allPods = !skip(err, "free"); s.allPods {
			s.pods = pods.Items
		}
	} else {
		s.unread = append(s.unread, "free")
	}
	s.records, err = hosts.Records(ctx, clients.Kube, clients.Namespace)
	skip(err, "quarantine")
	runs, missing, err := memories(ctx, clients, everywhere)
	if !skip(err, "faults") {
		notes = append(notes, missing...)
	}
	s.faults = hosts.History(runs, now.Add(-hosts.Kept), now)
	for _, err := range problems {
		if reason := fail.ReasonOf(err); reason != fail.PermissionDenied && reason != fail.InvalidInput {
			return nil, nil, err
		}
	}
	return s.list(now), notes, nil
}

// list returns the nodes with GPUs, those that are quarantined, and those on which a run met a fault, by name.
func (s sources) list(now time.Time) list {
	names := map[string]bool{}
	for name, n := range s.nodes {
		if len(diagnose.GPUs(n.Status.Capacity)) > 0 {
			names[name] = true
		}
	}
	for name := range s.faults {
		names[name] = true
	}
	for name, r := range s.records {
		if r.Active() {
			names[name] = true
		}
	}
	all := list{}
	for _, name := range slices.SortedFunc(maps.Keys(names), humanize.Natural) {
		all = append(all, s.node(name, now))
	}
	return all
}

func (s sources) node(name string, now time.Time) node {
	record := s.records[name]
	counted := hosts.Counted(s.faults[name], record, now)
	n := node{Name: name, Faults: s.faults[name], Counted: len(counted), Quarantined: record.Quarantined, Released: record.Released,
		Unknown: s.unread}
	if n.Faults == nil {
		n.Faults = []hosts.Fault{}
	}
	found := s.nodes[name]
	if found != nil {
		n.Conditions, n.Signs = hosts.Conditions(found), hosts.Signs(found)
		n.GPUs, n.Free = s.gpus(found)
	}
	avoided := hosts.Avoided{Node: name, Faults: counted}
	switch problems := n.problems(); {
	case record.Active():
		n.State, n.Why = quarantinedState, record.Quarantined.String()
	case s.nodes != nil && found == nil:
		n.State = missingState
	case len(n.Conditions) > 0 && n.Conditions[0].Type == string(corev1.NodeReady) && n.Conditions[0].Problem:
		n.State, n.Why = notReadyState, strings.Join(problems, "; ")
	case found != nil && found.Spec.Unschedulable:
		n.State, n.Why = cordonedState, strings.Join(problems, "; ")
	case len(problems) > 0:
		n.State, n.Why = unhealthyState, strings.Join(problems, "; ")
	case len(counted) >= hosts.Limit:
		n.State, n.Why = avoidedState, avoided.Why()
	case found == nil:
		n.State = unknownState
	default:
		n.State = readyState
	}
	return n
}

// problems describes the conditions that mean a problem, and the marks of programs that repair or change the node.
func (n node) problems() (texts []string) {
	for _, c := range n.Conditions {
		if c.Problem {
			texts = append(texts, strings.TrimSuffix(fmt.Sprintf("%s=%s: %s", c.Type, c.Status, humanize.OneLine(cmp.Or(c.Message, c.Reason), 100)),
				": "))
		}
	}
	for _, sign := range n.Signs {
		if sign.By != hosts.Others {
			texts = append(texts, sign.Text)
		}
	}
	return texts
}

// gpus returns how many GPUs pods can have, and how many none has.
func (s sources) gpus(n *corev1.Node) (all, free *int64) {
	all, free = new(int64(0)), new(int64(0))
	for _, name := range diagnose.GPUs(n.Status.Allocatable) {
		has := n.Status.Allocatable[name]
		held := diagnose.UsageOf(n.Name, s.pods, name)
		*all += has.Value()
		*free += max(0, has.Value()-held.Amount.Value())
	}
	if !s.allPods {
		free = nil
	}
	return all, free
}

func (l list) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tSTATE\tGPUS\tFREE\tCONDITIONS\tFAULTS IN 30 DAYS\tWHY")
	for _, n := range l {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, n.State, number(n.GPUs), number(n.Free), n.conditions(), n.faults(),
			cmp.Or(n.Why, "-"))
	}
	return w.Flush()
}

// conditions names Ready, if it is true, and the conditions that mean a problem, as in "Ready, GpuMemWatch".
func (n node) conditions() string {
	var names []string
	for _, c := range n.Conditions {
		switch ready := c.Type == string(corev1.NodeReady); {
		case ready && c.Problem:
			names = append(names, "not Ready")
		case ready, c.Problem:
			names = append(names, c.Type)
		}
	}
	return cmp.Or(strings.Join(names, ", "), unknownState)
}

func number(n *int64) string {
	if n == nil {
		return unknownState
	}
	return strconv.FormatInt(*n, 10)
}

// faults counts the faults by kind, as in "2 gpu, 1 hang".
func (n node) faults() string {
	var parts []string
	for _, kind := range receipt.FaultKinds() {
		count := 0
		for _, f := range n.Faults {
			if f.Kind == kind {
				count++
			}
		}
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count, kind))
		}
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, ", ")
	case slices.Contains(n.Unknown, "faults"):
		return unknownState
	}
	return "-"
}
