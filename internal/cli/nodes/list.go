// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// The states of a node, the first that fits.
const (
	notReadyState  = "not-ready"
	cordonedState  = "cordoned"
	unhealthyState = "unhealthy"
	readyState     = "ready"
)

// unknown is what the table shows of something that nobody reports, or that the user may not read.
const unknown = "unknown"

// node is a Kubernetes node as mlenv nodes prints it.
type node struct {
	// Name is the name of the Kubernetes node.
	Name string `json:"name"`
	// State is the first that fits of not-ready, cordoned, unhealthy and ready.
	State string `json:"state"`
	// Why is the reason for the state.
	Why string `json:"why,omitempty"`
	// GPUs is how many GPUs or MIG devices of the node pods can use.
	GPUs int64 `json:"gpus"`
	// Free is how many of them no pod uses. It is left out if you may not list the pods of all namespaces.
	Free *int64 `json:"free,omitempty"`
	// Conditions are its conditions: Ready first, then problems.
	Conditions []condition `json:"conditions,omitempty"`
	// Signs are labels and taints by which programs mark the node.
	Signs []sign `json:"signs,omitempty"`
}

type list []node

// readNodes returns the nodes with GPUs, sorted by name. If the user may not list the pods of all namespaces, the nodes have no Free, and
// warning is the reason.
func readNodes(ctx context.Context, clients *kube.Clients) (all list, warning string, err error) {
	found, err := clients.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, "", kube.Problem(fmt.Errorf("listing nodes: %w", err))
	}
	pods, err := clients.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fmt.Sprintf("status.phase!=%s,status.phase!=%s", corev1.PodSucceeded, corev1.PodFailed)})
	if err != nil {
		err = kube.Problem(fmt.Errorf("listing the pods of all namespaces: %w", err))
		if fail.ReasonOf(err) != fail.PermissionDenied {
			return nil, "", err
		}
		pods, warning = nil, fmt.Sprintf("how many GPUs are free is unknown: %v", err)
		if next := fail.NextOf(err); next != "" {
			warning += "; " + strings.ReplaceAll(next, "\n", "; ")
		}
	}
	all = list{}
	for i := range found.Items {
		if n := &found.Items[i]; len(diagnose.GPUs(n.Status.Capacity)) > 0 {
			all = append(all, nodeOf(n, pods))
		}
	}
	slices.SortFunc(all, func(a, b node) int { return humanize.Natural(a.Name, b.Name) })
	return all, warning, nil
}

// nodeOf describes a node. pods are those of all namespaces, nil if they are not known.
func nodeOf(found *corev1.Node, pods *corev1.PodList) node {
	n := node{Name: found.Name, State: readyState, Conditions: conditionsOf(found), Signs: signsOf(found)}
	n.GPUs, n.Free = gpus(found, pods)
	problems := n.problems()
	switch {
	case len(n.Conditions) > 0 && n.Conditions[0].Type == string(corev1.NodeReady) && n.Conditions[0].Problem:
		n.State = notReadyState
	case found.Spec.Unschedulable:
		n.State = cordonedState
	case len(problems) > 0:
		n.State = unhealthyState
	}
	n.Why = strings.Join(problems, "; ")
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
	for _, s := range n.Signs {
		if s.By != others {
			texts = append(texts, s.Text)
		}
	}
	return texts
}

// gpus returns how many GPUs pods can have, and how many none has.
func gpus(n *corev1.Node, pods *corev1.PodList) (all int64, free *int64) {
	if pods != nil {
		free = new(int64(0))
	}
	for _, name := range diagnose.GPUs(n.Status.Allocatable) {
		has := n.Status.Allocatable[name]
		all += has.Value()
		if pods != nil {
			held := diagnose.UsageOf(n.Name, pods.Items, name)
			*free += max(0, has.Value()-held.Amount.Value())
		}
	}
	return all, free
}

func (l list) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tSTATE\tGPUS\tFREE\tCONDITIONS\tWHY")
	for _, n := range l {
		free := unknown
		if n.Free != nil {
			free = strconv.FormatInt(*n.Free, 10)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", n.Name, n.State, n.GPUs, free, n.conditions(), cmp.Or(n.Why, "-"))
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
	return cmp.Or(strings.Join(names, ", "), unknown)
}
