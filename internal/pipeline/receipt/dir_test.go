// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// The journal of a local run is as on a cluster, in files.
func TestDir(t *testing.T) {
	d := Dir(t.TempDir())
	s := Start{Run: "try-1", RunUID: "try-1", Environment: "try-1", Started: noon()}
	h, err := d.BeginJournal(s)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	kept := h.Writer(t.Context(), log, "train")
	kept.Progress(t.Context(), Progress{At: noon(), Step: 7, Checkpoint: "/workspace/checkpoints/try-1/step-7"})
	m, err := d.Read("try-1")
	if err != nil || m.Run != "try-1" || m.RunUID != "try-1" || !m.Started.Equal(noon()) || m.Receipt != nil {
		t.Fatalf("the journal is %+v, %v", m, err)
	}
	if v := m.Verdict(Seen{}); v.Verdict != "" || len(v.Running) != 1 {
		t.Errorf("in progress it stands as %+v", v)
	}
	kept.End(t.Context(), fail.Becausef(fail.RankFailed, "rank 1 failed"), func(p *Entry) { p.Final = true })
	if m, err = d.Read("try-1"); err != nil {
		t.Fatal(err)
	}
	r := m.ToReceipt(m.Verdict(Seen{Over: true}), noon().Add(time.Minute))
	if r.Verdict != Failed || r.Reason != fail.RankFailed || len(r.Phases) != 1 || r.Phases[0].Status != run.Failed || r.Checkpoint == "" {
		t.Errorf("the receipt is %+v", r)
	}
	if err := h.Write(r); err != nil {
		t.Fatal(err)
	}
	if m, err = d.Read("try-1"); err != nil || m.Receipt == nil || m.Receipt.Reason != fail.RankFailed {
		t.Errorf("the journal is %+v, %v; want the receipt", m, err)
	}
	// What another program wrote is checked as on a cluster.
	if err := os.WriteFile(filepath.Join(string(d), key), []byte(`{"verdict": "Maybe"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read("try-1"); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("got %v, want InvalidInput", err)
	}
}

// Without a folder, as on a full disk, the process that runs it still knows how the run stands.
func TestMemoryWithoutFiles(t *testing.T) {
	d := Dir(t.TempDir())
	h, err := d.BeginJournal(Start{Run: "try-1", RunUID: "try-1", Environment: "try-1", Started: noon()})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(string(d)); err != nil {
		t.Fatal(err)
	}
	h.Writer(t.Context(), slog.New(slog.NewTextHandler(t.Output(), nil)), "train").End(t.Context(), nil, nil)
	m, err := h.Read()
	if v := m.Verdict(Seen{Over: true}); err != nil || v.Verdict != Succeeded {
		t.Errorf("it stands as %+v, %v; want a success", v, err)
	}
	if err := h.Write(Receipt{}); err == nil {
		t.Error("a receipt was written to a folder that does not exist")
	}
	if _, err := d.BeginJournal(Start{Run: "try-2"}); err == nil {
		t.Error("a run began without room for its receipt")
	}
}
