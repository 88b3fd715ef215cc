// SPDX-License-Identifier: Apache-2.0

package train

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// journalOf gives a training the journal of a run, and returns what reads it.
func journalOf(t *testing.T, training *Training) (read func() receipt.Journal) {
	t.Helper()
	training.Clients.Tekton = tektonfake.NewSimpleClientset()
	of := run.Flags{Name: "run", UID: "uid", Task: "train"}
	training.journal = receipt.NewWriter(t.Context(), training.Clients, slog.New(slog.DiscardHandler), of, "env")
	return func() receipt.Journal {
		t.Helper()
		m, err := receipt.ReadJournal(t.Context(), training.Clients.Kube, "ns", "run")
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
}

// Ranks save at SIGTERM. The receipt of a training that was stopped has that checkpoint, not the one of the last look, as has the advice.
func TestStopNotesTheCheckpoint(t *testing.T) {
	training, _, agents := newRestartable(t, 0, "")
	training.noteCheckpoint(t.Context()) // of no run: nothing to write
	read := journalOf(t, training)
	training.newest.Store(new("/workspace/checkpoints/run/step-1"))
	advised := func(want string) {
		t.Helper()
		err := fail.Advise(errors.New("it had not ended"), "mlenv run   "+moreTime)
		err = training.withSaved(t.Context(), []agent.JobStatus{{StopCause: agent.StopDeadline}}, err)
		if got := fail.NextOf(err); got != "mlenv run   # more time, "+want {
			t.Errorf("the advice is %q, want %q", got, want)
		}
	}
	advised("from the beginning: no complete checkpoint was found")
	for _, node := range agents {
		at := filepath.Join(node.Config.Paths.Workspace, "checkpoints/run/step-2")
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "mp_rank_00_model_states.pt"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	advised("from step-2")
	if got := read().Progress; got == nil || got.Checkpoint != "/workspace/checkpoints/run/step-2" {
		t.Errorf("got progress %+v, want the checkpoint step-2", got)
	}
}
