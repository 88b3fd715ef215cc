// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// sweptScript measures a loss that its learning rate decides, and fails for one combination.
const sweptScript = `echo "args $*"
case "$1" in --lr=1e-4) loss=2.5 ;; *) loss=1.25 ;; esac
test "$NODE_RANK" != 0 || echo "{\"step\": 40, \"loss\": $loss}" >>"$MLENV_METRICS_FILE"
test "$*" != "--lr=3e-4 --seed=2" || exit 3
`

// sweepOfTrials runs a sweep of four trials, two at the same time, of which one fails, and asks for the same sweep again. A second sweep is
// interrupted, and continued by the same command.
func sweepOfTrials(u trainer) {
	dir := u.project(map[string]string{"train.sh": sweptScript})
	sweep := append([]string{"run", ".", "train.sh", "--run-name=sizes", "--sweep=lr=1e-4,3e-4", "--sweep=seed=1..2", "--parallel=2"},
		runFlags()...)
	_, problems := u.says(dir, command.WrongUsage, append(sweep, "--detach", "--name=mine")...)
	u.mustContain(problems, "--parallel=2 and --name")
	out, _ := u.says(dir, command.Done, append(sweep, "--dry-run")...)
	u.mustContain(out, "Sweep sizes: 4 NotStarted.", "--lr=1e-4 --seed=1", "Nothing was started")

	out = u.sweeps(dir, command.Failed, sweep...)
	u.mustContain(out, "Sweep sizes: 4 trials, 2 at the same time.", "== sizes-1 started: lr=1e-4 seed=1",
		"Sweep sizes: 3 Succeeded, 1 Failed.", "sizes-4: RankFailed: ", "mlenv logs sizes-4 -n "+u.namespace)
	if _, table, _ := strings.Cut(out, "NAME"); strings.Index(table, "sizes-3") > strings.Index(table, "sizes-1") {
		u.Errorf("the trial with the lowest loss is not the first:\n%s", out)
	}
	first, second := u.end("sizes-1"), u.end("sizes-2")
	if first.receipt.Environment == second.receipt.Environment {
		u.Errorf("both trials in progress at the same time were in environment %s", first.receipt.Environment)
	}
	first.equal("what teardown says", first.receipt.Teardown, "all pods and GPUs were released")
	first.equal("the sweep in the receipt", first.receipt.Sweep, "sizes")
	first.equal("the arguments", fmt.Sprint(first.receipt.Training.Args), "[--lr=1e-4 --seed=1]")
	u.end("sizes-4").failed("train", fail.RankFailed, "exit")
	u.nothingLeft()

	u.kubectl("delete", "pipelinerun", "sizes-1", "--wait")
	before := u.kubectl("get", "pipelineruns", "--output=name")
	out = u.sweeps(dir, command.Failed, append(sweep, "--output=json")...)
	var read struct {
		Kind   string
		Trials []struct{ Name, State string }
	}
	if err := json.Unmarshal([]byte(out), &read); err != nil || read.Kind != "Sweep" || fmt.Sprint(read.Trials) !=
		"[{sizes-1 Succeeded} {sizes-2 Succeeded} {sizes-3 Succeeded} {sizes-4 Failed}]" {
		u.Errorf("the same again: %v\n%s", err, out)
	}
	u.equal("runs after the same command", u.kubectl("get", "pipelineruns", "--output=name"), before)
	out, _ = u.says(dir, command.Done, "runs", "--sweep=sizes", "--output=name")
	u.equal("the sweep's runs", fmt.Sprint(len(strings.Fields(out))), "4")

	u.interruptedSweep()
}

// interruptedSweep cancels two trials of three by SIGINT, and lets the same command run the third.
func (u trainer) interruptedSweep() {
	u.Helper()
	dir := u.project(map[string]string{"train.sh": "test \"$1\" != --n=3 || exit 0\nsleep 1000\n"})
	sweep := append([]string{"run", ".", "train.sh", "--run-name=held", "--sweep=n=1..3", "--parallel=2"}, runFlags()...)
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	cmd := u.mlenvIn(ctx, dir, sweep...)
	one := &watched{wanted: "[held-1] == train started", seen: make(chan struct{})}
	two := &watched{wanted: "[held-2] == train started", seen: make(chan struct{})}
	both := io.MultiWriter(one, two)
	cmd.Stdout, cmd.Stderr = both, both
	if err := cmd.Start(); err != nil {
		u.Fatal(err)
	}
	for _, each := range []*watched{one, two} {
		select {
		case <-each.seen:
		case <-ctx.Done():
			u.Errorf("mlenv did not print %q", each.wanted)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		u.Error(err)
	}
	if got := codeOf(cmd.Wait()); got != command.Interrupted {
		u.Errorf("exit code %d, want %d", got, command.Interrupted)
	}
	u.mustContain(one.String(), "Sweep held: 2 Cancelled, 1 NotStarted.")
	uid := u.end("held-1").run.UID
	out := u.sweeps(dir, command.Failed, sweep...)
	u.mustContain(out, "Sweep held continues: 2 of 3 trials have ended.", "== held-3 started: n=3", "Sweep held: 1 Succeeded, 2 Cancelled.")
	u.equal("the run that was cancelled", u.end("held-1").run.UID, uid)
	u.equal("the verdict of the third", u.end("held-3").receipt.Verdict, receipt.Succeeded)
}

// sweeps runs a sweep to its end, and compares the exit code. It returns what the sweep prints to standard output.
func (u trainer) sweeps(dir string, code int, args ...string) string {
	u.Helper()
	ctx, cancel := u.within(3 * timeForARunToEnd)
	defer cancel()
	cmd := u.mlenvIn(ctx, dir, args...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if got := codeOf(cmd.Run()); got != code {
		u.Fatalf("mlenv %v: exit code %d, want %d\n%s%s", args, got, code, shortened(out.String()), problems.String())
	}
	return out.String()
}
