// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// holding starts a script that holds its environment, and returns when the script runs on both
// nodes.
func (u trainer) holding() (name string) {
	u.Helper()
	name = u.start("e2e/hold.sh", byShell, oneGPU)
	u.waitOutput(name, "train", "[0 -] node 0 holds the environment", "[1 -] node 1 holds the environment")
	return name
}

func (u trainer) runUID(name string) types.UID {
	u.Helper()
	if u.workstation != nil {
		return types.UID(name)
	}
	found, err := u.clients.Tekton.TektonV1().PipelineRuns(u.namespace).Get(u.Context(), name, metav1.GetOptions{})
	if err != nil {
		u.Fatal(err)
	}
	return found.UID
}

// stepPodDeleted deletes the pod that follows four ranks, while each prints 100,000 lines.
func stepPodDeleted(u trainer) {
	name := u.start("e2e/lines.py", "--param=launcher=torchrun", "--param=gpus-per-node=2")
	u.waitOutput(name, "train", "[0 0] rank 0 line 49999\n")
	pod := u.startedPod(name, "train", "")
	deleted := time.Now()
	u.kubectl("delete", "pod", pod.Name, "--wait=false")
	u.release("ml-dev-env-0", "middle") // while no pod follows the ranks
	u.startedPod(name, "train", pod.UID)
	u.release("ml-dev-env-0", "end")
	e := u.end(name).succeeded().ranks(4)
	// Tekton retries a task whose pod it has seen failing. If the pod is gone before that, it creates another, and counts none.
	if e.tasks["train"].Retries > 1 {
		e.Errorf("the task was retried %d times, want at most once", e.tasks["train"].Retries)
	}
	for _, rank := range e.receipt.Ranks {
		if !rank.Started.Before(deleted) {
			e.Errorf("rank %d was started again at %s, after the pod was deleted at %s", rank.Rank, rank.Started, deleted)
		}
		var want strings.Builder
		for number := range 100_000 {
			fmt.Fprintf(&want, "rank %d line %d\n", rank.Rank, number)
		}
		got := e.recorded(e.run.UID, fmt.Sprintf("rank-%d.log", rank.Rank))
		if got != want.String() {
			e.Errorf("the record of rank %d: %s", rank.Rank, firstDifference(got, want.String()))
		}
	}
}

// firstDifference describes where two long texts begin to differ.
func firstDifference(got, want string) string {
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(gotLines), len(wantLines)) {
		if gotLines[i] != wantLines[i] {
			return fmt.Sprintf("line %d is %q, want %q", i, gotLines[i], wantLines[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(gotLines), len(wantLines))
}

// runCancelled tests that a cancel with finally tasks releases everything and writes a receipt.
func runCancelled(u trainer) {
	name := u.holding()
	u.tkn("pipelinerun", "cancel", name, "--grace=CancelledRunFinally")
	e := u.end(name)
	e.equal("verdict", string(e.receipt.Verdict), string(receipt.Failed))
	e.equal("reason", e.receipt.Reason, string(fail.Cancelled))
	e.equal("what teardown says", e.receipt.Teardown, "all pods and GPUs were released")
	for _, rank := range e.receipt.Ranks {
		if rank.Seconds <= 0 {
			e.Errorf("rank %d ended with %+v after %.1f s: want its own end", rank.Rank, rank.Exit, rank.Seconds)
		}
	}
	for node := range 2 {
		e.mustContain(e.recorded(e.run.UID, fmt.Sprintf("rank-%d.log", node)), fmt.Sprintf("node %d was told to stop", node))
	}
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
}

// runCancelledOutright tests a plain cancel: Tekton skips the finally tasks, so the running step
// releases everything.
func runCancelledOutright(u trainer) {
	name := u.holding()
	uid := u.runUID(name)
	u.tkn("pipelinerun", "cancel", name)
	u.nothingLeft()
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
	u.leavesReceipt(name, uid, "pipelinerun "+name+" was cancelled")
}

// leavesReceipt tests the receipt of a run without a teardown, which the step train writes.
func (u trainer) leavesReceipt(name string, uid types.UID, message string) {
	u.Helper()
	left, err := receipt.Read(u.Context(), u.clients.Kube, u.namespace, name)
	if err != nil {
		u.Fatal(err)
	}
	u.equal("the receipt's run", left.RunUID, string(uid))
	u.equal("its verdict", string(left.Verdict), string(receipt.Failed))
	u.equal("its reason", left.Reason, string(fail.Cancelled))
	u.mustContain(left.Message, message)
	if left.Record == nil || len(left.Record.Claims) != 1 || left.Commit == "" || left.Training == nil {
		u.Errorf("the receipt is %+v: want the claim of the record, the commit and what was trained", left)
	}
}

// runDeleted tests that only claims outlive a deleted run.
func runDeleted(u trainer) {
	name := u.holding()
	uid := u.runUID(name)
	u.kubectl("delete", "pipelinerun", name)
	u.nothingLeft()
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
	u.leavesReceipt(name, uid, receipt.Deleted)
	for node := range 2 {
		u.mustContain(u.recorded(uid, fmt.Sprintf("rank-%d.log", node)), fmt.Sprintf("node %d was told to stop", node))
	}
}

// containerKilled kills a node's container from outside, as a failing container runtime does.
func containerKilled(u trainer) {
	name := u.holding()
	if err := syscall.Kill(u.agentProcess("ml-dev-env-1"), syscall.SIGKILL); err != nil {
		u.Fatal(err)
	}
	e := u.end(name).failed("train", fail.ContainerRestarted, "the container of node 1 was restarted", "exit code 137")
	e.mustContain(e.recorded(e.run.UID, "rank-0.log"), "node 0 was told to stop")
}

// agentProcess returns the number on this machine of the process that is PID 1 of a node.
func (u trainer) agentProcess(pod string) int {
	u.Helper()
	return u.process(agent.Program+"\x00serve\x00", "POD_NAME="+pod, "POD_NAMESPACE="+u.namespace)
}

// process returns the number on this machine of a process whose command line contains the text, and whose environment has the variables.
func (u trainer) process(text string, variables ...string) int {
	u.Helper()
	pids := u.processes(text, variables...)
	if len(pids) == 0 {
		u.Fatalf("found no process %q with %q", text, variables)
	}
	return pids[0]
}

func (u trainer) processes(text string, variables ...string) (pids []int) {
	u.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		u.Fatal(err)
	}
	for _, file := range files {
		commandLine, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(commandLine), text) {
			continue
		}
		environment, err := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
		if err != nil {
			continue
		}
		has := strings.Split(string(environment), "\x00")
		if slices.ContainsFunc(variables, func(variable string) bool { return !slices.Contains(has, variable) }) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			u.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}
