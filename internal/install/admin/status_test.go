package admin

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func states(s Status) []string {
	var rows []string
	for _, row := range s.Rows {
		rows = append(rows, string(row.State)+": "+row.What)
	}
	return rows
}

// renderedConfig returns what the controller renders from MachineConfigs.
func renderedConfig(names []string, spec map[string]any) *unstructured.Unstructured {
	object := named("machineconfiguration.openshift.io/v1", "MachineConfig", "", rendered(names))
	object.Object["spec"] = spec
	return object
}

func TestLook(t *testing.T) {
	ours := []string{memlockName("worker"), iommuName("worker")}
	memlock := memlockConfig("worker").Object["spec"].(map[string]any)
	both := map[string]any{"config": memlock["config"], "kernelArguments": []any{"iommu=pt"}}
	prepared := newCluster(t, append(nics(103, 104, 105, 106), memlockConfig("worker"), iommuConfig("worker"),
		workers(nil, ours, 1, "Updating"), renderedConfig(nil, map[string]any{}), renderedConfig(ours, both))...)
	outcomes(t, prepared, own(t))
	wrong := newCluster(t, append(nics(103, 103), constraint("mlenv-rdma", "SYS_ADMIN"),
		workers(ours[1:], ours[1:], 3, "Updated"), renderedConfig(ours[1:], map[string]any{"kernelArguments": []any{"iommu=pt"}}))...)
	tests := []struct {
		name              string
		c                 *fakeCluster
		rolling, complete bool
		want              []string
		warnings          int
	}{
		{"nothing", newCluster(t), false, false, []string{
			"missing: serviceaccount/ml-dev-sa", "missing: securitycontextconstraints/mlenv-rdma",
			"missing: clusterrole/system:openshift:scc:mlenv-rdma", "missing: rolebinding/system:openshift:scc:mlenv-rdma",
			"missing: system:serviceaccount:team:ml-dev-sa may use mlenv-rdma",
			"missing: network-attachment-definition/default/eno5np0-network", "missing: network-attachment-definition/default/eno6np0-network",
			"missing: network-attachment-definition/default/eno7np0-network", "missing: network-attachment-definition/default/eno8np0-network",
			"unknown: machineconfigpool/worker", "not applied: clusterrolebinding/mlenv-observer-team",
		}, 0},
		{"all, rolling out", prepared, true, true, []string{
			"in place: serviceaccount/ml-dev-sa", "in place: securitycontextconstraints/mlenv-rdma",
			"in place: clusterrole/system:openshift:scc:mlenv-rdma", "in place: rolebinding/system:openshift:scc:mlenv-rdma",
			"in place: system:serviceaccount:team:ml-dev-sa may use mlenv-rdma",
			"in place: network-attachment-definition/default/eno5np0-network", "in place: network-attachment-definition/default/eno6np0-network",
			"in place: network-attachment-definition/default/eno7np0-network", "in place: network-attachment-definition/default/eno8np0-network",
			"rolling out: machineconfig/99-worker-crio-memlock", "rolling out: machineconfig/99-worker-iommu-passthrough",
			"not applied: clusterrolebinding/mlenv-observer-team",
		}, 0},
		{"otherwise than wanted", wrong, false, false, []string{
			"missing: serviceaccount/ml-dev-sa", "differs: securitycontextconstraints/mlenv-rdma",
			"missing: clusterrole/system:openshift:scc:mlenv-rdma", "missing: rolebinding/system:openshift:scc:mlenv-rdma",
			"missing: system:serviceaccount:team:ml-dev-sa may use mlenv-rdma",
			"in place: network-attachment-definition/default/eno5np0-network", "in place: network-attachment-definition/default/eno6np0-network",
			"missing: network-attachment-definition/default/eno7np0-network", "missing: network-attachment-definition/default/eno8np0-network",
			"not applied: machineconfig/99-worker-crio-memlock",
			"in place: machineconfig/99-worker-iommu-passthrough", // by a MachineConfig with another name
			"not applied: clusterrolebinding/mlenv-observer-team",
		}, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			status, err := Look(t.Context(), test.c.Clients, own(t))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, states(status)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if status.rolling() != test.rolling || status.complete() != test.complete || len(status.Warnings) != test.warnings {
				t.Errorf("rolling %t, complete %t, warnings %q; want %t, %t, %d", status.rolling(), status.complete(), status.Warnings, test.rolling, test.complete, test.warnings)
			}
		})
	}
}

// TestLookWithoutRights: an object that may not be read is unknown, not missing.
func TestLookWithoutRights(t *testing.T) {
	c := newCluster(t)
	c.dynamic.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New(`serviceaccounts is forbidden: User "me" cannot get resource`)
	})
	r := requestOf(fileOf(t, "barcelona"))
	r.Namespace = "team"
	status, err := Look(t.Context(), c.Clients, r)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range status.Rows {
		if row.State != Unknown {
			t.Errorf("%+v: want unknown", row)
		}
	}
	if !status.complete() || status.rolling() {
		t.Error("want neither something missing nor a roll-out")
	}
}

func node(name, current, desired, state string, ready, unschedulable bool) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node-role.kubernetes.io/worker": ""}, Annotations: map[string]string{
			"machineconfiguration.openshift.io/currentConfig": current, "machineconfiguration.openshift.io/desiredConfig": desired,
			"machineconfiguration.openshift.io/state": state, "machineconfiguration.openshift.io/reason": "disk full",
		}},
		Spec:   corev1.NodeSpec{Unschedulable: unschedulable},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	if !ready {
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
	}
	return n
}

func TestNodeDoing(t *testing.T) {
	tests := []struct {
		node *corev1.Node
		want string
	}{
		{node("waits", "old", "old", "Done", true, false), ""},
		{node("drains", "old", "new", "Working", true, true), "is drained"},
		{node("begins", "old", "new", "Working", true, false), "is updated"},
		{node("reboots", "old", "new", "Working", false, true), "reboots"},
		{node("fails", "old", "new", "Degraded", true, true), "fails: disk full"},
		{node("done", "new", "new", "Done", true, false), ""},
	}
	for _, test := range tests {
		if got := nodeDoing(test.node, "new"); got != test.want {
			t.Errorf("%s: %q, want %q", test.node.Name, got, test.want)
		}
	}
}

func TestFollow(t *testing.T) {
	old, ours := []string{}, []string{"99-worker-iommu-passthrough"}
	paused := workers(old, ours, 1)
	paused.Object["spec"].(map[string]any)["paused"] = true
	tests := []struct {
		name   string
		states []*unstructured.Unstructured
		said   string
		reason fail.Reason
		next   string
	}{
		{"to its end", []*unstructured.Unstructured{
			// The controller has not seen the MachineConfig yet: the nodes are updated, but without it.
			workers(old, old, 3, "Updated"), workers(old, ours, 1, "Updating"), workers(ours, ours, 3, "Updated"),
		}, "pool worker: updating: 1 of 3 machines updated, 1 ready, 0 degraded", "", ""},
		{"degraded", []*unstructured.Unstructured{
			workers(old, ours, 1, "Updating"), workers(old, ours, 1, "NodeDegraded: node wrk-97 cannot be drained", "Degraded"),
		}, "pool worker: degraded: 1 of 3 machines updated, 1 ready, 0 degraded: node wrk-97 cannot be drained", fail.NodesUnavailable, "oc describe machineconfigpool worker"},
		{"paused", []*unstructured.Unstructured{paused}, "pool worker: paused", fail.NodesUnavailable, `'{"spec":{"paused":false}}'`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(t, test.states[0])
			events := watch.NewFakeWithChanSize(len(test.states), false)
			for _, state := range test.states[1:] {
				events.Modify(state)
			}
			c.dynamic.PrependWatchReactor("machineconfigpools", clienttesting.DefaultWatchReactor(events, nil))
			var said []string
			pool, err := Follow(t.Context(), c.Clients, poolOf(test.states[0]), ours, func(line string) { said = append(said, line) })
			if (err == nil) != (test.reason == "") || test.reason != "" && fail.ReasonOf(err) != test.reason || !strings.Contains(fail.NextOf(err), test.next) {
				t.Fatalf("%v: want %s with %q", err, test.reason, test.next)
			}
			if !strings.Contains(strings.Join(said, "\n"), test.said) {
				t.Errorf("printed %q, want %q", said, test.said)
			}
			if last := poolOf(test.states[len(test.states)-1]); pool.State != last.State {
				t.Errorf("ended as %s, want %s", pool.State, last.State)
			}
		})
	}
}

// TestFollowNamesTheNode also checks that Follow ends at its deadline.
func TestFollowNamesTheNode(t *testing.T) {
	ours := []string{"99-worker-iommu-passthrough"}
	state := workers(nil, ours, 1, "Updating")
	c := newCluster(t, state)
	if _, err := c.Kube.CoreV1().Nodes().Create(t.Context(), node("wrk-97", "old", rendered(ours), "Working", false, true), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, over := context.WithCancelCause(t.Context())
	var once sync.Once
	_, err := Follow(ctx, c.Clients, poolOf(state), ours, func(line string) {
		if strings.HasSuffix(line, "; wrk-97 reboots") {
			once.Do(func() { over(errors.New("not all nodes are updated after 2h0m0s")) })
		}
	})
	want := "following pool worker: updating: 1 of 3 machines updated, 1 ready, 0 degraded: not all nodes are updated after 2h0m0s"
	if fail.ReasonOf(err) != fail.NodesUnavailable || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
