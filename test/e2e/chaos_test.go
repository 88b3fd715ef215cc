// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// A blow is what happens to a training in chaos.
type blow struct {
	name string
	// reason is what the receipt has of the attempt that it ends, "" if the training goes on.
	reason fail.Reason
	// saves tells that the ranks have time to save, so no step is lost.
	saves bool
	// except is a program that it does not strike.
	except string
	// strike returns when the cluster is whole again. It may change which run is to be watched.
	strike func(*chaosTraining)
}

// chaosTraining is a training that is being struck.
type chaosTraining struct {
	trainer
	random *rand.Rand
	// program is the script that is trained.
	program string
	// run is the run in progress, of those that resumed each other; attempt is its attempt in progress.
	run     string
	attempt int
	// reasons are those that the attempts of this run have to end with.
	reasons []string
	seed    uint64
	// checkpoints are those with which runs ended, and which must be there in the end.
	checkpoints []string
}

const (
	// chaosEvery is the number of steps between two checkpoints of chaos.py.
	chaosEvery = 25
	// sampled is the number of steps between two that are reported, if the program does not report its own.
	sampled = 20
)

// seed is what chaos depends on, besides when things happen.
func seed(u trainer) uint64 {
	u.Helper()
	number, err := strconv.ParseUint(os.Getenv(seedVariable), 10, 64)
	if err != nil {
		u.Fatalf("%s: %v", seedVariable, err)
	}
	return number
}

const deepSpeedProgram = "e2e/chaos_deepspeed.py"

// chaosPrograms are the programs of chaos, of which the seed chooses one, with the params that they need.
var chaosPrograms = []struct {
	script string
	params []string
}{
	{"e2e/chaos.py", nil},
	{"e2e/chaos_trainer.py", []string{chaosRequirements}},
	{"e2e/chaos_lightning.py", []string{chaosRequirements}},
	{deepSpeedProgram, nil},
	{"e2e/chaos_accelerate.py", []string{chaosRequirements}},
}

const chaosRequirements = "--param=requirements=e2e/requirements-chaos.txt"

// chaos trains on two nodes while blows fall at steps that a seed chooses, and compares the weights in the end, bit for bit, with those of
// a training that nothing happened to. Ten seeds in a row try each program on the cluster, two of them with Kueue, and on a workstation.
func chaos(u trainer) {
	number := seed(u)
	const trusts = "    enabled: false\n  trusted_ca: mlenv-trusted-ca\n" // the CA of the cluster's package index
	if number/uint64(len(chaosPrograms))%2 == 1 {
		u.install(u.clusterFile("    enabled: false\n", trusts))
		u.smallClaim("work", "4g")
		u.workstation = u.newWorkstation()
		u.struck(number, paceHere, append(blowsHere, diskFull))
		return
	}
	// A third node, because a Kubernetes node that is cut off or stopped takes other pods with it.
	u.addThirdNode()
	nodes, blows := "gpu_nodes: [node-1, "+thirdNode+toleratesThird, blowsThere
	if number%2 == 1 {
		u.queues(kueueVersions[1])
		nodes, blows = nodes+"\n  queue: team-a", append(blows, preempted)
	}
	u.install(u.clusterFile("gpu_nodes: [node-1, node-2]", nodes, "    enabled: false\n", trusts))
	u.suspendReaper(false)                 // install suspends it
	u.smallClaim("ml-dev-workspace", "2g") // so that it can be filled
	// The training has to outlast what does not stop it: above all, a minute until the reaper makes Tekton start the pod of a step again.
	u.struck(number, 400*time.Millisecond, append(blows, diskFull))
}

// blowsThere strike a training on the cluster.
var blowsThere = []blow{
	{"a pod is deleted", fail.NodeLost, true, "", func(c *chaosTraining) { c.kubectl("delete", "pod", c.anyPod(), "--wait=false") }},
	{"a pod is deleted at once", fail.NodeLost, false, "",
		func(c *chaosTraining) { c.kubectl("delete", "pod", c.anyPod(), "--force", "--grace-period=0") }},
	{"a pod is evicted", fail.NodeLost, true, "", func(c *chaosTraining) { c.evict(c.anyPod()) }},
	{"a rank is killed", fail.RankFailed, false, "", (*chaosTraining).killRank},
	{"an agent is killed", fail.ContainerRestarted, false, "",
		func(c *chaosTraining) { c.signal(c.agentProcess(c.anyPod()), syscall.SIGKILL) }},
	{"the pod of the step train is deleted", "", false, "", func(c *chaosTraining) {
		pod := c.startedPod(c.run, "train", "")
		c.kubectl("delete", "pod", pod.Name)
		c.startedPod(c.run, "train", pod.UID)
	}},
	{"a node's network is cut for 20 s", "", false, "", func(c *chaosTraining) {
		localcluster(c.T, "node", "cut", thirdNode)
		time.Sleep(20 * time.Second)
		localcluster(c.T, "node", "join", thirdNode)
	}},
	{"a node is stopped", fail.NodeLost, false, "", func(c *chaosTraining) {
		localcluster(c.T, "node", "stop", thirdNode)
		c.waitOutput(c.run, "train", fmt.Sprintf("Attempt %d failed", c.attempt))
		localcluster(c.T, "node", "start", thirdNode)
	}},
	{"the API server is away for 20 s", "", false, "", func(c *chaosTraining) {
		c.killControlPlane()
		time.Sleep(20 * time.Second)
		localcluster(c.T, "up", "--nodes=3")
	}},
	{"the run is cancelled and resumed", fail.Cancelled, true, "", func(c *chaosTraining) {
		c.says(c.TempDir(), command.Done, "cancel", c.run)
		c.resumed(fail.Cancelled)
	}},
}

// preempted takes a training's GPUs away for a while, and leaves it in Kueue's queue.
var preempted = blow{"Kueue preempts the environment", fail.NodeLost, true, "", func(c *chaosTraining) {
	releases := c.holdsGPUs("urgent", ", kueue.x-k8s.io/priority-class: urgent")
	c.waitOutput(c.run, "train", fmt.Sprintf("Attempt %d failed", c.attempt), "Preempted to accommodate a workload")
	releases()
}}

// diskFull ends a training. DeepSpeed's files are so small that torch writes them empty, without an error.
var diskFull = blow{"the disk is full and freed again", fail.DiskFull, false, deepSpeedProgram, func(c *chaosTraining) {
	free := c.fillWorkspace()
	c.end(c.run)
	free()
	c.resumed(fail.DiskFull)
}}

// blowsHere strike a local run, one of whose steps takes paceHere.
var blowsHere = []blow{
	{"a rank is killed", fail.RankFailed, false, "", (*chaosTraining).killRank},
	{"a rank is killed again", fail.RankFailed, false, "", (*chaosTraining).killRank},
	{"the run is cancelled and resumed", fail.Cancelled, true, "", func(c *chaosTraining) {
		c.cancelThere(c.run)
		c.resumed(fail.Cancelled)
	}},
	{"Ctrl-C is pressed, and the run is resumed", fail.Cancelled, true, "", func(c *chaosTraining) {
		c.signal(c.mlenvProcess(), syscall.SIGINT)
		c.resumed(fail.Cancelled)
	}},
	{"mlenv is killed, and the run is resumed", fail.Cancelled, false, "", func(c *chaosTraining) {
		c.signal(c.mlenvProcess(), syscall.SIGKILL)
		<-c.workstation.runs[c.run].ended
		c.resume()
	}},
}

const paceHere = 50 * time.Millisecond

// chaosHere is the short chaos of every test.
func chaosHere(u trainer) { u.struck(uint64(len(chaosPrograms)), paceHere, blowsHere) }

// struck runs the training once undisturbed and once with the blows, each once, in the order of the seed. A step of it takes pace.
func (u trainer) struck(seed uint64, pace time.Duration, blows []blow) {
	u.Helper()
	program, blows := chaosPrograms[seed%uint64(len(chaosPrograms))], slices.Clone(blows)
	params := append([]string{oneGPU, "--param=max-restarts=30", "--param=stop-grace=1m"}, program.params...)
	args := func(pace time.Duration) string { return fmt.Sprintf("--param=script-args=--pace=%g", pace.Seconds()) }
	want := u.end(u.start(program.script, append(params, args(0))...)).succeeded().weights()
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a seed has to repeat it
	c := &chaosTraining{trainer: u, program: program.script, random: random, attempt: 1, seed: seed}
	c.run = u.start(program.script, append(params, args(pace))...)
	c.continues()
	c.reach(chaosEvery + 1) // from its first checkpoint on the hook knows where a program of DeepSpeed or accelerate saves
	var struck, lost [2]int // of those without time to save, and with it
	var failed int          // the step of the last failure of a rank
	c.random.Shuffle(len(blows), func(i, j int) { blows[i], blows[j] = blows[j], blows[i] })
	for _, b := range blows {
		if b.except == c.program {
			continue
		}
		const between = 20 // steps
		more := 1 + c.random.IntN(between)
		if b.reason == fail.RankFailed { // a training whose ranks fail again before they get further is not restarted
			more = max(more, failed+sampled-lastStep(c.output()))
		}
		at := c.reach(more)
		if b.reason == fail.RankFailed {
			failed = at
		}
		time.Sleep(time.Duration(c.random.Int64N(int64(pace)))) // anywhere in a step
		c.Logf("seed %d: step %d, attempt %d of %s: %s", seed, at, c.attempt, c.run, b.name)
		run, log := c.run, c.log()
		b.strike(c)
		if b.reason == "" {
			continue
		}
		if run == c.run {
			c.reasons = append(c.reasons, string(b.reason))
			c.attempt++
		}
		first := c.continues()
		last := lastStep(c.printed(log))
		repeats, saves := max(0, last-first), 0
		if b.saves {
			saves = 1
		}
		struck[saves]++
		lost[saves] += repeats
		if b.saves && repeats > 0 || repeats > chaosEvery {
			c.Errorf("seed %d: %s after step %d, and the training continues after step %d", seed, b.name, last, first)
		}
	}
	e := c.end(c.run).succeeded()
	c.equal("the weights", e.weights(), want)
	c.checkAttempts(e, "")
	c.checkRemains()
	c.Logf("seed %d: %s, %d blows; %d with time to save lost %d steps, %d without lost %d", seed, program.script, len(blows), struck[1],
		lost[1], struck[0], lost[0])
}

// checkRemains checks that nothing of the runs is left but what they saved.
func (c *chaosTraining) checkRemains() {
	c.Helper()
	first, _, _ := strings.Cut(c.run, "-again")
	for run := first; len(run) <= len(c.run); run += "-again" {
		if pids := c.processes("", "MLENV_RUN="+run); len(pids) > 0 {
			c.Errorf("seed %d: the processes %v of %s are left", c.seed, pids, run)
		}
	}
	for _, path := range c.checkpoints {
		if _, err := os.Stat(path); err != nil {
			c.Errorf("seed %d: a checkpoint with which a run ended: %v", c.seed, err)
		}
	}
	if c.workstation == nil {
		return // nothingLeft looks at the cluster
	}
	// 0A is the state of a port on which somebody listens.
	out, err := c.on("", "sh", "-c", "find /tmp -name 'mlenv-*'; awk '$4 == \"0A\"' /proc/net/tcp /proc/net/tcp6").CombinedOutput()
	if err != nil || len(out) > 0 {
		c.Errorf("seed %d: scratch folders or ports are left: %s, %v", c.seed, out, err)
	}
}

// mlenvProcess returns the process of the local run.
func (c *chaosTraining) mlenvProcess() int { return c.process("mlenv\x00run\x00", "HOME=/work/home") }

func (c *chaosTraining) signal(pid int, signal syscall.Signal) {
	c.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		c.Fatal(err)
	}
}

// anyPod returns the name of a node's pod.
func (c *chaosTraining) anyPod() string { return fmt.Sprintf("ml-dev-env-%d", c.random.IntN(2)) }

// killRank kills one of the ranks.
func (c *chaosTraining) killRank() {
	c.signal(c.process(c.program+"\x00", "MLENV_RUN="+c.run, fmt.Sprintf("RANK=%d", c.random.IntN(2))), syscall.SIGKILL)
}

// log returns the path of what rank 0 prints in this attempt.
func (c *chaosTraining) log() string {
	c.Helper()
	return filepath.Join(c.recordFolder(c.runUID(c.run)), agent.AttemptFolder(c.attempt), "rank-0.log")
}

func (c *chaosTraining) printed(log string) string {
	c.Helper()
	content, err := os.ReadFile(log)
	if err != nil && !os.IsNotExist(err) {
		c.Fatal(err)
	}
	return string(content)
}

// output returns what rank 0 has printed in this attempt.
func (c *chaosTraining) output() string {
	c.Helper()
	return c.printed(c.log())
}

// printedStep is a step that was done, or with which the attempt began.
var printedStep = regexp.MustCompile(`attempt \d+ (?:continues after )?step (\d+)\n`)

// lastStep returns the last step of an output, 0 for none.
func lastStep(output string) (last int) {
	for _, match := range printedStep.FindAllStringSubmatch(output, -1) {
		last, _ = strconv.Atoi(match[1])
	}
	return last
}

// reach waits until this attempt has trained so many more steps, and returns the last one.
func (c *chaosTraining) reach(more int) int {
	c.Helper()
	step := lastStep(c.output()) + more
	c.waitOutput(c.run, "train", fmt.Sprintf("attempt %d step %d\n", c.attempt, step))
	return step
}

// continues waits for the beginning of the attempt, and returns the step after which it continues.
func (c *chaosTraining) continues() int {
	c.Helper()
	begins := fmt.Sprintf("attempt %d continues after step ", c.attempt)
	c.waitOutput(c.run, "train", "[0 0] "+begins)
	_, after, _ := strings.Cut(c.output(), begins)
	var step int
	if _, err := fmt.Sscan(after, &step); err != nil {
		c.Fatalf("where rank 0 continues: %v\n%s", err, after)
	}
	return step
}

// resumed checks the end of a run, for this reason, and resumes it.
func (c *chaosTraining) resumed(reason fail.Reason) {
	c.Helper()
	c.checkAttempts(c.end(c.run), reason)
	c.resume()
}

// resume starts a run that continues the one that has ended.
func (c *chaosTraining) resume() {
	c.Helper()
	args := []string{"run", "--resume-from=" + c.run, "--run-name=" + c.run + "-again"}
	if c.run += "-again"; c.workstation != nil {
		c.runThere(c.run, append([]string{"mlenv"}, append(args, "--local")...)...)
	} else {
		c.says(c.TempDir(), command.Done, append(args, "--detach")...)
	}
	c.attempt, c.reasons = 1, nil
}

// checkAttempts checks why the attempts of a run ended, and that they trained each step, without a gap.
func (c *chaosTraining) checkAttempts(e ending, reason fail.Reason) {
	c.Helper()
	c.equal("the reason of "+c.run, e.receipt.Reason, string(reason))
	switch path := e.receipt.Checkpoint; {
	case path == "" && reason == fail.Cancelled:
		c.Errorf("seed %d: the receipt of %s names no checkpoint", c.seed, c.run)
	case path != "":
		c.checkpoints = append(c.checkpoints, filepath.Join(c.workspaceHere(), strings.TrimPrefix(path, c.workspace())))
	}
	spent := e.spent()
	var got []string
	last, repeated := 0.0, 0.0
	for i, a := range e.receipt.Attempts {
		got = append(got, string(a.Reason))
		if a.First == nil || a.Last == nil { // it could not start
			continue
		}
		if i > 0 && (*a.First > last+2*sampled || *a.First < last-chaosEvery) {
			c.Errorf("seed %d: attempt %d of %s has the steps %.0f to %.0f after one that ended at %.0f: want it to begin where that had saved",
				c.seed, a.Attempt, c.run, *a.First, *a.Last, last)
		}
		repeated += max(0, last-*a.First-sampled)
		last = *a.Last
	}
	if last == 0 && len(e.receipt.Attempts) > 0 {
		c.Errorf("seed %d: no attempt of %s has steps", c.seed, c.run)
	}
	if repeated > 0 && spent.Repeated == 0 {
		c.Errorf("seed %d: the goodput of %s is %+v, without the time of %.0f repeated steps", c.seed, c.run, spent, repeated)
	}
	want := slices.Concat(c.reasons, []string{string(reason)})
	if reason == fail.DiskFull && len(got) > len(want) { // one more attempt could not start
		want = append(want, string(reason))
	}
	if len(got) > 0 || len(want) > 1 {
		c.equal("why the attempts of "+c.run+" ended", strings.Join(got, " "), strings.Join(want, " "))
	}
}

// weights returns the digest of the weights.
func (e ending) weights() string {
	e.Helper()
	log := e.recorded(e.run.UID, filepath.Join(agent.AttemptFolder(max(1, len(e.receipt.Attempts))), "rank-0.log"))
	_, after, found := strings.Cut(log, "the weights are ")
	if !found {
		e.Fatalf("rank 0 printed no weights:\n%s", shortened(log))
	}
	return strings.TrimSpace(after)
}

// fillWorkspace takes what is free of the workspace, until the returned function is called.
func (c *chaosTraining) fillWorkspace() (free func()) {
	c.Helper()
	path := filepath.Join(c.workspaceHere(), "filler")
	file, err := os.Create(path)
	if err != nil {
		c.Fatal(err)
	}
	defer file.Close()
	if _, err := io.Copy(file, zeros{}); err == nil {
		c.Fatal("the disk has no end")
	}
	return func() {
		if err := os.Remove(path); err != nil {
			c.Fatal(err)
		}
	}
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
