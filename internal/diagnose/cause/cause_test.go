package cause

import (
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestFind(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	python := func(seconds float64, kind, message string) *agent.PythonError {
		return &agent.PythonError{Seen: at(seconds), Type: kind, Message: message, File: "train.py", Line: 7}
	}
	closed := "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.128.1.4]:29817"
	tests := []struct {
		name  string
		ranks []agent.RankStatus
		want  int
		known bool
	}{
		{"the only one", []agent.RankStatus{
			{Rank: 0, Ended: at(9)},
			{Rank: 1, Ended: at(2), Exit: agent.Exit{Code: 7}},
		}, 1, true},
		{"peers exit first", []agent.RankStatus{
			{Rank: 0, Ended: at(2.1), Exit: agent.Exit{Code: 1}, Python: python(2.05, "RuntimeError", closed)},
			{Rank: 1, Ended: at(2.2), Exit: agent.Exit{Code: 1}, Python: python(2.06, "torch.distributed.DistBackendError", "NCCL error: ncclRemoteError: remote process exited or there was a network error")},
			{Rank: 2, Ended: at(5), Exit: agent.Exit{Code: 1}, Python: python(2, "ValueError", "bad batch")},
			{Rank: 3, Ended: at(4), Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true},
		}, 2, true},
		{"the one with the error was told to end before it did", []agent.RankStatus{
			{Rank: 0, Ended: at(2.1), Exit: agent.Exit{Code: 1}, Python: python(2.05, "RuntimeError", closed)},
			{Rank: 1, Ended: at(6), Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true, Python: python(2, "ZeroDivisionError", "division by zero")},
		}, 1, true},
		{"an abort because of a peer has no Python error", []agent.RankStatus{
			{Rank: 0, Ended: at(2), Exit: agent.Exit{Code: -1, Signal: "SIGABRT"}, Tail: []string{"terminate called after throwing an instance of 'gloo::IoException'", "  what():  " + closed}},
			{Rank: 1, Ended: at(3), Exit: agent.Exit{Code: -1, Signal: "SIGSEGV"}},
		}, 1, true},
		{"killed for memory", []agent.RankStatus{
			{Rank: 0, Ended: at(2), Exit: agent.Exit{Code: 1}, Python: python(1.9, "RuntimeError", closed)},
			{Rank: 3, Ended: at(3), Exit: agent.Exit{Code: -1, Signal: "SIGKILL", OutOfMemory: true}},
		}, 3, true},
		{"only consequences", []agent.RankStatus{
			{Rank: 0, Ended: at(3), Exit: agent.Exit{Code: 1}, Python: python(2, "RuntimeError", closed)},
			{Rank: 1, Ended: at(2), Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true},
		}, 0, false},
		{"two errors of their own: the earlier", []agent.RankStatus{
			{Rank: 0, Ended: at(3), Exit: agent.Exit{Code: 1}, Python: python(2.5, "KeyError", "'a'")},
			{Rank: 1, Ended: at(4), Exit: agent.Exit{Code: 1}, Python: python(2, "KeyError", "'b'")},
		}, 1, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, ok := Find([]agent.JobStatus{{Ranks: test.ranks}})
			if !ok || got.Rank.Rank != test.want || got.Known != test.known {
				t.Errorf("Find = rank %d, known %v, ok %v; want rank %d, known %v", got.Rank.Rank, got.Known, ok, test.want, test.known)
			}
		})
	}
	if got, ok := Find([]agent.JobStatus{{Ranks: []agent.RankStatus{{Ended: at(1)}, {}}}}); ok {
		t.Errorf("Find of no failure = %+v", got)
	}
}

// A rank that leaves its loop early ends the others, and none of them has an error of its own.
func TestRankThatLeft(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	lost := agent.RankStatus{Rank: 1, Node: 1, Started: start, Ended: at(20), Exit: agent.Exit{Code: 1}, Python: &agent.PythonError{Type: "RuntimeError", Message: "Connection closed by peer"}}
	own := lost
	own.Python = &agent.PythonError{Type: "ValueError", Message: "bad batch"}
	for _, tc := range []struct {
		name         string
		first, other agent.RankStatus
		want         string // "" for no rank that left
	}{
		{"before", agent.RankStatus{Started: start, Ended: at(12)}, lost, "rank 0 on node 0 exited with 0 after 12s, although the others still needed it"},
		{"while it released its GPU", agent.RankStatus{Started: start, Ended: at(22)}, lost, "rank 0 on node 0 exited with 0 after 22s"},
		{"long after", agent.RankStatus{Started: start, Ended: at(90)}, lost, ""},
		{"because it was stopped", agent.RankStatus{Started: start, Ended: at(21), Stopped: true}, lost, ""},
		{"and another has an error of its own", agent.RankStatus{Started: start, Ended: at(12)}, own, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, _ := Find([]agent.JobStatus{{Ranks: []agent.RankStatus{tc.first}}, {Ranks: []agent.RankStatus{tc.other}}})
			err := found.Err(Job{Record: "/record"})
			if (found.Left != nil) != (tc.want != "") || !strings.Contains(err.Error(), tc.want) || found.Left != nil && !strings.Contains(fail.NextOf(err), "/record/rank-0.log on node 0") {
				t.Errorf("got %v (%s), want %q", err, fail.NextOf(err), tc.want)
			}
		})
	}
}

func TestCauseErr(t *testing.T) {
	err := Cause{Known: true, Rank: agent.RankStatus{Rank: 3, Node: 1, Exit: agent.Exit{Code: 1}, Tail: []string{"one", "two"},
		Python: &agent.PythonError{Type: "ValueError", Message: "bad batch", File: "/workspace/.mlenv/trees/" + strings.Repeat("a0", 32) + "/train.py", Line: 7}}}.Err(Job{Run: "train-1", Namespace: "ns", Record: "/workspace/.mlenv/runs/x"})
	want := "training: rank 3 on node 1 exited with 1, want exit code 0: ValueError: bad batch (train.py:7)\nits last lines:\n  one\n  two"
	if fail.Details(err) != want {
		t.Errorf("got %q, want %q", fail.Details(err), want)
	}
	if headline, _, _ := strings.Cut(want, "\n"); err.Error() != headline {
		t.Errorf("Err() = %q, want %q without the last lines", err, headline)
	}
	if got, want := fail.NextOf(err), "mlenv logs train-1 --rank=3 -n ns"; got != want {
		t.Errorf("next: %s, want %s: the nodes of a run are gone after it", got, want)
	}
	kept := Job{Environment: "env", Namespace: "ns", Record: "/workspace/.mlenv/runs/x"}
	if got, want := kept.log(1, 3), "mlenv shell 1 --name=env -n ns -- cat /workspace/.mlenv/runs/x/rank-3.log"; got != want {
		t.Errorf("in a kept environment: %s, want %s", got, want)
	}
	if got := fail.ReasonOf(err); got != fail.RankFailed {
		t.Errorf("reason %s, want RankFailed", got)
	}
	killed := Cause{Known: true, Rank: agent.RankStatus{Exit: agent.Exit{Code: -1, Signal: "SIGKILL", OutOfMemory: true}}}.Err(Job{})
	if got := fail.ReasonOf(killed); got != fail.OutOfMemory || !strings.Contains(killed.Error(), "was killed for memory") {
		t.Errorf("reason %s (%v), want OutOfMemory", got, killed)
	}
}
