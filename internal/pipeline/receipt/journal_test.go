// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

func noon() time.Time { return time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC) }

func startOf(uid string) Start {
	return Start{Run: "train-1", Namespace: "ns", RunUID: uid, Environment: "env", Started: noon()}
}

// Two callers begin the journal of a run, in any order. A later run of the same name begins its own.
func TestTwoBeginnersAgree(t *testing.T) {
	client, ctx := fake.NewClientset(), t.Context()
	mine, theirs := startOf("uid-1"), startOf("uid-1")
	theirs.Started = noon().Add(time.Minute)
	for _, s := range []Start{mine, theirs} {
		if err := BeginJournal(ctx, client, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := Note(ctx, client, mine, Entry{Task: "sync-repo", Status: run.Succeeded, Commit: "abc"}); err != nil {
		t.Fatal(err)
	}
	m, err := ReadJournal(ctx, client, "ns", "train-1")
	if err != nil || !m.Started.Equal(noon()) || m.EntryOf("sync-repo") == nil || m.Receipt != nil {
		t.Errorf("got %+v, %v; want what the first one began, with the part", m, err)
	}
	if _, err := Read(ctx, client, "ns", "train-1"); !apierrors.IsNotFound(err) {
		t.Errorf("the receipt of a run in progress: %v, want NotFound", err)
	}
	if all, err := List(ctx, client, "ns", ""); err != nil || len(all) != 0 {
		t.Errorf("receipts %v, %v; want none of a run in progress", all, err)
	}
	if err := Write(ctx, client, Receipt{Run: "train-1", RunUID: "uid-1", Namespace: "ns", Environment: "env",
		Verdict: Succeeded}); err != nil {
		t.Fatal(err)
	}
	if err := BeginJournal(ctx, client, mine); err != nil {
		t.Fatal(err)
	}
	if r, err := Read(ctx, client, "ns", "train-1"); err != nil || r.Verdict != Succeeded {
		t.Errorf("after a late beginner: %v, %v; want the receipt", r.Verdict, err)
	}
	if err := BeginJournal(ctx, client, startOf("uid-2")); err != nil {
		t.Fatal(err)
	}
	if m, err = ReadJournal(ctx, client, "ns", "train-1"); err != nil || m.RunUID != "uid-2" || len(m.Entries) != 0 || m.Receipt != nil {
		t.Errorf("a later run of the name has %+v, %v; want nothing of the earlier one", m, err)
	}
	if open, err := Unfinished(ctx, client, "ns"); err != nil || len(open) != 1 {
		t.Errorf("unfinished %v, %v; want the later run", open, err)
	}
}

// A step that comes before anyone else begins the journal. A part of another run counts for nothing.
func TestPartBeginsTheMemory(t *testing.T) {
	client, ctx := fake.NewClientset(), t.Context()
	if err := NoteProgress(ctx, client, startOf("uid-1"), Progress{At: noon(), Step: 7}); err != nil {
		t.Fatal(err)
	}
	if err := Note(ctx, client, startOf("another"), Entry{Task: "train", Status: run.Failed, Reason: fail.RankFailed}); err != nil {
		t.Fatal(err)
	}
	m, err := ReadJournal(ctx, client, "ns", "train-1")
	if err != nil || m.RunUID != "uid-1" || m.Progress == nil || m.Progress.Step != 7 || len(m.Entries) != 0 {
		t.Errorf("got %+v, %v; want the progress of uid-1 alone", m, err)
	}
}

// A failure of a step counts more than the end of the run, unless the step ended because of that.
func TestEndOfARun(t *testing.T) {
	noted := func(reason fail.Reason, minute int) Entry {
		return Entry{Task: string(reason), Status: run.Failed, Reason: reason, Message: "words", Started: noon(),
			Ended: noon().Add(time.Duration(minute) * time.Minute)}
	}
	for _, tc := range []struct {
		name  string
		parts []Entry
		want  string
	}{
		{"nothing is known", nil, "Cancelled: the run was deleted"},
		{"a step runs", []Entry{{Task: "train", Status: run.Running}}, "Cancelled: the run was deleted"},
		{"a step ended with the run", []Entry{noted(fail.Cancelled, 1)}, "Cancelled: the run was deleted"},
		{"a step failed before", []Entry{noted(fail.RankFailed, 1), noted(fail.Cancelled, 2)}, "RankFailed: words"},
		{"two failed", []Entry{noted(fail.NodeLost, 3), noted(fail.RankFailed, 1)}, "RankFailed: words"},
	} {
		r := Journal{Start: startOf("uid"), Entries: tc.parts}.End(fail.Cancelled, Deleted, noon().Add(time.Hour))
		if got := string(r.Reason) + ": " + r.Message; got != tc.want || r.Verdict != Failed || len(r.Phases) != len(tc.parts) {
			t.Errorf("%s: %s %s, %d phases; want %s", tc.name, r.Verdict, got, len(r.Phases), tc.want)
		}
		for _, phase := range r.Phases {
			if phase.Status != run.Failed || phase.Ended.IsZero() {
				t.Errorf("%s: phase %+v, want an end", tc.name, phase)
			}
		}
	}
}

// Parts of any size fit beside a receipt of any size.
func TestPartsAlwaysFit(t *testing.T) {
	long := strings.Repeat("\x00<é", 1<<16)
	huge := Entry{
		Task: "train", Status: run.Failed, Reason: fail.RankFailed, Message: long,
		Metrics:  json.RawMessage(`"` + strings.Repeat("x", 1<<16) + `"`),
		Training: &Training{Script: long, Args: []string{long}, Nodes: 2}, Order: make([]int, 1<<14),
		Cause:   &cause.Culprit{Python: &agent.PythonError{Message: long}},
		Started: time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	for _, p := range []Entry{huge, {Task: "train", Metrics: json.RawMessage("{")}} {
		content, err := p.encode()
		var back Entry
		if err != nil || len(content) > maxEntry || json.Unmarshal(content, &back) != nil || back.Reason != p.Reason || back.Status != p.Status {
			t.Errorf("got %d bytes, %v: %+v; want at most %d with reason and status", len(content), err, back, maxEntry)
		}
	}
	const steps, sizeOfAConfigMap = 7, 1 << 20
	if size := maxSize + (steps+1)*maxEntry; size > sizeOfAConfigMap {
		t.Errorf("a receipt and its parts may have %d bytes, want at most %d", size, sizeOfAConfigMap)
	}
}

// Anyone who may write ConfigMaps may write a journal.
func TestForgedMemory(t *testing.T) {
	client, ctx := fake.NewClientset(), t.Context()
	if err := BeginJournal(ctx, client, startOf("uid-1")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"step-train.json": "[", "step-.json": `{"runUID":"uid-1"}`, "progress.json": `{"runUID":"uid-1","step":"x"}`, "other": "x",
		"receipt.json": `{"runUID":"uid-2"}`,
	} {
		if err := (configMap{client, startOf("uid-1")}).put(ctx, name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := ReadJournal(ctx, client, "ns", "train-1")
	if err != nil || m.Progress != nil || m.Receipt != nil || m.EntryOf("train") != nil {
		t.Errorf("got %+v, %v; want none of it", m, err)
	}
	if err := (configMap{client, startOf("uid-1")}).put(ctx, startKey, []byte(`{"runUID":"../../x"}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadJournal(ctx, client, "ns", "train-1"); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("a UID with a path: %v, want InvalidInput", err)
	}
}

// Runs in progress do not count among the receipts that are kept.
func TestPruneKeepsRunsInProgress(t *testing.T) {
	client, ctx := fake.NewClientset(), t.Context()
	for i := range Keep + 2 {
		s := startOf(fmt.Sprint("uid-", i))
		s.Run = fmt.Sprint("run-", i)
		if err := BeginJournal(ctx, client, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := Prune(ctx, client, "ns", "env", "", false); err != nil {
		t.Fatal(err)
	}
	left, err := client.CoreV1().ConfigMaps("ns").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Keep+2, len(left.Items)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
