// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// savedWhenCancelled tests a run whose ranks take 20 s to save when it is cancelled, longer than the pod of the step train may wait: the
// teardown waits for them, and another run continues at the very step.
func savedWhenCancelled(u trainer) {
	name := u.start("e2e/saves.py", oneGPU, "--param=stop-grace=2m")
	u.waitOutput(name, "train", "Launcher auto is torchrun: ", "[0 0] rank 0 starts after step 0\n", "[1 1] rank 1 starts after step 0\n")
	if u.workstation != nil {
		u.cancelThere(name)
	} else {
		u.says(u.TempDir(), command.Done, "cancel", name)
	}
	u.resumesWhere(u.end(name), fail.Cancelled, "cancelled")
}

// savedAtTimeout is savedWhenCancelled for a run whose training's time is over. The step train waits for the ranks. On a busy machine the
// ranks may take longer than that time to start: then the time is doubled.
func savedAtTimeout(u trainer) {
	for timeout := 30 * time.Second; ; timeout *= 2 {
		e := u.end(u.start("e2e/saves.py", "--param=launcher=torchrun", oneGPU, "--param=stop-grace=2m", "--param=timeout="+timeout.String()))
		started := func(rank int) bool {
			return strings.Contains(e.recorded(e.run.UID, fmt.Sprintf("rank-%d.log", rank)), " starts after step 0\n")
		}
		if started(0) && started(1) || timeout >= timeForARunToEnd {
			u.resumesWhere(e, fail.TrainingTimeout, "timeout")
			return
		}
		e.equal("reason", e.receipt.Reason, string(fail.TrainingTimeout))
		u.Logf("the ranks had not started after %s", timeout)
	}
}

// savedWhenDrained tests that all ranks save when one node is drained, and that the next attempt continues there.
func savedWhenDrained(u trainer) {
	name := u.start("e2e/saves.py", "--param=launcher=torchrun", oneGPU, "--param=stop-grace=2m", "--param=max-restarts=1")
	u.waitOutput(name, "train", "[0 0] rank 0 starts after step 0\n", "[1 1] rank 1 starts after step 0\n")
	u.evict("ml-dev-env-1")
	u.continuesWhereItSaved(u.end(name))
}

// continuesWhereItSaved tests that a pod's end stopped the first attempt of a run, that all ranks saved the same step then, and that the
// second attempt continued there.
func (u trainer) continuesWhereItSaved(e ending) {
	u.Helper()
	e.succeeded().equal("attempts", fmt.Sprint(len(e.receipt.Attempts)), "2")
	log := e.log("train")
	saved := map[string]bool{}
	for _, match := range savesAt.FindAllStringSubmatch(log, -1) {
		e.equal("the cause", match[2], "container")
		saved[match[1]] = true
	}
	if len(saved) != 1 {
		e.Fatalf("the ranks saved at the steps %v, want all at one", saved)
	}
	for step := range saved {
		e.mustContain(log, "/step-"+step+"; attempt 2 has it in MLENV_LAST_CHECKPOINT.", "[0 0] rank 0 starts after step "+step+"\n",
			"[1 1] rank 1 starts after step "+step+"\n")
	}
}

// savesAt matches what a rank prints before it saves.
var savesAt = regexp.MustCompile(`rank \d saves step (\d+): ([a-z]+)\n`)

// resumesWhere tests that all ranks of a run that was stopped saved the same step, and that another run continues there.
func (u trainer) resumesWhere(e ending, reason fail.Reason, told string) {
	u.Helper()
	e.equal("reason", e.receipt.Reason, string(reason))
	saved := path.Base(e.receipt.Checkpoint)
	e.mustContain(e.receipt.Message, "its ranks saved "+saved+" before they ended")
	for rank := range 2 {
		match := savesAt.FindStringSubmatch(e.recorded(e.run.UID, fmt.Sprintf("rank-%d.log", rank)))
		if match == nil || "step-"+match[1] != saved || match[2] != told {
			e.Errorf("rank %d printed %q, want it to save %s, because of %s", rank, match, saved, told)
		}
	}
	for _, rank := range e.receipt.Ranks {
		if rank.Exit != (agent.Exit{}) {
			e.Errorf("rank %d ended with %+v, want 0", rank.Rank, rank.Exit)
		}
	}
	out, _ := u.says(u.TempDir(), command.Done, "run", "--resume-from="+e.run.Name, "--timeout=30m")
	step := strings.TrimPrefix(saved, "step-")
	e.mustContain(out, "[0 0] rank 0 starts after step "+step+"\n", "[1 1] rank 1 starts after step "+step+"\n")
}
