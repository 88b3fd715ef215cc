package server_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/agenttest"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// What was set wins over the container's variables, and a job's own over that.
func TestNetworkIsForWhateverIsStarted(t *testing.T) {
	n := newNode(t)
	n.Config.Environ = append(n.Config.Environ, "NCCL_IB_HCA=mlx5_0", "NCCL_IB_GID_INDEX=3", "NCCL_DEBUG=WARN")
	n.End()
	n.Restart()
	set := agent.Network{Mode: agent.RDMA, Set: map[string]string{"NCCL_IB_HCA": "=mlx5_6", "NCCL_IB_TC": "106"}, Unset: []string{"NCCL_IB_GID_INDEX"}}
	environment, err := n.Client.SetNetwork(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(environment, func(name, _ string) bool { return !strings.HasPrefix(name, "NCCL_") })
	if want := map[string]string{"NCCL_IB_HCA": "=mlx5_6", "NCCL_IB_TC": "106", "NCCL_DEBUG": "WARN"}; !maps.Equal(environment, want) {
		t.Errorf("the agent says that it sets %v, want %v", environment, want)
	}
	n.script("show.sh", `echo "$NCCL_IB_HCA $NCCL_IB_TC ${NCCL_IB_GID_INDEX-unset}"`)
	spec := command("show.sh")
	spec.Env = map[string]string{"NCCL_IB_TC": "41"}
	n.run("job-1", spec)
	if got, want := n.log("job-1", "rank-0", 0), "=mlx5_6 41 unset\n"; got != want {
		t.Errorf("a job has %q, want %q", got, want)
	}
	shell := strings.Join(n.Config.ShellEnvironment(), "\n")
	if !strings.Contains(shell, "\nNCCL_IB_HCA==mlx5_6\n") || strings.Contains(shell, "NCCL_IB_GID_INDEX") {
		t.Errorf("a shell has %s", shell)
	}
	for _, wrong := range []agent.Network{{Mode: "auto"}, {Mode: agent.TCP, Set: map[string]string{"a b": ""}}, {Mode: agent.TCP, Unset: []string{""}}} {
		if _, err := n.Client.SetNetwork(t.Context(), wrong); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("%+v is taken: %v", wrong, err)
		}
	}
}

// A job's order says which ranks a node has; where its node 0 is stays the master.
func TestOrderOfNodes(t *testing.T) {
	nodes := agenttest.Start(t, 3)
	spec := agent.JobSpec{Run: "run", Launcher: agent.Command, Script: "show.sh", Nodes: 3, RanksPerNode: 1, Order: []int{0, 2, 1}}
	for ordinal, rank := range []int{0, 2, 1} {
		n := &node{t: t, Node: nodes[ordinal]}
		n.script("show.sh", `echo "$NODE_RANK at $MASTER_ADDR"`)
		status := n.run("job-1", spec)
		if len(status.Ranks) != 1 || status.Ranks[0].Rank != rank || status.Ranks[0].Node != ordinal {
			t.Errorf("node %d has %+v, want rank %d", ordinal, status.Ranks, rank)
		}
		if got, want := n.log("job-1", fmt.Sprintf("rank-%d", rank), 0), fmt.Sprintf("%d at env-0.env-headless.ns.svc\n", rank); got != want {
			t.Errorf("node %d: %q, want %q", ordinal, got, want)
		}
	}
	for _, order := range [][]int{{0, 1}, {1, 0, 2}, {0, 1, 1}, {0, 1, 3}} {
		spec.Order = order
		if _, err := nodes[0].Client.StartJob(t.Context(), "job-2", spec); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("order %v is taken: %v", order, err)
		}
	}
}
