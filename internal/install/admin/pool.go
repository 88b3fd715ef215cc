package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	machines "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

func poolResource() schema.GroupVersionResource {
	return machines.GroupVersion.WithResource("machineconfigpools")
}

// Pool is the state of a MachineConfigPool's roll-out.
type Pool struct {
	Name string `json:"name"`
	// State is updated, updating, degraded or paused.
	State    string `json:"state"`
	Machines int32  `json:"machines"`
	Updated  int32  `json:"updated"`
	Ready    int32  `json:"ready"`
	Degraded int32  `json:"degraded"`
	Paused   bool   `json:"paused"`
	Message  string `json:"message,omitempty"`
	// Current and Target are the rendered configurations that all nodes have, and that they will have.
	Current string `json:"current"`
	Target  string `json:"target"`
	// sources are the MachineConfigs of which Current was rendered.
	sources  []string
	selector string
}

// The states of a pool.
const (
	poolUpdated  = "updated"
	poolUpdating = "updating"
	poolDegraded = "degraded"
	poolPaused   = "paused"
)

// String describes the progress of the roll-out.
func (p Pool) String() string {
	text := fmt.Sprintf("pool %s: %s: %d of %d machines updated, %d ready, %d degraded", p.Name, p.State, p.Updated, p.Machines, p.Ready, p.Degraded)
	if p.Message != "" {
		text += ": " + p.Message
	}
	return text
}

func getPool(ctx context.Context, client dynamic.Interface, name string) (Pool, error) {
	object, err := client.Resource(poolResource()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Pool{}, fail.Advise(fail.Becausef(fail.InvalidInput, "reading MachineConfigPool %s: it does not exist", name), "oc get machineconfigpools")
	} else if err != nil {
		return Pool{}, kube.Problem(fmt.Errorf("reading MachineConfigPool %s: %w", name, err))
	}
	return poolOf(object), nil
}

func poolOf(object *unstructured.Unstructured) Pool {
	var live machines.MachineConfigPool
	// The API server has checked the types of all fields.
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &live)
	p := Pool{
		Name: live.Name, State: poolUpdating, Paused: live.Spec.Paused, Current: live.Status.Configuration.Name, Target: live.Spec.Configuration.Name,
		Machines: live.Status.MachineCount, Updated: live.Status.UpdatedMachineCount, Ready: live.Status.ReadyMachineCount, Degraded: live.Status.DegradedMachineCount,
	}
	if selector := live.Spec.NodeSelector; selector != nil {
		p.selector = labels.Set(selector.MatchLabels).String()
	}
	for _, source := range live.Status.Configuration.Source {
		p.sources = append(p.sources, source.Name)
	}
	is := map[machines.MachineConfigPoolConditionType]bool{}
	for _, condition := range live.Status.Conditions {
		is[condition.Type] = condition.Status == corev1.ConditionTrue
		if is[condition.Type] && strings.HasSuffix(string(condition.Type), "Degraded") && condition.Message != "" {
			p.Message = condition.Message
		}
	}
	switch {
	case is[machines.MachineConfigPoolDegraded]:
		p.State = poolDegraded
	case p.Paused && p.Current != p.Target:
		p.State = poolPaused
	case is[machines.MachineConfigPoolUpdated] && p.Current == p.Target && live.Status.ObservedGeneration >= live.Generation:
		p.State = poolUpdated
	}
	return p
}

func (p Pool) has(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(p.sources, name) })
}

// Follow watches the pool until all its nodes have the MachineConfigs of names. It reports changes of the counts,
// and which node is drained or reboots. Errors: NodesUnavailable if the pool is degraded or paused, or the time is over; Cancelled.
func Follow(ctx context.Context, c *kube.Clients, pool Pool, names []string, report func(string)) (Pool, error) {
	last := ""
	err := kube.UntilOne(ctx, "pool "+pool.Name, c.Objects.Resource(poolResource()), pool.Name,
		func(live *unstructured.Unstructured) (bool, error) {
			if live == nil {
				return false, fail.Becausef(fail.NodesUnavailable, "following pool %s: it was deleted", pool.Name)
			}
			pool = poolOf(live)
			if line := pool.String() + nodesOf(ctx, c, pool); line != last {
				last = line
				report(line)
			}
			switch pool.State {
			case poolDegraded:
				return false, fail.Advise(fail.Becausef(fail.NodesUnavailable, "following %s", pool), "oc describe machineconfigpool %s", pool.Name)
			case poolPaused:
				return false, fail.Advise(fail.Becausef(fail.NodesUnavailable, "following %s", pool), "%s", resume(pool.Name))
			}
			return pool.State == poolUpdated && pool.has(names), nil
		})
	if err == nil || ctx.Err() == nil {
		return pool, err
	}
	reason := fail.NodesUnavailable
	if errors.Is(context.Cause(ctx), context.Canceled) {
		reason = fail.Cancelled
	}
	return pool, fail.Advise(fail.Becausef(reason, "following %s: %w", pool, context.Cause(ctx)),
		"oc describe machineconfigpool %s (the roll-out continues by itself)", pool.Name)
}

func resume(pool string) string {
	return fmt.Sprintf(`oc patch machineconfigpool %s --type=merge -p '{"spec":{"paused":false}}'`, pool)
}

// nodesOf describes the nodes that change now: "; wrk-97 reboots".
func nodesOf(ctx context.Context, c *kube.Clients, pool Pool) string {
	nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: pool.selector})
	if err != nil {
		return fmt.Sprintf("; its nodes cannot be read: %v", err)
	}
	text := ""
	for i := range nodes.Items {
		if doing := nodeDoing(&nodes.Items[i], pool.Target); doing != "" {
			text += "; " + nodes.Items[i].Name + " " + doing
		}
	}
	return text
}

// nodeDoing reads the annotations of the machine config daemon
// (openshift/machine-config-operator:pkg/daemon/constants). It is "" for a node that nothing changes.
func nodeDoing(node *corev1.Node, target string) string {
	const prefix = "machineconfiguration.openshift.io/"
	state := node.Annotations[prefix+"state"]
	if node.Annotations[prefix+"desiredConfig"] != target {
		return "" // it belongs to another pool, or the operator has not reached it
	}
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	switch {
	case state == "Degraded" || state == "Unreconcilable":
		return "fails: " + node.Annotations[prefix+"reason"]
	case node.Annotations[prefix+"currentConfig"] == target && state == "Done":
		return ""
	case !ready:
		return "reboots"
	case node.Spec.Unschedulable:
		return "is drained"
	}
	return "is updated"
}
