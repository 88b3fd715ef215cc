// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// endedByRules tests each rule of stop-if with a run that it ends. The simulated GPUs are never busy.
func endedByRules(u trainer) {
	for _, tc := range []struct{ script, rule, numbers string }{
		{"nan", "loss is nan", "the loss at step 2 is NaN; before it was 2.5 at step 1"},
		{"high", "loss > 20 after 100 steps", "the loss at step 100 is 20.5; before it was 31 at step 99"},
		{"slow", "step_time > 2x median for 5m", "steps 21 to 30 took 32.0 s each, 16.0 times the median of 2.0 s before, for 5m20s"},
		{"none", "no checkpoint for 10s", "no checkpoint was completed since the training started "},
		{"none", "gpu_use < 5% for 10s", "2 GPUs were at most 0.0% busy on average for "},
	} {
		if u.workstation != nil && strings.HasPrefix(tc.rule, "gpu_use") {
			continue // it has no GPUs
		}
		name := u.start("e2e/pointless.sh", byShell, oneGPU, "--param=max-restarts=1", "--param=script-args="+tc.script,
			"--param=stop-if="+tc.rule)
		e := u.end(name).failed("train", fail.StopCondition, tc.numbers, "(stop-if: "+tc.rule+")")
		e.equal("attempts", len(e.receipt.Attempts), 0)
		for _, rank := range e.receipt.Ranks {
			if !rank.Stopped {
				e.Errorf("%s: rank %d ended by itself: %+v", tc.rule, rank.Rank, rank.Exit)
			}
		}
		out, _ := u.says(u.TempDir(), command.Done, "receipt", name)
		e.mustContain(out, string(fail.StopCondition), tc.rule, "stopped by a rule")
	}
}

// restartedByARule tests a run whose weights become NaN between two checkpoints: the next attempt resumes from the one before, and ends
// with the same loss as an undisturbed run.
func restartedByARule(u trainer) {
	flags := []string{"--param=launcher=torchrun", oneGPU, "--param=max-restarts=1", "--param=restart-if=loss is nan"}
	e := u.end(u.start("e2e/resumes.py", append(flags, "--param=script-args=--diverges")...)).succeeded().ranks(2)
	e.mustContain(e.log("train"), "Attempt 1 failed at step 15: training: the loss at step 15 is NaN; before it was ",
		" at step 11 (restart-if: loss is nan)", "Passing over checkpoint step-15, written at ",
		"The newest complete checkpoint is "+e.workspace()+"/checkpoints/"+e.run.Name+"/step-10; attempt 2 has it in MLENV_LAST_CHECKPOINT.",
		"[0 0] rank 0 starts after step 10\n", "[1 1] rank 1 starts after step 10\n")
	var got []string
	for _, a := range e.receipt.Attempts {
		got = append(got, fmt.Sprintf("%d %s from %q", a.Attempt, a.Reason, a.Checkpoint))
	}
	e.equal("attempts", fmt.Sprint(got), fmt.Sprint([]string{`1 StopCondition from ""`, `2  from "step-10"`}))
	undisturbed := u.end(u.start("e2e/resumes.py", flags...)).succeeded()
	e.equal("the final loss", e.finalLoss(), undisturbed.finalLoss())
}
