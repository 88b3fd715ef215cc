// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// The memory of a local run is as on a cluster, in files.
func TestDir(t *testing.T) {
	d := Dir(t.TempDir())
	s := Start{Run: "try-1", RunUID: "try-1", Environment: "try-1", Started: noon()}
	if err := d.Begin(s); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	kept := d.Keeper(t.Context(), log, s, "train")
	kept.Progress(t.Context(), Progress{At: noon(), Step: 7, Checkpoint: "/workspace/checkpoints/try-1/step-7"})
	m, err := d.Recall("try-1")
	if err != nil || m.Run != "try-1" || m.RunUID != "try-1" || !m.Started.Equal(noon()) || m.Receipt != nil {
		t.Fatalf("the memory is %+v, %v", m, err)
	}
	if v := m.Verdict(Seen{}); v.Verdict != "" || len(v.Running) != 1 {
		t.Errorf("in progress it stands as %+v", v)
	}
	kept.End(t.Context(), fail.Becausef(fail.RankFailed, "rank 1 failed"), func(p *Part) { p.Final = true })
	if m, err = d.Recall("try-1"); err != nil {
		t.Fatal(err)
	}
	r := m.Account(m.Verdict(Seen{Over: true}), noon().Add(time.Minute))
	if r.Verdict != Failed || r.Reason != fail.RankFailed || len(r.Phases) != 1 || r.Phases[0].Status != run.Failed || r.Checkpoint == "" {
		t.Errorf("the receipt is %+v", r)
	}
	if err := d.Write(r); err != nil {
		t.Fatal(err)
	}
	if m, err = d.Recall("try-1"); err != nil || m.Receipt == nil || m.Receipt.Reason != fail.RankFailed {
		t.Errorf("the memory is %+v, %v; want the receipt", m, err)
	}
	// What another program wrote is checked as on a cluster, and a failure to write changes nothing but the log.
	if err := os.WriteFile(filepath.Join(string(d), key), []byte(`{"verdict": "Maybe"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Recall("try-1"); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("got %v, want InvalidInput", err)
	}
	gone := Dir(filepath.Join(string(d), "none"))
	gone.Keeper(t.Context(), log, s, "train").End(t.Context(), errors.New("failed"), nil)
	if err := gone.Write(r); err == nil {
		t.Error("a receipt was written to a folder that does not exist")
	}
}
