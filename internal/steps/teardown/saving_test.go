// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/locked"
)

func cancelledRun(r *v1.PipelineRun) { r.Spec.Status = v1.PipelineRunSpecStatusCancelledRunFinally }

// saving returns an environment whose ranks were cancelled and save by the script, and its log.
func saving(t *testing.T, script string) (*place, *locked.Buffer) {
	t.Helper()
	return stoppedBy(t, agent.StopCancelled, script)
}

// timeToSave is the grace of ranks that save in less.
const timeToSave = time.Minute

// stoppedBy is saving for another cause.
func stoppedBy(t *testing.T, cause agent.StopCause, script string) (*place, *locked.Buffer) {
	t.Helper()
	objects, agents := live(t)
	for _, object := range objects {
		if set, ok := object.(*appsv1.StatefulSet); ok {
			set.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(timeToSave / time.Second))
		}
	}
	for _, node := range agents {
		script := "trap '" + script + "; exit 0' TERM; touch up; while :; do sleep 0.05; done\n"
		if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "train.sh"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		spec := agent.JobSpec{Run: "train-1", Launcher: agent.Command, Script: "train.sh", Nodes: 2, RanksPerNode: 1, Grace: timeToSave}
		if _, err := node.Client.StartJob(t.Context(), "uid-1", spec); err != nil {
			t.Fatal(err)
		}
		for up := errors.New("not yet"); up != nil; _, up = os.Stat(filepath.Join(node.Config.Paths.Workspace, "up")) {
			time.Sleep(10 * time.Millisecond)
		}
		stop := agent.Stop{Cause: cause, Reason: "the run was stopped"}
		if err := node.Client.StopJob(t.Context(), "uid-1", stop); err != nil {
			t.Fatal(err)
		}
	}
	p := newPlace(t, []runtime.Object{pipelineRun(cancelledRun), task("train", "TaskRunCancelled", nil)}, objects...)
	log := &locked.Buffer{}
	p.log = command.TextLog(log)
	return p, log
}

// No rank caused the end of a run that was cancelled, whatever the ranks exit with when they are stopped.
func TestRanksOfACancelledRun(t *testing.T) {
	p, _ := saving(t, "exit 3")
	r, err := p.run(t.Context())
	if err != nil || r.Reason != fail.Cancelled || r.Cause != nil {
		t.Errorf("got %s by %+v, %v; want Cancelled by no rank", r.Reason, r.Cause, err)
	}
	for _, rank := range r.Ranks {
		if rank.Exit.Code != 3 || !rank.Stopped {
			t.Errorf("rank %d: %+v; want it stopped, with exit code 3", rank.Rank, rank)
		}
	}
}

// The ranks save for longer than the step train may wait. teardown waits for them, renews the Lease meanwhile, and finds what they saved.
func TestSaveThatTakesLong(t *testing.T) {
	const save = `sleep 17; mkdir -p checkpoints/train-1/step-7; echo x > checkpoints/train-1/step-7/mp_rank_00_model_states.pt
printf step-7 > checkpoints/train-1/latest`
	p, log := saving(t, save)
	before := p.renewed(t)
	r, err := p.run(t.Context())
	if err != nil || r.Reason != fail.Cancelled || r.Checkpoint != "/workspace/checkpoints/train-1/step-7" ||
		!strings.Contains(r.Message, "its ranks saved step-7") {
		t.Errorf("got %s: %s with checkpoint %q, %v; want Cancelled with step-7", r.Reason, r.Message, r.Checkpoint, err)
	}
	for _, rank := range r.Ranks {
		if rank.Exit != (agent.Exit{}) {
			t.Errorf("rank %d ended with %+v, want 0", rank.Rank, rank.Exit)
		}
	}
	if !strings.Contains(log.String(), "Still saving: rank 0 on node 0, rank 1 on node 1, for at most ") {
		t.Errorf("log %s, want the ranks that are still saving", log)
	}
	if p.atDeletion.IsZero() || !p.atDeletion.After(before) {
		t.Errorf("the lease was renewed at %s and then at %s, want a later time", before, p.atDeletion)
	}
}

// The step train has noted what a rule's ranks saved, unless the rule doubts the model: then nobody should resume from it.
func TestSaveOfARuleIsTheStepsToNote(t *testing.T) {
	p, _ := stoppedBy(t, agent.StopRule, `mkdir -p checkpoints/train-1/step-7
echo x > checkpoints/train-1/step-7/mp_rank_00_model_states.pt; printf step-7 > checkpoints/train-1/latest`)
	p.note(t, receipt.Entry{RunUID: "uid-1", Task: "train", Status: run.Failed, Reason: fail.StopCondition, Final: true,
		Message: "training: the loss at step 7 is NaN (stop-if: loss is nan)"})
	r, err := p.run(t.Context())
	if err != nil || r.Reason != fail.StopCondition || r.Checkpoint != "" || strings.Contains(r.Message, "step-7 before they ended") {
		t.Errorf("got %s: %s with checkpoint %q, %v; want StopCondition without a checkpoint", r.Reason, r.Message, r.Checkpoint, err)
	}
}

// A user who cancels with --now does not wait for ranks that save.
func TestCancelledNow(t *testing.T) {
	p, log := saving(t, "sleep 1000")
	ended := make(chan receipt.Receipt, 1)
	go func() { r, _ := p.run(t.Context()); ended <- r }()
	runs := p.clients.Tekton.TektonV1().PipelineRuns("ns")
	patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, run.CancelAnnotation, run.CancelNow)
	if _, err := runs.Patch(t.Context(), "train-1", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r := <-ended
	// The look for the cancellation, the few seconds, and the end.
	const timeUntilTheRanksAreKilled = 25 * time.Second
	if took := time.Since(began); took > timeUntilTheRanksAreKilled || !strings.Contains(log.String(), "cancelled with --now") {
		t.Errorf("it took %s, log %s; want less than %s", took, log, timeUntilTheRanksAreKilled)
	}
	for _, rank := range r.Ranks {
		if rank.Exit.Signal != "SIGKILL" {
			t.Errorf("rank %d ended with %+v, want SIGKILL", rank.Rank, rank.Exit)
		}
	}
}

// The reaper does not wait for pods whose ranks have minutes to save, and does not take them for stuck.
func TestReaperLeavesPodsTheirTime(t *testing.T) {
	now := start().Add(time.Hour)
	for name, tc := range map[string]struct {
		until time.Time
		want  fail.Reason
	}{"saving": {now.Add(10 * time.Minute), ""}, "stuck": {now.Add(-time.Minute), fail.TeardownIncomplete}} {
		pod := &corev1.Pod{ObjectMeta: about("env-0")}
		pod.DeletionTimestamp, pod.Finalizers = &metav1.Time{Time: tc.until}, []string{"kubelet"}
		l := held("uid-1")
		l.Annotations[lease.HolderName] = "train-1"
		p := newPlace(t, []runtime.Object{pipelineRun()}, l, pod)
		p.stuck = true
		const timeForThePodToGo = 500 * time.Millisecond
		orphan := Orphan{Lease: l, Why: "it is a test", Timeout: timeForThePodToGo}
		err := Release(t.Context(), p.clients, slog.New(slog.DiscardHandler), func() time.Time { return now }, orphan)
		if got := fail.ReasonOf(err); err == nil && tc.want != "" || err != nil && got != tc.want {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
		r, err := receipt.ReadJournal(t.Context(), p.kube, "ns", "train-1")
		if err != nil || r.Receipt == nil || strings.Contains(r.Receipt.Teardown, "may save until 2026-07-01T13:10:00Z") != (tc.want == "") {
			t.Errorf("%s: got %+v, %v; want until when the ranks may save", name, r.Receipt, err)
		}
	}
}

// renewed returns when the environment's Lease was renewed.
func (p *place) renewed(t *testing.T) time.Time {
	t.Helper()
	l, err := p.kube.CoordinationV1().Leases("ns").Get(t.Context(), "env", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Spec.RenewTime.Time
}
