package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

func poolResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "machineconfiguration.openshift.io", Version: "v1", Resource: "machineconfigpools"}
}

// Pool is the roll-out of a MachineConfigPool.
type Pool struct {
	Name string `json:"name"`
	// State is updated, updating, degraded or paused.
	State    string `json:"state"`
	Machines int64  `json:"machines"`
	Updated  int64  `json:"updated"`
	Ready    int64  `json:"ready"`
	Degraded int64  `json:"degraded"`
	Paused   bool   `json:"paused"`
	// Message is why it is degraded.
	Message string `json:"message,omitempty"`
	// Current and Target are the rendered configurations that all nodes have, and that they shall have.
	Current string `json:"current"`
	Target  string `json:"target"`
	// currentSources and targetSources are the MachineConfigs that those are made of.
	currentSources, targetSources []string
	selector                      string
}

// The states of a pool.
const (
	poolUpdated  = "updated"
	poolUpdating = "updating"
	poolDegraded = "degraded"
	poolPaused   = "paused"
)

// String says how far it is.
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
		return Pool{}, fail.Advise(fail.Becausef(fail.InvalidInput, "reading MachineConfigPool %s: there is none", name), "oc get machineconfigpools")
	} else if err != nil {
		return Pool{}, kube.Problem(fmt.Errorf("reading MachineConfigPool %s: %w", name, err))
	}
	return poolOf(object), nil
}

// poolOf reads what the machine config controller says
// (openshift/api:machineconfiguration/v1, MachineConfigPoolStatus).
func poolOf(object *unstructured.Unstructured) Pool {
	number := func(fields ...string) int64 {
		n, _, _ := unstructured.NestedInt64(object.Object, fields...)
		return n
	}
	text := func(fields ...string) string {
		s, _, _ := unstructured.NestedString(object.Object, fields...)
		return s
	}
	p := Pool{
		Name: object.GetName(), State: poolUpdating,
		Machines: number("status", "machineCount"), Updated: number("status", "updatedMachineCount"),
		Ready: number("status", "readyMachineCount"), Degraded: number("status", "degradedMachineCount"),
		Current: text("status", "configuration", "name"), Target: text("spec", "configuration", "name"),
		currentSources: sources(object, "status"), targetSources: sources(object, "spec"),
	}
	p.Paused, _, _ = unstructured.NestedBool(object.Object, "spec", "paused")
	matchLabels, _, _ := unstructured.NestedStringMap(object.Object, "spec", "nodeSelector", "matchLabels")
	p.selector = labels.Set(matchLabels).String()
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	is := map[string]bool{}
	for _, condition := range conditions {
		fields, _ := condition.(map[string]any)
		name, _ := fields["type"].(string)
		is[name] = fields["status"] == "True"
		if message, _ := fields["message"].(string); is[name] && strings.HasSuffix(name, "Degraded") && message != "" {
			p.Message = message
		}
	}
	switch {
	case is["Degraded"]:
		p.State = poolDegraded
	case p.Paused && p.Current != p.Target:
		p.State = poolPaused
	case is["Updated"] && p.Current == p.Target && number("status", "observedGeneration") >= object.GetGeneration():
		p.State = poolUpdated
	}
	return p
}

func sources(object *unstructured.Unstructured, part string) []string {
	list, _, _ := unstructured.NestedSlice(object.Object, part, "configuration", "source")
	var names []string
	for _, source := range list {
		fields, _ := source.(map[string]any)
		name, _ := fields["name"].(string)
		names = append(names, name)
	}
	return names
}

// has is true where all nodes have the MachineConfigs.
func (p Pool) has(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(p.currentSources, name) })
}

// Follow watches the pool until all its nodes have the MachineConfigs of names, and
// says what changes: counts, and which node is drained or reboots.
//
// Errors: NodesUnavailable where the pool is degraded or paused, or the time is over;
// Cancelled.
func Follow(ctx context.Context, c Clients, pool Pool, names []string, say func(string)) (Pool, error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	f := &follower{pool: pool, say: say}
	var wg sync.WaitGroup
	wg.Go(func() {
		err := kube.Until(watching, "nodes of pool "+pool.Name, c.Kube.CoreV1().Nodes(), metav1.ListOptions{LabelSelector: pool.selector},
			func(nodes []*corev1.Node) (bool, error) {
				f.see(func() { f.nodes = nodes })
				return false, nil
			})
		if watching.Err() == nil {
			f.tell(fmt.Sprintf("which node reboots cannot be said: %v", err))
		}
	})
	err := kube.Until(watching, "pool "+pool.Name, c.Objects.Resource(poolResource()), metav1.ListOptions{FieldSelector: "metadata.name=" + pool.Name},
		func(pools []*unstructured.Unstructured) (bool, error) {
			at := slices.IndexFunc(pools, func(p *unstructured.Unstructured) bool { return p.GetName() == pool.Name })
			if at < 0 {
				return false, fail.Becausef(fail.NodesUnavailable, "following pool %s: it was deleted", pool.Name)
			}
			current := poolOf(pools[at])
			f.see(func() { f.pool = current })
			switch current.State {
			case poolDegraded:
				return false, fail.Advise(fail.Becausef(fail.NodesUnavailable, "following %s", current), "oc describe machineconfigpool %s", pool.Name)
			case poolPaused:
				return false, fail.Advise(fail.Becausef(fail.NodesUnavailable, "following %s", current), "%s", resume(pool.Name))
			}
			return current.State == poolUpdated && current.has(names), nil
		})
	stop()
	wg.Wait()
	if err == nil || ctx.Err() == nil {
		return f.pool, err
	}
	reason := fail.NodesUnavailable
	if errors.Is(context.Cause(ctx), context.Canceled) {
		reason = fail.Cancelled
	}
	return f.pool, fail.Advise(fail.Becausef(reason, "following %s: %w", f.pool, context.Cause(ctx)),
		"oc describe machineconfigpool %s (the roll-out goes on by itself)", pool.Name)
}

func resume(pool string) string {
	return fmt.Sprintf(`oc patch machineconfigpool %s --type=merge -p '{"spec":{"paused":false}}'`, pool)
}

// follower says what is new, to one listener at a time.
type follower struct {
	mu    sync.Mutex
	pool  Pool
	nodes []*corev1.Node
	said  string
	say   func(string)
}

func (f *follower) tell(line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.say(line)
}

func (f *follower) see(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	line := f.pool.String()
	for _, node := range f.nodes {
		if doing := nodeDoing(node, f.pool.Target); doing != "" {
			line += "; " + node.Name + " " + doing
		}
	}
	if line != f.said {
		f.said = line
		f.say(line)
	}
}

// nodeDoing is "" for a node that rests, by the annotations of the machine config
// daemon (openshift/machine-config-operator:pkg/daemon/constants).
func nodeDoing(node *corev1.Node, target string) string {
	const prefix = "machineconfiguration.openshift.io/"
	state := node.Annotations[prefix+"state"]
	if node.Annotations[prefix+"desiredConfig"] != target {
		return "" // of another pool, or not its turn yet
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
