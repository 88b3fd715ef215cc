// SPDX-License-Identifier: Apache-2.0

package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// TestResumed: two nodes with separate volumes each save a checkpoint, and node 1 is killed while it saves the next one.
func TestResumed(t *testing.T) {
	training, out, agents := newRestartable(t, 1, `echo "attempt $MLENV_ATTEMPT from ${MLENV_LAST_CHECKPOINT-nothing}"
[ $MLENV_ATTEMPT = 1 ] || exit 0
cd "$SAVED"
save() { at=$NODE_RANK/workspace/checkpoints/run/step-$1; mkdir -p $at; echo x >$at/mp_rank_00_model_states.pt; touch -d `+
		`2026-01-0$1 $at/* $at; }
save 1
[ $NODE_RANK = 1 ] || save 2
touch done-$NODE_RANK
until [ -e done-0 ] && [ -e done-1 ]; do sleep 0.02; done
[ $NODE_RANK = 0 ] && exec sleep 1000
exit 3`)
	saved := t.TempDir()
	training.Spec.Env = map[string]string{"SAVED": saved}
	for i, node := range agents {
		if err := os.Symlink(filepath.Dir(node.Config.Paths.Workspace), filepath.Join(saved, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := training.attempts(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, node := range agents {
		if want := fmt.Sprintf("[%d -] attempt 2 from %s/checkpoints/run/step-1\n", i, node.Config.Paths.Workspace); !strings.Contains(
			out.String(), want) {
			t.Errorf("output %q, want %q in it", out, want)
		}
		status, err := node.Client.Job(t.Context(), "job")
		if err != nil || status.Spec.Checkpoint == nil || *status.Spec.Checkpoint != "step-1" {
			t.Errorf("node %d: checkpoint %v, %v; want step-1 on record", i, status.Spec.Checkpoint, err)
		}
	}
	if got := receipt.Describe(training.failed(Result{}, errors.New("again"))); !strings.HasPrefix(got, "from step-1, ") {
		t.Errorf("a receipt would describe attempt 2 as %q, want its checkpoint", got)
	}
	for _, want := range []string{
		"Passing over an incomplete checkpoint: step-2: node 1: it has no part of it.",
		"The newest complete checkpoint is /workspace/checkpoints/run/step-1; attempt 2 has it in MLENV_LAST_CHECKPOINT.",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output %q, want %q in it", out, want)
		}
	}
}

// TestSearchForCheckpoints: one of the nodes that share a volume is asked, once, for the ranks of all of them.
func TestSearchForCheckpoints(t *testing.T) {
	training, out, agents := newRestartable(t, 1, "")
	training.Spec.Launcher, training.Spec.Attempts = agent.Torchrun, []agent.Attempt{{Attempt: 1}}
	training.Spec.Order = []int{0, 1}
	path := func(node int, name string) string {
		return filepath.Join(agents[node].Config.Paths.Workspace, "checkpoints/run/step-1", name)
	}
	write := func(path, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for rank := range 4 {
		write(path(rank/2, fmt.Sprintf("__%d_0.distcp", rank)), "x")
		write(path(rank/2, ".metadata"), "__0_0.distcp __1_0.distcp __2_0.distcp __3_0.distcp.")
	}
	check := func(want, message string) {
		t.Helper()
		out.Reset()
		training.findCheckpoint(t.Context())
		got := "nothing"
		if name := training.Spec.Checkpoint; name != nil {
			got = *name
		}
		if got != want || !strings.Contains(out.String(), message) {
			t.Errorf("got %q, %q; want %q, %q", got, out, want, message)
		}
	}
	check("step-1", "step-1; attempt 2 has it")
	// On one shared volume the same files are not enough.
	id, err := os.ReadFile(filepath.Join(agents[0].Config.Paths.Workspace, ".mlenv-volume-id"))
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(agents[1].Config.Paths.Workspace, ".mlenv-volume-id"), string(id))
	check("", "step-1: missing __2_0.distcp, __3_0.distcp.")
	training.Spec.Env = map[string]string{agent.ResumeVariable: "run"}
	check("nothing", "It is not known whether /workspace/checkpoints/run has a complete checkpoint")
	training.Spec.Env[agent.ResumeVariable] = "earlier"
	check("nothing", "/workspace/checkpoints/earlier has no checkpoint in a known format")
	write(path(0, "../../verl/global_step_20/actor/model_world_size_4_rank_0.pt"), "x")
	training.Spec.Env[agent.ResumeVariable] = "verl"
	check("nothing", "global_step_20: missing its name in a file latest or latest_checkpointed_iteration.txt.")
	check("nothing", "and no mark of a whole one, so MLENV_LAST_CHECKPOINT is not set")
	for of, want := range map[string]string{
		"run":     "Resuming run run: /workspace/checkpoints/run and the working directories of its runs have no complete checkpoint",
		"verl":    "Not known as complete: global_step_20: missing its name in a file latest",
		"earlier": "the script may start from the beginning.",
	} {
		out.Reset()
		training.Spec.Env[agent.ResumeVariable] = of
		training.sayResume(t.Context(), t.Context())
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: got %q, want %q", of, out, want)
		}
	}
	training.Spec.Env[agent.ResumeVariable] = "../../etc"
	check("nothing", "")
}

// TestCheckpointsAtRelativePaths: the agents find checkpoints that the job wrote to its working directory, and checkpoints of the run
// that it resumes. They do not find other runs'.
func TestCheckpointsAtRelativePaths(t *testing.T) {
	training, out, agents := newRestartable(t, 1, "")
	training.Spec.Attempts = []agent.Attempt{{Attempt: 1}}
	save := func(job, run string, minute int) {
		t.Helper()
		for i, node := range agents {
			workspace := node.Config.Paths.Workspace
			at := filepath.Join(workspace, ".mlenv/work", job, "ckpt")
			step, modified := filepath.Join(at, fmt.Sprintf("step-%d", minute)), time.Unix(1_790_000_000, 0).Add(time.Duration(minute)*time.Minute)
			spec := agent.JobSpec{Run: run, Launcher: agent.Command, Script: "train.sh", Nodes: 2, RanksPerNode: 1}
			status := record.Dir(filepath.Join(workspace, ".mlenv/runs", job)).NodeStatus(i)
			err := errors.Join(os.MkdirAll(step, 0o755), os.WriteFile(filepath.Join(at, "latest"), []byte(filepath.Base(step)), 0o644),
				os.WriteFile(filepath.Join(step, "model"), []byte("weights"), 0o644), os.Chtimes(filepath.Join(step, "model"), modified, modified),
				os.Chtimes(step, modified, modified),
				record.WriteJSON(status, agent.JobStatus{State: agent.Exited, Spec: spec}))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	save(training.ID, "run", 1)
	save("earlier", "first", 2)
	save("other", "stranger", 3)
	own := training.ID + "/ckpt/step-1"
	for resumed, want := range map[string]string{"": own, "first": "earlier/ckpt/step-2", "nosuch": own} {
		training.Spec.Env = map[string]string{agent.ResumeVariable: resumed}
		out.Reset()
		training.findCheckpoint(t.Context())
		message := "The newest complete checkpoint is /workspace/.mlenv/work/" + want + "; attempt 2 has it"
		if !strings.Contains(out.String(), message) {
			t.Errorf("resumed from %q: output %q, want %q in it", resumed, out, message)
		}
		if training.Spec.Checkpoint == nil || training.Spec.CheckpointJob+"/"+*training.Spec.Checkpoint != want {
			t.Errorf("resumed from %q: %v of %q, want %s", resumed, training.Spec.Checkpoint, training.Spec.CheckpointJob, want)
		}
	}
}
