// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// The network's settings override the container's variables, and a job's own variables override the settings.
func TestNetworkIsForWhateverIsStarted(t *testing.T) {
	n := newNode(t)
	n.Config.Environ = append(n.Config.Environ, "NCCL_IB_HCA=mlx5_0", "NCCL_IB_GID_INDEX=3", "NCCL_DEBUG=WARN")
	n.End()
	n.Restart()
	set := agent.Network{Mode: agent.RDMA, Set: map[string]string{"NCCL_IB_HCA": "=mlx5_6", "NCCL_IB_TC": "106"},
		Unset: []string{"NCCL_IB_GID_INDEX"}}
	environment, err := n.Client.SetNetwork(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(environment, func(name, _ string) bool { return !strings.HasPrefix(name, "NCCL_") })
	if want := map[string]string{"NCCL_IB_HCA": "=mlx5_6", "NCCL_IB_TC": "106", "NCCL_DEBUG": "WARN"}; !maps.Equal(environment, want) {
		t.Errorf("the agent reports that it sets %v, want %v", environment, want)
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
	for _, wrong := range []agent.Network{{Mode: "auto"}, {Mode: agent.TCP, Set: map[string]string{"a b": ""}},
		{Mode: agent.TCP, Unset: []string{""}}} {
		if _, err := n.Client.SetNetwork(t.Context(), wrong); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("%+v is accepted: %v", wrong, err)
		}
	}
}

// smi4 is the nvidia-smi script of a privileged pod on a node with four GPUs.
const smi4 = `#!/bin/sh
[ "$1" = topo ] && exec cat "${0%/*}/topology"
[ "$1" = -L ] && echo "$@" && exit
for i in 0 1 2 3; do echo "$i, GPU-$i, NVIDIA H100, 580.95.05, 81559, 4, 0, 30, 0x0, None, 0, 00000000:${i}9:00.0, Disabled, 9.0"; done`

// A privileged pod sees all GPUs of its node. Facts, jobs with any launcher and shells use only the GPUs that the pod was
// given.
func TestPrivilegedPodUsesItsOwnGPUs(t *testing.T) {
	n := newNode(t)
	bin := t.TempDir()
	for name, content := range map[string]string{"topology": "GPU0 X NV18", "nvidia-smi": smi4, "python3": `#!/bin/sh
for argument; do case "$argument" in --world_info=*) echo "${argument#*=}" | tr _- /+ | base64 -d;; esac; done`} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := bin + ":" + os.Getenv("PATH")
	t.Setenv("PATH", path)
	start := func(visible string) agent.Facts {
		n.End()
		n.Config.Environ = []string{"PATH=" + path, "NVIDIA_VISIBLE_DEVICES=" + visible, "NCCL_P2P_LEVEL=NVL"}
		n.Restart()
		if _, err := n.Client.SetNetwork(t.Context(), agent.Network{Mode: agent.TCP}); err != nil {
			t.Fatal(err)
		}
		facts, err := n.Client.Facts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return facts
	}
	facts := start("GPU-3,GPU-1")
	if facts.Environment["NCCL_P2P_LEVEL"] != "NVL" {
		t.Errorf("with NVLink ranks have %v, want NCCL_P2P_LEVEL=NVL", facts.Environment)
	}
	if len(facts.GPUs) != 2 || facts.GPUs[0].UUID != "GPU-1" || facts.GPUs[1].UUID != "GPU-3" || facts.GPUProblem != "" {
		t.Errorf("facts have %+v, problem %q, want GPU-1 and GPU-3", facts.GPUs, facts.GPUProblem)
	}
	n.script("show.sh", `echo "$CUDA_VISIBLE_DEVICES"; nvidia-smi -L`)
	n.run("job-1", command("show.sh"))
	if got, want := n.log("job-1", "rank-0", 0), "GPU-1,GPU-3\n-L --id=GPU-1,GPU-3\n"; got != want {
		t.Errorf("a job has %q, want %q", got, want)
	}
	if shell := strings.Join(n.Config.ShellEnvironment(), "\n"); !strings.Contains(shell, "CUDA_VISIBLE_DEVICES=GPU-1,GPU-3\n") {
		t.Errorf("a shell has %s", shell)
	}
	// DeepSpeed's launcher sets the variable itself, from its arguments.
	n.script("train.py", "")
	n.run("job-2", agent.JobSpec{Run: "run", Launcher: agent.DeepSpeedLauncher, Script: "train.py", Nodes: 2, RanksPerNode: 2})
	if got, want := n.log("job-2", agent.LauncherLog,
		0), `{"env-0.env-headless.ns.svc":["GPU-1","GPU-3"],"env-1.env-headless.ns.svc":["GPU-1","GPU-3"]}`; !strings.Contains(got, want) {
		t.Errorf("the launcher got %s, want %s", got, want)
	}
	if facts := start("GPU-9"); len(facts.GPUs) != 0 { // its GPUs are lost
		t.Errorf("without its GPUs a pod has %+v", facts.GPUs)
	}
	n.run("job-3", command("show.sh"))
	if got := n.log("job-3", "rank-0", 0); !strings.HasPrefix(got, "\n") {
		t.Errorf("a job of a pod without its GPUs may use %q", got)
	}
	n.run("job-4", agent.JobSpec{Run: "run", Launcher: agent.DeepSpeedLauncher, Script: "train.py", Nodes: 2, RanksPerNode: 1})
	if got, want := n.log("job-4", agent.LauncherLog, 0), `{"env-0.env-headless.ns.svc":["-1"],`; !strings.Contains(got, want) {
		t.Errorf("the launcher got %s, want %s", got, want)
	}
	if facts := start("GPU-0,GPU-1,GPU-2,GPU-3"); len(facts.GPUs) != 4 || facts.Environment[agent.CUDADevices] != "" {
		t.Errorf("a pod with all GPUs has %d, and CUDA_VISIBLE_DEVICES=%s", len(facts.GPUs), facts.Environment[agent.CUDADevices])
	}
	if err := os.WriteFile(filepath.Join(bin, "topology"), []byte("GPU0 X SYS"), 0o644); err != nil {
		t.Fatal(err)
	}
	if level, set := start("GPU-3,GPU-1").Environment["NCCL_P2P_LEVEL"]; set {
		t.Errorf("without NVLink ranks have NCCL_P2P_LEVEL=%s", level)
	}
	if err := os.Remove(filepath.Join(bin, "topology")); err != nil {
		t.Fatal(err)
	}
	if level, set := start("GPU-3,GPU-1").Environment["NCCL_P2P_LEVEL"]; set {
		t.Errorf("without a topology ranks have NCCL_P2P_LEVEL=%s", level)
	}
	if facts := start("void"); len(facts.GPUs) != 0 || !strings.Contains(facts.GPUProblem, "nvidia-smi shows 4 GPUs, the pod was given 2") {
		t.Errorf("without a list there are %d GPUs, problem %q", len(facts.GPUs), facts.GPUProblem)
	}
}

// A job's order decides which ranks a node has. The node with ordinal 0 stays the master.
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
			t.Errorf("order %v is accepted: %v", order, err)
		}
	}
}
