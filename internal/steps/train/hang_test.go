// SPDX-License-Identifier: Apache-2.0

package train

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// TestHang: rank 1 loads data forever, and rank 0 waits for it.
func TestHang(t *testing.T) {
	t.Parallel() // it waits
	training, out, agents := newTraining(t, `touch "$MET/$NODE_RANK"
until [ -e "$MET/0" ] && [ -e "$MET/1" ]; do echo up; sleep 0.1; done
exec sleep 1000`)
	training.Spec.Env = map[string]string{"MET": t.TempDir()}
	for _, node := range agents {
		node.PySpy()
	}
	training.HangTimeout = HangTimeout{Explicit: true, Bound: 3 * time.Second}
	var last notify.Event
	training.Notify = func(e notify.Event) { last = e }
	_, err := training.Attempt(t.Context())
	// Not every kernel tells what a process waits for.
	culprit := regexp.MustCompile(`rank 1 on node 1 (sleeps|is) in load_batch \(gloo\.py:6\) while 1 rank waits in all_reduce \(gloo\.py:16\)`)
	if fail.ReasonOf(err) != fail.Hang || !culprit.MatchString(err.Error()) || !strings.Contains(fail.NextOf(err), "stacks-RANK.txt") {
		t.Fatalf("got %s: %v (%s), want Hang with %s\n%s", fail.ReasonOf(err), err, fail.NextOf(err), culprit, out)
	}
	if hang := (hangError{}); !errors.As(err, &hang) || !slices.Equal(hang.ranks, []int{1}) {
		t.Errorf("the culprits are %v, want rank 1", hang.ranks)
	}
	if last.Kind != notify.Hang || last.Attempt != 1 || last.Reason != fail.Hang || !culprit.MatchString(last.Message) {
		t.Errorf("the last event is %+v, want the hang", last)
	}
	for _, node := range agents {
		status, err := over(t, node.Client)
		if err != nil || status.State != agent.Stopped || status.StopCause != agent.StopHang || !culprit.MatchString(status.StopReason) {
			t.Errorf("node %d: %s (%s), %v; want it stopped for the hang", node.Config.Node, status.State, status.StopReason, err)
		}
	}
	stacks, err := os.ReadFile(filepath.Join(agents[1].Config.Paths.Workspace, ".mlenv", "runs", "job", "stacks-1.txt"))
	if err != nil || !strings.Contains(string(stacks), "load_batch (gloo.py:6)\n    main (gloo.py:13)") {
		t.Errorf("the record has %q, %v; want the stack of rank 1", stacks, err)
	}
}

// TestSilence: what a silence means, at each time when the step queries the agents.
func TestSilence(t *testing.T) {
	waits := agent.RankActivity{Rank: 0,
		Frames: []agent.Frame{{Function: "all_reduce", File: "/lib/python3/site-packages/torch/distributed/distributed_c10d.py", Line: 4181},
			{Function: "main", File: "t.py", Line: 9}}}
	spins := waits
	spins.CPU = 1
	sleeps := agent.RankActivity{Rank: 1, Frames: []agent.Frame{{Function: "load", File: "t.py", Line: 4}}}
	computes, further := sleeps, sleeps
	computes.CPU, further.CPU, further.Frames = 0.9, 0.9, []agent.Frame{{Function: "load", File: "t.py", Line: 5}}
	reads := sleeps
	reads.IO = 1 << 20
	stopped, flushes := computes, sleeps
	stopped.State, flushes.State = "T", "D"
	// NCCL is asynchronous: ranks wait in loss.item(), with a processor at 100%.
	waitsInItem := func(rank int, entered float64, number int64) agent.RankActivity {
		return agent.RankActivity{Rank: rank, CPU: 1, State: "R", Frames: []agent.Frame{{Function: "train", File: "t.py", Line: 50}},
			Collectives: []agent.Collective{
				{ID: "0", Number: number, Pending: &agent.Collective{Number: number, Operation: "all_reduce", Entered: entered}}}}
	}
	polls := waitsInItem(0, 300, 8)
	polls.Frames = append([]agent.Frame{{Function: "select", File: "/usr/lib/python3.12/selectors.py", Line: 415}}, polls.Frames...)
	unseen := waitsInItem(0, 300, 8)
	unseen.Frames = nil
	synchronizes := sleeps
	synchronizes.CPU, synchronizes.Collectives = 1, []agent.Collective{{ID: "0", Number: 7}}
	synchronizes.Frames = []agent.Frame{{Function: "synchronize", File: "/lib/python3/site-packages/torch/cuda/__init__.py", Line: 985},
		{Function: "train", File: "t.py", Line: 60}}
	stuck := flushes
	stuck.AllIO, stuck.Waits = 4<<30, "nfs_wait_bit_killable"
	writes := stuck
	writes.AllIO += 1 << 30
	locked := sleeps
	locked.Lock = "/cache/fused/lock"
	at := func(function, file string) agent.RankActivity {
		return agent.RankActivity{State: "S", Waits: "futex_do_wait", Frames: []agent.Frame{{Function: function, File: file, Line: 848}}}
	}
	// Seen with torch 2.6: C++ waits for a thread of gloo, which waits for Python.
	destroys := at("PartialState.destroy_process_group", "/opt/venv/lib/python3.13/site-packages/accelerate/state.py")
	joins, naps, goesOnAlone := at("_shutdown", "/usr/lib/python3.13/threading.py"), at("main", "t.py"), at("save", "t.py")
	naps.Waits = "hrtimer_nanosleep"
	left := map[string]agent.Exit{
		"left in destroy_process_group": {}, "left with a thread": {}, "left, and sleeps": {}, "left, and goes on": {},
		"left by one that failed": {Code: 1},
	}
	type look struct {
		quiet time.Duration
		ranks []agent.RankActivity
		want  meaning
	}
	const m = time.Minute
	explicit := func(bound time.Duration) HangTimeout { return HangTimeout{Explicit: true, Bound: bound} }
	for name, tc := range map[string]struct {
		timeout HangTimeout
		bound   time.Duration
		looks   []look
	}{
		"prints slowly": {HangTimeout{}, 5 * m, []look{{2 * m, nil, goesOn}, {m, nil, goesOn}, {2 * m, nil, goesOn}, {0, nil, goesOn}}},
		"prints again after the warning": {HangTimeout{}, 5 * m, []look{
			{3 * m, []agent.RankActivity{waits, sleeps}, silent}, {4 * m, nil, goesOn}, {m, nil, goesOn},
			{3 * m, []agent.RankActivity{waits, sleeps}, silent}}},
		"hangs": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{waits, sleeps}, silent},
			{5 * m, []agent.RankActivity{waits, sleeps}, hanging}}},
		"NCCL spins": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{spins, sleeps}, silent},
			{5 * m, []agent.RankActivity{spins, sleeps}, hanging}}},
		"stopped by a signal": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{spins, stopped}, silent},
			{5 * m, []agent.RankActivity{spins, stopped}, hanging}}},
		"all spin somewhere": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{computes, computes}, silent},
			{5 * m, []agent.RankActivity{computes, computes}, unclear}, {6 * m, nil, goesOn},
			{7 * m, []agent.RankActivity{computes, computes}, unclear}}},
		"no agent answers": {HangTimeout{}, 5 * m,
			[]look{{3 * m, []agent.RankActivity{}, silent}, {5 * m, []agent.RankActivity{}, unclear}}},
		"one node answers": {HangTimeout{}, 5 * m,
			[]look{{3 * m, []agent.RankActivity{waits}, silent}, {5 * m, []agent.RankActivity{waits}, unclear}}},
		"flushes to a slow disk": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{waits, sleeps}, silent},
			{5 * m, []agent.RankActivity{waits, flushes}, working}}},
		"waits in loss.item": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{waitsInItem(0, 180, 8), sleeps}, silent},
			{5 * m, []agent.RankActivity{waitsInItem(0, 300, 8), sleeps}, hanging}}},
		"the GPU of one hangs": {HangTimeout{}, 5 * m,
			[]look{{3 * m, []agent.RankActivity{waitsInItem(0, 180, 8), synchronizes}, silent},
				{5 * m, []agent.RankActivity{waitsInItem(0, 300, 8), synchronizes}, hanging}}},
		"waits in a loop": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{waitsInItem(0, 180, 8), sleeps}, silent},
			{5 * m, []agent.RankActivity{polls, sleeps}, hanging}}},
		"waits without py-spy": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{unseen, sleeps}, silent},
			{5 * m, []agent.RankActivity{unseen, sleeps}, hanging}}},
		"all wait, for the network": {HangTimeout{}, 5 * m,
			[]look{{3 * m, []agent.RankActivity{waitsInItem(0, 180, 8), waitsInItem(1, 180, 8)}, silent},
				{5 * m, []agent.RankActivity{waitsInItem(0, 300, 8), waitsInItem(1, 300, 8)}, hanging}}},
		"trains without a word": {HangTimeout{}, 5 * m,
			[]look{{3 * m, []agent.RankActivity{waitsInItem(0, 20, 8), waitsInItem(1, 20, 8)}, silent},
				{5 * m, []agent.RankActivity{waitsInItem(0, 20, 9), waitsInItem(1, 20, 9)}, working}}},
		"one long step": {HangTimeout{}, 5 * m,
			[]look{{3 * m, []agent.RankActivity{waitsInItem(0, 60, 8), waitsInItem(1, 60, 8)}, silent},
				{5 * m, []agent.RankActivity{waitsInItem(0, 100, 8), waitsInItem(1, 100, 8)}, unclear}}},
		"storage does not answer": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{waits, stuck}, silent},
			{5 * m, []agent.RankActivity{waits, stuck}, hanging}}},
		"storage answers slowly": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{waits, stuck}, silent},
			{5 * m, []agent.RankActivity{waits, writes}, working}}},
		"the lock of an extension": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{locked, locked}, silent},
			{5 * m, []agent.RankActivity{locked, locked}, hanging}}},
		"another rank compiles it": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{locked, {Rank: 0, ChildCPU: 2}}, silent},
			{5 * m, []agent.RankActivity{locked, {Rank: 0, ChildCPU: 2}}, working}}},
		"attached to a late one": {HangTimeout{}, 5 * m, []look{{9 * m, []agent.RankActivity{waits, sleeps}, goesOn},
			{9*m + 1, []agent.RankActivity{waits, sleeps}, hanging}}},
		"computes, and then hangs": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{spins, computes}, silent},
			{5 * m, []agent.RankActivity{spins, further}, working}, {6 * m, nil, goesOn}, {7 * m, []agent.RankActivity{spins, sleeps}, hanging}}},
		"all compute": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{computes, computes}, silent},
			{5 * m, []agent.RankActivity{further, further}, working}}},
		"saves or loads": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{waits, sleeps}, silent},
			{5 * m, []agent.RankActivity{waits, reads}, working}}},
		"compiles": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{waits, sleeps}, silent},
			{5 * m, []agent.RankActivity{{Rank: 0, ChildCPU: 2}}, working}}},
		"no py-spy": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{{CPU: 1}, {Rank: 1, CPU: 1}}, silent},
			{5 * m, []agent.RankActivity{{CPU: 1}, {Rank: 1, CPU: 1}}, working}}},
		"one rank computes": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{computes}, silent},
			{5 * m, []agent.RankActivity{computes}, working}}},
		"left in destroy_process_group": {HangTimeout{}, 5 * m, []look{{3 * m, []agent.RankActivity{destroys}, silent},
			{5 * m, []agent.RankActivity{destroys}, hanging}}},
		"left with a thread": {HangTimeout{}, 5 * m,
			[]look{{3 * m, []agent.RankActivity{joins}, silent}, {5 * m, []agent.RankActivity{joins}, hanging}}},
		"left, and sleeps": {HangTimeout{}, 5 * m,
			[]look{{3 * m, []agent.RankActivity{naps}, silent}, {5 * m, []agent.RankActivity{naps}, unclear}}},
		"left, and goes on": {HangTimeout{}, 5 * m,
			[]look{{3 * m, []agent.RankActivity{joins}, silent}, {5 * m, []agent.RankActivity{goesOnAlone}, unclear}}},
		"left by one that failed": {HangTimeout{}, 5 * m,
			[]look{{3 * m, []agent.RankActivity{joins}, silent}, {5 * m, []agent.RankActivity{joins}, unclear}}},
		"an explicit bound wins": {explicit(time.Minute), time.Minute, []look{{30 * time.Second, []agent.RankActivity{waits, reads}, silent},
			{time.Minute, []agent.RankActivity{waits, reads}, hanging}}},
		"never": {explicit(0), 0, []look{
			{3 * m, []agent.RankActivity{waits, sleeps}, silent}, {5 * m, nil, goesOn}, {6 * m, []agent.RankActivity{waits, sleeps}, silent},
			{99 * m, []agent.RankActivity{waits, sleeps}, silent}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := silenceWatch{timeout: tc.timeout}
			var statuses []agent.JobStatus
			if exit, ok := left[name]; ok {
				statuses = []agent.JobStatus{{Ranks: []agent.RankStatus{{Rank: 0}, {Rank: 1, Ended: time.Unix(1, 0), Exit: exit}}}}
			}
			for i, l := range tc.looks {
				asked := false
				got, _, _ := w.look(statuses, l.quiet, tc.bound, func() ([]agent.RankActivity, bool) {
					asked = true
					return slices.Clone(l.ranks), name != "one node answers"
				})
				if got != l.want || asked != (l.ranks != nil) {
					t.Errorf("look %d, after %s: %d, asked %t; want %d, asked %t", i, l.quiet, got, asked, l.want, l.ranks != nil)
				}
			}
		})
	}
}

// The bound of a silence adapts to a silence that ended. With launcher command, ranks may be silent forever.
func TestSilenceAdapts(t *testing.T) {
	w, shown, start := silenceWatch{}, &progress{}, time.Now()
	for _, look := range []struct{ quiet, want time.Duration }{{4 * time.Minute, 5 * time.Minute}, {0, 12 * time.Minute},
		{time.Minute, 12 * time.Minute}} {
		if got := w.bound(agent.JobSpec{Launcher: agent.Torchrun}, look.quiet, shown, start); got != look.want {
			t.Errorf("after %s: %s, want %s", look.quiet, got, look.want)
		}
	}
	if got := w.bound(agent.JobSpec{Launcher: agent.Command}, 0, shown, start); got != 0 {
		t.Errorf("launcher command: %s, want 0", got)
	}
	w.timeout = HangTimeout{Explicit: true, Bound: time.Second}
	if got := w.bound(agent.JobSpec{Launcher: agent.Command}, 0, shown, start); got != time.Second {
		t.Errorf("explicit: %s, want 1s", got)
	}
}

func TestHangTimeoutAdapts(t *testing.T) {
	start := time.Unix(1_790_000_000, 0)
	at := func(seconds ...int) *progress {
		p := &progress{}
		for i, s := range seconds {
			p.add(map[string]any{"step": float64(i + 1)}, start.Add(time.Duration(s)*time.Second))
		}
		return p
	}
	for _, tc := range []struct {
		timeout string
		shown   *progress
		want    time.Duration
	}{
		{"auto", at(), 5 * time.Minute},
		{"auto", at(20, 30, 40), 5 * time.Minute},
		{"auto", at(900, 910), 15 * time.Minute},
		{"auto", at(20, 30, 330, 340), 15 * time.Minute},
		{"0", at(20), 0},
		{"40s", at(900, 1800), 40 * time.Second},
	} {
		var h HangTimeout
		if err := h.Set(tc.timeout); err != nil || h.String() != tc.timeout {
			t.Errorf("%s: %v, and it prints %s", tc.timeout, err, h.String())
		}
		w := silenceWatch{timeout: h}
		if got := w.bound(agent.JobSpec{}, 0, tc.shown, start); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.timeout, got, tc.want)
		}
	}
	for _, wrong := range []string{"", "never", "-1s", "20"} {
		if err := new(HangTimeout).Set(wrong); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

func TestLastOutput(t *testing.T) {
	var statuses []agent.JobStatus
	for rank := range 20 {
		statuses = append(statuses, agent.JobStatus{Ranks: []agent.RankStatus{{Rank: rank, Quiet: time.Duration(rank) * time.Minute}}})
	}
	got := lastOutput(statuses)
	if !strings.HasPrefix(got, "rank 19 19m0s ago, rank 18 ") || !strings.HasSuffix(got, "rank 12 12m0s ago, 12 more later") {
		t.Errorf("got %s: want the longest silent first, and eight of them", got)
	}
}

// TestUnhooked: node 0's script replaces PYTHONPATH for the Python that it becomes, node 1's adds to it for one that it starts.
func TestUnhooked(t *testing.T) {
	training, out, agents := newTraining(t, `#!/bin/bash
echo x > libtorch_python.so
[ $NODE_RANK = 0 ] && path=. become=exec || path=.:$PYTHONPATH
PYTHONPATH=$path $become python3 -c '
import mmap, time
file = open("libtorch_python.so")
torch = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
open("loaded", "w")
time.sleep(1000)'
exit 1 # a shell would exec its last program`)
	training.Spec.RanksPerNode = 1
	if _, err := training.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer training.stop(t.Context(), agent.Stop{Reason: "the test is over"})
	loaded := func(node *agenttest.Node) bool {
		_, err := os.Stat(filepath.Join(node.Config.Paths.Workspace, "loaded"))
		return err == nil
	}
	for !loaded(agents[0]) || !loaded(agents[1]) {
		statuses, _, _ := training.silence(t.Context())
		if slices.ContainsFunc(statuses, func(s agent.JobStatus) bool { return s.State != agent.Running }) {
			t.Fatalf("a node's training is over: %+v", statuses)
		}
		time.Sleep(20 * time.Millisecond)
	}
	statuses, _, _ := training.silence(t.Context())
	if !training.warnUnhooked(statuses) || !strings.Contains(out.String(), "Rank 0 on node 0 started a Python with PYTHONPATH=., without ") {
		t.Errorf("log %q, want that rank 0 lacks the hook", out)
	}
	if training.warnUnhooked(statuses[1:]) {
		t.Errorf("node 1 has %+v, want that the hook reaches its Python", statuses[1].Ranks)
	}
}
