// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// rankFails tests a run in which rank 3 of four fails with an error of its own and ends last.
func rankFails(u trainer) {
	e := u.end(u.start("e2e/fail.py", "--param=launcher=torchrun", "--param=gpus-per-node=2")).failed("train", fail.RankFailed,
		"rank 3 on node 1 exited with 7", "ValueError: the loss is nan at step 12 (", "e2e/fail.py:").ranks(4)
	e.mustContain(e.log("train"), "[1 3] ValueError: the loss is nan at step 12", "[0 0] RuntimeError: ", "its last lines:\n    Traceback",
		"next: mlenv logs "+e.run.Name+" --rank=3")
	cause := e.receipt.Cause
	if cause == nil || cause.Rank != 3 || cause.Node != 1 || cause.Exit.Code != 7 || cause.Python == nil || cause.Python.Type != "ValueError" {
		e.Fatalf("the receipt's cause is %+v, want rank 3 with its ValueError", cause)
	}
	ended := func(r receipt.Rank) time.Time { return r.Started.Add(time.Duration(r.Seconds * float64(time.Second))) }
	for _, rank := range e.receipt.Ranks[:3] {
		if !ended(rank).Before(ended(e.receipt.Ranks[3])) {
			e.Errorf("rank %d ended at %s, not before rank 3 at %s: this proves nothing", rank.Rank, ended(rank), ended(e.receipt.Ranks[3]))
		}
		e.mustContain(strings.Join(rank.Tail, "\n"), "Connection closed by peer")
	}
	e.mustContain(u.recorded(e.run.UID, "rank-3.log"), "ValueError: the loss is nan at step 12")
}

// hangs tests a run in which rank 1 is stopped while rank 0 waits for it.
func hangs(u trainer) {
	e := u.end(u.start("e2e/stops.py", "--param=launcher=torchrun", "--param=hang-timeout=40s", oneGPU)).
		failed("train", fail.Hang, "rank 1 on node 1 is stopped by a signal", "no rank has printed or measured anything for")
	e.mustContain(e.log("train"), "No rank has printed or measured anything for", "mlenv fetch "+e.run.Name)
	// py-spy comes from the agent's image, because the nodes' image has none.
	for rank, line := range []string{"e2e/stops.py:14", "e2e/stops.py:13"} {
		e.mustContain(e.recorded(e.run.UID, fmt.Sprintf("stacks-%d.txt", rank)), fmt.Sprintf("rank %d on node %d", rank, rank), line)
	}
}

// outOfMemory tests a run in which the kernel kills one of two ranks.
func outOfMemory(u trainer) {
	u.installChanged("memory: 1Gi", "memory: 256Mi", "memory: 4Gi", "memory: 512Mi")
	e := u.end(u.start("e2e/memory.py", byShell, oneGPU)).failed("train", fail.OutOfMemory, "node 1",
		"memory: all processes on its node share 0.5 GiB")
	e.mustContain(e.log("train"), "raise resources.limits.memory in the cluster file")
}

// groupOutOfMemory imitates a kernel that ends the whole container when one of its processes needs too much memory, as kubelets
// configure it with cgroup v2: here the kernel ends the container's first process, and with it the others.
func groupOutOfMemory(u trainer) {
	u.installChanged("memory: 1Gi", "memory: 256Mi", "memory: 4Gi", "memory: 512Mi")
	name := u.start("e2e/memory.py", byShell, oneGPU, "--param=script-args=--group")
	u.waitOutput(name, "train", "[1 -] node 1 begins")
	const preferred = "1000" // the kernel kills the container's process with the highest score
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", u.agentProcess("ml-dev-env-1")), []byte(preferred), 0o644); err != nil {
		u.Fatal(err)
	}
	u.releaseDirectly()
	u.end(name).failed("train", fail.OutOfMemory, "the container of node 1 was restarted", "OOMKilled")
}

func wrongCommit(u trainer) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	e := u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=revision="+commit)).failed("preflight", fail.RevisionNotFound, commit)
	if _, ran := e.tasks["train"]; ran {
		e.Error("the run trained without a repository")
	}
}

func scriptMissing(u trainer) {
	u.end(u.start("e2e/nowhere.py", "--param=launcher=torchrun", oneGPU)).failed("preflight", fail.ScriptNotFound, `"e2e/nowhere.py"`,
		"attempts.sh")
	u.claimsAre() // nothing was created
}

// mistakesAtOnce tests that a run reports every mistake in one pass, within seconds, and holds nothing.
func mistakesAtOnce(u trainer) {
	e := u.end(u.start("e2e/nowhere.py", "--param=launcher=mpirun", "--param=env=A,B=1", "--param=timeout=2h", "--param=env-secret=my-keys",
		"--param=stop-if=loss is inf",
		oneGPU)).
		failed("preflight", fail.InvalidInput, `param launcher: "mpirun"`)
	e.mustContain(e.log("preflight"), `param env: "A": want KEY=VALUE`, `param stop-if: "loss is inf": want loss is nan`,
		"--pipeline-timeout=", "my-keys", `"e2e/nowhere.py"`)
	u.claimsAre()
	e.refusedAtOnce()
}

// refusedAtOnce fails unless preflight needed only seconds.
func (e ending) refusedAtOnce() {
	e.Helper()
	const timeToRefuseARun = 30 * time.Second
	if took := e.stepTook("preflight"); took > timeToRefuseARun {
		e.Errorf("the run was refused only after %s", took)
	}
}

// imageMissing tests that preflight asks the registry for the image before the run creates anything, and that provision
// alone, which does not ask, reports the kubelets' error.
func imageMissing(u trainer) {
	image := registryHost + "/e2e/no-such-image:1"
	u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=image="+image)).failed("preflight", fail.ImageUnavailable, image)
	u.claimsAre()
	_, results := u.taskEnd(u.startTkn("task", "mlenv-provision", oneGPU, "--param=image="+image))
	u.equal("reason of provision", results["reason"], string(fail.ImageUnavailable))
	u.mustContain(results["message"], image)
}

// tooMany requests more than the cluster file allows, and then more than the cluster has.
func tooMany(u trainer) {
	u.end(u.start("e2e/quick.sh", byShell, "--param=gpus-per-node=5", "--param=nodes=3")).
		failed("preflight", fail.InvalidInput, "gpus-per-node: 5", "want 0 to 4", "nodes: 3", "lists 2 nodes")
	u.claimsAre()

	u.installChanged("per_node: 4", "per_node: 8")
	u.end(u.start("e2e/quick.sh", byShell, "--param=gpus-per-node=8", "--param=start-timeout=15s")).
		failed("provision", fail.GPUsUnavailable, "8 nvidia.com/gpu")
}

// gpusHeld tests a run while another namespace holds GPUs of both nodes. With the right to read
// other namespaces the message names the holder.
func gpusHeld(u trainer) {
	other := newUserIn(u.T, u.namespace+"-other")
	other.awaitPullSecret()
	other.apply("gpu-holders.yaml", map[string]string{"REGISTRY": registryHost})
	other.waitFor("condition=Ready", "pod/holder-1")
	other.waitFor("condition=Ready", "pod/holder-2")
	u.Cleanup(func() { // objects that belong to no namespace
		u.kubectl("delete", "clusterrolebinding/mlenv-observer-"+u.namespace, "clusterrole/mlenv-observer")
	})
	u.install(u.clusterFile(), "--admin")
	e := u.end(u.start("e2e/quick.sh", byShell, "--param=start-timeout=15s")).failed("provision", fail.GPUsUnavailable,
		"the start-timeout of 15s has passed")
	e.mustContain(e.log("provision"), "node-1", "node-2", other.namespace+"/holder-1", other.namespace+"/holder-2")
}

func quotaExceeded(u trainer) {
	u.kubectl("create", "quota", "few-gpus", "--hard=requests.nvidia.com/gpu=1")
	u.end(u.start("e2e/quick.sh", byShell, oneGPU)).failed("preflight", fail.QuotaExceeded, "few-gpus", "requests.nvidia.com/gpu")
}

var advisedTimeouts = regexp.MustCompile(`--pipeline-timeout=\S+ --tasks-timeout=\S+ --finally-timeout=\S+`)

// timeoutTooShort tests that a training of two hours fails at once in a run of one hour, and
// starts with the flags in that message.
func timeoutTooShort(u trainer) {
	flags := []string{byShell, oneGPU, "--param=timeout=2h"}
	e := u.end(u.start("e2e/quick.sh", flags...)).failed("preflight", fail.TimeoutTooShort, "pipeline 1h, want 2h", "2h of training")
	u.claimsAre() // nothing was created
	e.refusedAtOnce()
	advised := advisedTimeouts.FindString(e.log("preflight"))
	if advised == "" {
		e.Fatalf("the log of preflight proposes no flags:\n%s", e.log("preflight"))
	}
	u.end(u.start("e2e/quick.sh", append(flags, strings.Fields(advised)...)...)).succeeded()
}

// gpuMissing tests nodes with a GPU that has counted a memory error, which is no fault, and a node with a GPU that has
// fallen off the bus.
func gpuMissing(u trainer) {
	u.Cleanup(func() { localcluster(u.T, "up", "--gpu-fault=none") })
	localcluster(u.T, "up", "--gpu-fault=node-1:0=ecc", "--gpu-fault=node-2:3=ecc")
	u.end(u.start("e2e/quick.sh", byShell, fmt.Sprintf("--param=gpus-per-node=%d", gpusOfNode))).succeeded()
	localcluster(u.T, "up", "--gpu-fault=node-1:0=missing")
	u.end(u.start("e2e/quick.sh", byShell, fmt.Sprintf("--param=gpus-per-node=%d", gpusOfNode))).
		failed("provision", fail.GPUMissing, "on node-1", "3 can be used, want 4")
}
