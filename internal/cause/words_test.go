// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// aborts returns a rank that NCCL's watchdog ended.
func aborts(rank, sequence int) agent.RankStatus {
	what := fmt.Sprintf("  what():  [PG ID 0 PG GUID 0(default_pg) Rank %d] Process group watchdog thread terminated with exception: [Rank "+
		"%d] Watchdog caught collective operation timeout: "+
		"WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.", rank,
		rank, sequence)
	return agent.RankStatus{Rank: rank, Node: rank / 2, Ended: time.Unix(1e9+int64(rank), 0), Exit: agent.Exit{Code: -1, Signal: "SIGABRT"},
		Tail: []string{"step 40", "terminate called after throwing an instance of 'c10::DistBackendError'", what}}
}

// The flight recorder's dumps at the end of the job show which rank had not entered the collective in which the others waited.
func TestMissingRank(t *testing.T) {
	hung := func(rank int) agent.RankStatus {
		return agent.RankStatus{Rank: rank, Node: rank / 2, Ended: time.Unix(1e9+9, 0), Exit: agent.Exit{Code: -1, Signal: "SIGTERM"},
			Stopped: true, Tail: []string{"step 40"}}
	}
	at := func(number int64, operation string) []agent.Collective {
		c := agent.Collective{ID: "0", Group: "default_pg", Ranks: []int{0, 1, 2, 3}, Number: number, Operation: operation, State: "completed",
			Entered: 600}
		if number > 77 {
			c.Pending = &agent.Collective{Number: 78, Operation: operation, State: "started", Entered: 600}
		}
		return []agent.Collective{c}
	}
	waits, late := at(79, "all_reduce"), at(77, "all_gather")
	spec := agent.JobSpec{Launcher: agent.Torchrun, Nodes: 2, RanksPerNode: 2}
	for _, tc := range []struct {
		name   string
		ranks  []agent.RankStatus
		dumps  map[int][]agent.Collective
		rank   int
		said   string
		unsaid string
	}{
		{"one", []agent.RankStatus{aborts(0, 78), aborts(1, 78), aborts(2, 78), hung(3)}, map[int][]agent.Collective{0: waits, 1: waits, 2: waits,
			3: late}, 3,
			"training: the others waited for rank 3 on node 1, which showed no error and had to be stopped; rank 0 on node 0 was ended by " +
				"SIGABRT: " +
				"NCCL's watchdog ended its wait in collective 78 (ALLREDUCE) after 10m0s; rank 3 on node 1 entered number 77 (all_gather) of the " +
				"collectives of default_pg, " +
				"while 3 ranks came as far as number 79 (all_reduce) and have waited for number 78 (all_reduce) for 10m0s", "no rank shows"},
		{"one that was aborted too", []agent.RankStatus{aborts(0, 78), aborts(1, 78), aborts(2, 4), aborts(3, 78)},
			map[int][]agent.Collective{0: waits, 1: waits, 2: late, 3: waits}, 2,
			"the others waited for rank 2 on node 1, which was ended by SIGABRT; rank 0 on node 0", "no error"},
		{"two", []agent.RankStatus{aborts(0, 78), aborts(1, 78), hung(2), hung(3)}, map[int][]agent.Collective{0: waits, 1: waits, 2: late,
			3: late}, 0,
			"rank 0 on node 0 was ended by SIGABRT, want exit code 0: NCCL's watchdog ended its wait in collective 78 (ALLREDUCE) after 10m0s; " +
				"ranks 2 and 3 entered number 77", "no rank shows"},
		{"one without a dump", []agent.RankStatus{aborts(0, 78), aborts(1, 78), aborts(2, 78), hung(3)},
			map[int][]agent.Collective{0: waits, 1: late, 2: waits}, 3,
			"the others waited for rank 3 on node 1, which showed no error", "entered number"},
	} {
		statuses := []agent.JobStatus{{Spec: spec, Ranks: tc.ranks[:2]}, {Node: 1, Spec: spec, Ranks: tc.ranks[2:], Collectives: tc.dumps}}
		statuses[0].Collectives = tc.dumps
		found, _ := Find(statuses)
		err := found.Err(Job{})
		if found.Known || found.Rank.Rank != tc.rank || fail.ReasonOf(err) != fail.RankFailed || !strings.Contains(err.Error(), tc.said) ||
			strings.Contains(err.Error(), tc.unsaid) {
			t.Errorf("%s: rank %d, known %t: %v\nwant rank %d and %q", tc.name, found.Rank.Rank, found.Known, err, tc.rank, tc.said)
		}
	}
}

// Aborts in different collectives are different failures, so that the training may restart again.
func TestSymptomsOfAborts(t *testing.T) {
	first, second := Cause{Rank: aborts(0, 78)}.Symptom(), Cause{Rank: aborts(1, 78)}.Symptom()
	if first != second {
		t.Errorf("got %q and %q, want the same for any rank", first, second)
	}
	if later := (Cause{Rank: aborts(0, 79)}).Symptom(); later == first {
		t.Errorf("got %q for two collectives", later)
	}
}

func TestAborted(t *testing.T) {
	const cuda = "CUDA error: an illegal memory access was encountered"
	for _, tc := range []struct {
		tail []string
		want string
	}{
		{[]string{"terminate called after throwing an instance of 'c10::Error'", "  what():  " + cuda, "frames follow"}, cuda},
		{[]string{"[rank3]:  what():  [PG 0 Rank 3] Process group watchdog thread terminated with exception: " + cuda}, cuda},
		{[]string{"  what():  [PG ID 1 PG GUID 7(dp) Rank 3] Process group watchdog thread terminated with exception: NCCL error: unhandled " +
			"system error, NCCL version 2.26.2",
			"ncclSystemError: System call failed.", "Last error:", "Too many open files"},
			"NCCL error: unhandled system error, NCCL version 2.26.2; ncclSystemError: System call failed. Too many open files"},
		{[]string{"[rank0]:[F1125 10:18:00.000000000 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 0] [PG ID 0 PG GUID " +
			"0(default_pg) Rank 0] Terminating the process"},
			"Terminating the process"},
		{[]string{"F1125 10:18:00.000000 4711 allocator.cc:12] out of pages"}, "out of pages"},
		{[]string{"[rank0]:[F ProcessGroupNCCL.cpp:1169] [PG 5 Rank 0] the watchdog got stuck"}, "the watchdog got stuck"},
		{[]string{"[rank0]:[W1125 10:18:00.000000000 ProcessGroupNCCL.cpp:1557] a warning", "File data.py:12] is no path"}, ""},
	} {
		if got := aborted(tc.tail); got != tc.want {
			t.Errorf("%q: got %q, want %q", tc.tail, got, tc.want)
		}
	}
}

// The end of a long message counts too.
func TestLongMessage(t *testing.T) {
	python := &agent.PythonError{Type: "RuntimeError", Message: strings.Repeat("batch ", 200) + ": Connection closed by peer"}
	lost := agent.RankStatus{Rank: 0, Ended: time.Unix(1e9, 0), Exit: agent.Exit{Code: 1}, Python: python}
	killed := agent.RankStatus{Rank: 1, Ended: time.Unix(1e9+1, 0), Exit: agent.Exit{Code: -1, Signal: "SIGKILL"}}
	if found, _ := Find([]agent.JobStatus{{Ranks: []agent.RankStatus{lost, killed}}}); found.Rank.Rank != 1 {
		t.Errorf("found rank %d, want the one that was killed", found.Rank.Rank)
	}
	const sizeOfASymptom = 600
	if said := (Cause{Rank: lost}).Symptom(); len(said) > sizeOfASymptom || !strings.HasSuffix(said, "Connection closed by peer") {
		t.Errorf("got %d bytes: %s", len(said), said)
	}
}

// TestGaveUp: the line of an argument parser or a shell is the error of a program that ended with its exit code.
func TestGaveUp(t *testing.T) {
	for _, tc := range []struct {
		code       int
		tail       []string
		want, next string
	}{
		{2, []string{"usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --local_rank=0"},
			"exited with 2, want exit code 0: train.py: error: unrecognized arguments: --local_rank=0",
			"launcher torchrun, which does not pass that argument"},
		{2, []string{"usage: python -m pkg.train [-h]", "python -m pkg.train: error: argument --lr: invalid float value: 'x'"},
			"exited with 2, want exit code 0: python -m pkg.train: error: argument --lr: invalid float value: 'x'", "mlenv logs"},
		{2, []string{"Usage: train.py [OPTIONS]", "", "Error: No such option: --local_rank"},
			"exited with 2, want exit code 0: Error: No such option: --local_rank", "launcher torchrun, which does not pass that argument"},
		{127, []string{"train.sh: line 3: accelerate: command not found"},
			"exited with 127, want exit code 0: train.sh: line 3: accelerate: command not found", "use an image that has the program"},
		{127, []string{"train.sh: 3: accelerate: not found"},
			"exited with 127, want exit code 0: train.sh: 3: accelerate: not found", "use an image that has the program"},
		{1, []string{"train.py: error: not the parser's exit code"},
			"exited with 1, want exit code 0; its last line: train.py: error: not the parser's exit code", "mlenv logs"},
		{1, []string{"step 40", "no checkpoint in ./ckpt", "[W1125 10:18:00.0 ProcessGroupNCCL.cpp:1557] a warning"},
			"exited with 1, want exit code 0; its last line: no checkpoint in ./ckpt", "mlenv logs"},
		{-1, []string{"step 40"}, "was ended by SIGKILL, want exit code 0", "mlenv logs"},
	} {
		c := Cause{Rank: agent.RankStatus{Exit: agent.Exit{Code: tc.code}, Tail: tc.tail}, Known: true}
		if tc.code < 0 {
			c.Rank.Exit.Signal = "SIGKILL"
		}
		err := c.Err(Job{Run: "run-1", Namespace: "ns"})
		if got := strings.TrimPrefix(err.Error(), "training: rank 0 on node 0 "); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
		if next := fail.NextOf(err); !strings.Contains(next, tc.next) {
			t.Errorf("%q: next is %q, want %q", tc.tail, next, tc.next)
		}
	}
}

// TestHandled: a program may have handled the error whose traceback it printed or logged.
func TestHandled(t *testing.T) {
	const title, frame, end = "Traceback (most recent call last):", `  File "/w/train.py", line 3, in <module>`, "ImportError: no apex"
	handled := &agent.PythonError{Type: "ImportError", Message: "no apex", File: "train.py", Line: 3, Handled: true,
		Traceback: []string{title, frame, end}}
	for _, tc := range []struct {
		name string
		code int
		tail []string
		want string
	}{
		{"it gave up later", 1, []string{title, frame, end, "falling back", "batch size 7 is odd"},
			"exited with 1, want exit code 0: ImportError: no apex (train.py:3); its last line: batch size 7 is odd"},
		{"its parser gave up", 2, []string{title, frame, end, "usage: train.py [-h]", "train.py: error: batch size 7 is odd"},
			"exited with 2, want exit code 0: train.py: error: batch size 7 is odd"},
		{"nothing follows", 1, []string{title, frame, end}, "exited with 1, want exit code 0: ImportError: no apex (train.py:3)"},
	} {
		c := Cause{Rank: agent.RankStatus{Exit: agent.Exit{Code: tc.code}, Tail: tc.tail, Python: handled}, Known: true}
		if got := strings.TrimPrefix(c.Err(Job{}).Error(), "training: rank 0 on node 0 "); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
	stopped := agent.RankStatus{Ended: time.Unix(1e9, 0), Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true, Python: handled,
		Tail: []string{title, frame, end, "step 1"}}
	failed := agent.RankStatus{Rank: 1, Ended: time.Unix(1e9+1, 0), Exit: agent.Exit{Code: 3}}
	if found, _ := Find([]agent.JobStatus{{Ranks: []agent.RankStatus{stopped, failed}}}); found.Rank.Rank != 1 {
		t.Errorf("a rank that was stopped is blamed for an error that it had handled: found rank %d, want 1", found.Rank.Rank)
	}
	uncaught := *handled
	uncaught.Handled, stopped.Python = false, &uncaught
	if found, _ := Find([]agent.JobStatus{{Ranks: []agent.RankStatus{stopped, failed}}}); found.Rank.Rank != 0 {
		t.Errorf("found rank %d, want 0, whose error came first", found.Rank.Rank)
	}
}

// TestLogOfItsOwn: a script that sends all that it prints into a file of its own is explained by that.
func TestLogOfItsOwn(t *testing.T) {
	rank := agent.RankStatus{Exit: agent.Exit{Code: 1}, Tail: []string{"ValueError: no"}, TailFile: "output/training.log"}
	err := Cause{Known: true, Rank: rank}.Err(Job{Run: "run-1", Namespace: "ns"})
	const want = "training: rank 0 on node 0 exited with 1, want exit code 0; it printed nothing, and its last lines are those of " +
		"output/training.log"
	if err.Error() != want || fail.NextOf(err) != "mlenv fetch run-1 output/training.log -n ns" {
		t.Errorf("got %v, next %q", err, fail.NextOf(err))
	}
}
