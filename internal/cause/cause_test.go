// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
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
	chain := func(seconds float64, first, kind, message string) *agent.PythonError {
		p := python(seconds, kind, message)
		p.First = first
		return p
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
			{Rank: 1, Ended: at(2.2), Exit: agent.Exit{Code: 1}, Python: python(2.06, "torch.distributed.DistBackendError",
				"NCCL error: ncclRemoteError: remote process exited or there was a network error")},
			{Rank: 2, Ended: at(5), Exit: agent.Exit{Code: 1}, Python: python(2, "ValueError", "bad batch")},
			{Rank: 3, Ended: at(4), Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true},
		}, 2, true},
		{"the one with the error was told to end before it did", []agent.RankStatus{
			{Rank: 0, Ended: at(2.1), Exit: agent.Exit{Code: 1}, Python: python(2.05, "RuntimeError", closed)},
			{Rank: 1, Ended: at(6), Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true,
				Python: python(2, "ZeroDivisionError", "division by zero")},
		}, 1, true},
		{"an abort because of a peer has no Python error", []agent.RankStatus{
			{Rank: 0, Ended: at(2), Exit: agent.Exit{Code: -1, Signal: "SIGABRT"},
				Tail: []string{"terminate called after throwing an instance of 'gloo::IoException'", "  what():  " + closed}},
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
		{"the clean-up after an error loses the peers", []agent.RankStatus{
			{Rank: 0, Ended: at(3), Exit: agent.Exit{Code: 1}, Python: python(2, "RuntimeError", closed)},
			{Rank: 1, Ended: at(9), Exit: agent.Exit{Code: 1}, Python: chain(8, "ValueError: bad batch", "RuntimeError", closed)},
		}, 1, true},
		{"others wrap the lost peer in an error of their own", []agent.RankStatus{
			{Rank: 0, Ended: at(3), Exit: agent.Exit{Code: 1}, Python: chain(2, "RuntimeError: "+closed, "StepFailed", "step 3")},
			{Rank: 1, Ended: at(4), Exit: agent.Exit{Code: -1, Signal: "SIGKILL"}},
		}, 1, true},
		{"a handled error before the lost peer is doubtful", []agent.RankStatus{
			{Rank: 0, Ended: at(3), Exit: agent.Exit{Code: 1}, Python: chain(2, "KeyError: 'cached'", "RuntimeError", closed)},
			{Rank: 1, Ended: at(4), Exit: agent.Exit{Code: 3}},
		}, 1, true},
		{"a service of the training refuses the connection", []agent.RankStatus{
			{Rank: 0, Ended: at(2), Exit: agent.Exit{Code: 1}, Python: python(1, "RuntimeError", closed)},
			{Rank: 1, Ended: at(3), Exit: agent.Exit{Code: 1}, Python: chain(2, "ConnectionRefusedError: [Errno 111] Connection refused",
				"urllib.error.URLError", "<urlopen error [Errno 111] Connection refused>")},
		}, 1, true},
		{"the port is in use", []agent.RankStatus{
			{Rank: 0, Ended: at(9), Exit: agent.Exit{Code: 1}, Python: python(8, "torch.distributed.DistNetworkError",
				"port: 29500, code: -98, name: EADDRINUSE, message: address already in use")},
			{Rank: 1, Ended: at(3), Exit: agent.Exit{Code: 1}, Python: python(2, "torch.distributed.DistNetworkError",
				"failed to recv, got 0 bytes")},
		}, 0, true},
		{"an interrupt that the agent did not send", []agent.RankStatus{
			{Rank: 0, Ended: at(2), Exit: agent.Exit{Code: 1}, Python: python(1, "RuntimeError", closed)},
			{Rank: 1, Ended: at(3), Exit: agent.Exit{Code: -1, Signal: "SIGINT"}, Python: python(2, "KeyboardInterrupt", "")},
			{Rank: 2, Ended: at(3), Exit: agent.Exit{Code: -1, Signal: "SIGINT"}, Python: python(1, "KeyboardInterrupt", ""), Stopped: true},
		}, 1, true},
		{"a rank that was stopped had handled its error", []agent.RankStatus{
			{Rank: 0, Ended: at(9), Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true, Python: python(1, "OSError", "no tracker"),
				Tail: []string{"step 39", "step 40"}},
			{Rank: 1, Ended: at(8), Exit: agent.Exit{Code: -1, Signal: "SIGKILL"}},
		}, 1, true},
		{"an abort because of a peer, long after a handled error", []agent.RankStatus{
			{Rank: 0, Ended: at(9), Exit: agent.Exit{Code: -1, Signal: "SIGABRT"}, Python: python(1, "OSError", "no tracker"),
				Tail: []string{"step 40", "  what():  " + closed}},
			{Rank: 1, Ended: at(10), Exit: agent.Exit{Code: -1, Signal: "SIGSEGV"}},
		}, 1, true},
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
		t.Errorf("Find without a failure = %+v", got)
	}
}

// TestCulprits diagnoses recordings of the ranks of real trainings. make culprits records them.
func TestCulprits(t *testing.T) {
	content, err := os.ReadFile("testdata/culprits.json")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(content) {
		var training struct {
			Name, Launcher, Rank, Want string
			Reason                     fail.Reason
			Statuses                   []agent.JobStatus
		}
		if err := json.Unmarshal(line, &training); err != nil {
			t.Fatal(err)
		}
		found, _ := Find(training.Statuses)
		rank := found.Rank
		if found.Left != nil {
			rank = *found.Left
		}
		err := found.Err(Job{})
		if failed := (Error{}); !errors.As(err, &failed) || failed.Rank.Rank != found.Rank.Rank {
			t.Errorf("the error has %+v, want the cause that Find returned", failed)
		}
		if training.Rank != "any" && training.Rank != strconv.Itoa(rank.Rank) || fail.ReasonOf(err) != training.Reason ||
			!strings.Contains(err.Error(), training.Want) {
			t.Errorf("%s, %s: got %s: %v; want rank %s and %s with %q", training.Launcher, training.Name, fail.ReasonOf(err), err, training.Rank,
				training.Reason, training.Want)
		}
	}
}

// A rank that leaves its loop early takes the others down, and none of them has an error of its own.
func TestRankThatLeft(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	lost := agent.RankStatus{Rank: 1, Node: 1, Started: start, Ended: at(20), Exit: agent.Exit{Code: 1},
		Python: &agent.PythonError{Type: "RuntimeError", Message: "Connection closed by peer"}}
	own := lost
	own.Python = &agent.PythonError{Type: "ValueError", Message: "bad batch"}
	for _, tc := range []struct {
		name         string
		first, other agent.RankStatus
		want         string // "" if no rank left early
	}{
		{"before", agent.RankStatus{Started: start, Ended: at(12)}, lost, "rank 0 on node 0 exited with 0 after 12s, although the others still " +
			"needed it"},
		{"while it released its GPU", agent.RankStatus{Started: start, Ended: at(22)}, lost, "rank 0 on node 0 exited with 0 after 22s"},
		{"long after", agent.RankStatus{Started: start, Ended: at(90)}, lost, ""},
		{"because it was stopped", agent.RankStatus{Started: start, Ended: at(21), Stopped: true}, lost, ""},
		{"and another has an error of its own", agent.RankStatus{Started: start, Ended: at(12)}, own, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, _ := Find([]agent.JobStatus{{Ranks: []agent.RankStatus{tc.first}}, {Ranks: []agent.RankStatus{tc.other}}})
			err := found.Err(Job{Record: "/record"})
			if (found.Left != nil) != (tc.want != "") || !strings.Contains(err.Error(), tc.want) || found.Left != nil &&
				!strings.Contains(fail.NextOf(err), "/record/rank-0.log on node 0") {
				t.Errorf("got %v (%s), want %q", err, fail.NextOf(err), tc.want)
			}
		})
	}
}

// A rank that hangs prints nothing, and the others end with a timeout.
func TestRankThatOthersWaitFor(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(1e9+seconds, 0) }
	late := agent.RankStatus{Rank: 0, Ended: at(10), Exit: agent.Exit{Code: 1},
		Python: &agent.PythonError{Type: "RuntimeError", Message: "Timed out waiting 8000ms for recv operation to complete"}}
	closed := agent.RankStatus{Rank: 1, Ended: at(10), Exit: agent.Exit{Code: 1},
		Python: &agent.PythonError{Type: "RuntimeError", Message: "Connection closed by peer"}}
	silent := func(rank int) agent.RankStatus {
		return agent.RankStatus{Rank: rank, Node: 1, Ended: at(11), Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true,
			Tail: []string{"step 3"}}
	}
	seen := func(rank int) agent.RankStatus {
		status := silent(rank)
		status.Rendezvous = agent.Arrived
		return status
	}
	for _, tc := range []struct {
		name  string
		ranks []agent.RankStatus
		want  string
	}{
		{"one", []agent.RankStatus{closed, late, silent(3)}, "the others waited for rank 3 on node 1, which showed no error and had to be " +
			"stopped; rank 0 on node 0 exited with 1: RuntimeError: Timed out"},
		{"two", []agent.RankStatus{late, silent(2), silent(3)}, "no rank shows an error of its own"},
		{"two, of which one was seen at the rendezvous", []agent.RankStatus{late, seen(2), silent(3)}, "the others waited for rank 3 on node 1"},
		{"no rank waited", []agent.RankStatus{closed, silent(3)}, "no rank shows an error of its own"},
	} {
		found, _ := Find([]agent.JobStatus{{Ranks: tc.ranks}})
		if err := found.Err(Job{Record: "/record"}); found.Known || !strings.Contains(err.Error(), tc.want) ||
			!strings.Contains(fail.NextOf(err), fmt.Sprintf("/record/rank-%d.log", found.Rank.Rank)) {
			t.Errorf("%s: got %v (%s), want %q", tc.name, err, fail.NextOf(err), tc.want)
		}
	}
}

func TestFullMemoryAndDisk(t *testing.T) {
	for message, want := range map[string]fail.Reason{
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": fail.OutOfMemory,
		"torch.cuda.OutOfMemoryError: HIP out of memory.":                        fail.OutOfMemory,
		"RuntimeError: CUDA error: out of memory":                                fail.OutOfMemory,
		"OSError: [Errno 28] No space left on device":                            fail.DiskFull,
		"RuntimeError: CUDA error: an illegal memory access was encountered":     fail.RankFailed,
	} {
		kind, message, _ := strings.Cut(message, ": ")
		found, _ := Find(
			[]agent.JobStatus{
				{
					Ranks: []agent.RankStatus{{Ended: time.Unix(1e9, 0), Exit: agent.Exit{Code: 1},
						Python: &agent.PythonError{Type: kind, Message: message}}}}})
		if got := fail.ReasonOf(found.Err(Job{})); got != want {
			t.Errorf("%s: %s: reason %s, want %s", kind, message, got, want)
		}
	}
}

// TestPathsOfTheRepository: users know neither the folder of a tree nor the working directory of a job.
func TestPathsOfTheRepository(t *testing.T) {
	hash := strings.Repeat("a0", 32)
	kept := "/workspace/.mlenv/runs/uid/rank-0.log /workspace/.mlenv/work/uid /workspace/.mlenv/work/.uid/x /workspace"
	for text, want := range map[string]string{
		`File "/workspace/.mlenv/work/0b9c1d2e-3f4a-4b5c-8d6e-7f8091a2b3c4/pkg/train.py", line 7`: `File "pkg/train.py", line 7`,
		"/workspace/.mlenv/work/by-hand-a_1.2/a.py and /workspace/.mlenv/trees/" + hash + "/b.py": "a.py and b.py",
		"No such file: '/workspace/.mlenv/work/uid/out/model.pt'":                                 "No such file: 'out/model.pt'",
		`(/home/me/.local/share/mlenv/.mlenv/work/local-x7k2p/train.py:7)`:                        "(train.py:7)",
		"path=/data/mlenv/.mlenv/trees/" + hash + "/b.py":                                         "path=b.py",
		`File "/home/me/.local/share/mlenv/.mlenv/work/local-x7k2p/pkg/train.py", line 7`:         `File "pkg/train.py", line 7`,
		"x=/workspace/.mlenv/work/uid/a.py":                                                       "x=a.py",
		`File "/home/me/two words/.mlenv/work/local-x7k2p/pkg/train.py", line 7`:                  `File "pkg/train.py", line 7`,
		"the loss is nan (/home/me/two words/.mlenv/trees/" + hash + "/a b/train.py:7)":           "the loss is nan (a b/train.py:7)",
		"Command '/usr/bin/python3 /workspace/.mlenv/trees/" + hash + "/prep.py' failed":          "Command '/usr/bin/python3 prep.py' failed",
		"'/bin/cp /w/.mlenv/trees/" + hash + "/a /w/.mlenv/trees/" + hash + "/b'":                 "'/bin/cp a b'",
		`File "/tmp/longer /tmp of mine/.mlenv/work/local-x7k2p/pkg/train.py", line 7`:            `File "pkg/train.py", line 7`,
		"is nan (/tmp/longer /tmp of mine/.mlenv/work/local-x7k2p/train.py:7)":                    "is nan (train.py:7)",
		kept: kept,
	} {
		if got := InTree(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestCauseErr(t *testing.T) {
	err := Cause{Known: true, Rank: agent.RankStatus{Rank: 3, Node: 1, Exit: agent.Exit{Code: 1}, Tail: []string{"one", "two"},
		Python: &agent.PythonError{Type: "ValueError", Message: "bad batch",
			File: "/workspace/.mlenv/trees/" + strings.Repeat("a0", 32) + "/train.py", Line: 7}}}.Err(
		Job{Run: "train-1", Namespace: "ns", Record: "/workspace/.mlenv/runs/x"})
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
	if got, want := kept.log(1, 3), "mlenv shell 1 --name=env -n ns -- cat /workspace/.mlenv/runs/x/rank-3.log   # the "+
		"whole log"; got != want {
		t.Errorf("in a kept environment: %s, want %s", got, want)
	}
	if got := fail.ReasonOf(err); got != fail.RankFailed {
		t.Errorf("reason %s, want RankFailed", got)
	}
	killed := Cause{Known: true, Rank: agent.RankStatus{Exit: agent.Exit{Code: -1, Signal: "SIGKILL", OutOfMemory: true,
		MemoryLimit: 4 << 30}}}.Err(Job{})
	if got := fail.ReasonOf(killed); got != fail.OutOfMemory || !strings.Contains(killed.Error(),
		"was killed for memory: all processes on its node share 4.0 GiB") {
		t.Errorf("reason %s (%v), want OutOfMemory", got, killed)
	}
}

// A culprit fits in an annotation, whatever a rank wrote into its agent's answer.
func TestCulpritFitsALease(t *testing.T) {
	long := slices.Repeat([]string{strings.Repeat("<", 2000)}, 100)
	rank := agent.RankStatus{Rank: 3, Python: &agent.PythonError{Type: long[0], Message: long[0], First: long[0], File: long[0],
		Traceback: long}}
	content, err := json.Marshal(Cause{Rank: rank}.Culprit())
	const sizeOfACulprit = 128 << 10
	if err != nil || len(content) > sizeOfACulprit {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	rank.Python.Traceback = []string{"Traceback (most recent call last):", "ValueError"}
	if got := (Cause{Rank: rank}).Culprit(); len(got.Python.Traceback) != 2 {
		t.Errorf("the traceback is %q", got.Python.Traceback)
	}
}
