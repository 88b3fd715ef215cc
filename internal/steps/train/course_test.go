// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/internal/rules"
)

// begin is when the attempt is launched. Its first rank starts 3 s later.
var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// report returns a status of a node with one rank, whose number is the node's.
func report(node int, change func(*agent.JobStatus, *agent.RankStatus)) jobs.Event {
	rank := agent.RankStatus{Rank: node, Node: node, Started: begin.Add(3 * time.Second)}
	status := agent.JobStatus{ID: "job", Node: node, State: agent.Running, Started: begin}
	change(&status, &rank)
	status.Ranks = append(status.Ranks, rank)
	return jobs.Event{Node: node, Status: status}
}

func runs(node int) jobs.Event { return report(node, func(*agent.JobStatus, *agent.RankStatus) {}) }

// leaves returns a rank that exits; its launcher has not ended.
func leaves(node, code int) jobs.Event {
	return report(node, func(_ *agent.JobStatus, r *agent.RankStatus) {
		r.Ended, r.Exit = begin.Add(time.Minute), agent.Exit{Code: code}
	})
}

// exits returns a rank that exits with its launcher.
func exits(node, code int) jobs.Event {
	e := leaves(node, code)
	e.Status.State, e.Status.Ended = agent.Exited, begin.Add(time.Minute)
	return e
}

// losesItsPeer returns a rank that fails because another one has ended.
func losesItsPeer(node int) jobs.Event {
	e := leaves(node, 1)
	e.Status.Ranks[0].Python = &agent.PythonError{Type: "RuntimeError", Message: "Connection closed by peer [10.0.0.1]"}
	return e
}

// stops returns a node that has carried out an order to stop, the step's own if why is "".
func stops(node int, why agent.StopCause, exit agent.Exit) jobs.Event {
	return report(node, func(s *agent.JobStatus, r *agent.RankStatus) {
		s.State, s.StopCause, s.StopReason = agent.Stopped, why, "so ordered"
		s.Stopping, s.Kill, s.Ended = begin.Add(2*time.Second), begin.Add(33*time.Second), begin.Add(2*time.Minute)
		r.Ended, r.Stopped, r.Exit = begin.Add(2*time.Minute), true, exit
	})
}

// exitsAtSIGTERM and obeys are ranks that end at the signal, with 0 and by it.
func exitsAtSIGTERM(node int, why agent.StopCause) jobs.Event {
	return stops(node, why, agent.Exit{})
}

func obeys(node int, why agent.StopCause) jobs.Event {
	return stops(node, why, agent.Exit{Code: -1, Signal: "SIGTERM"})
}

// at returns the report of a rank that ended so long after the begin.
func at(e jobs.Event, after time.Duration) jobs.Event {
	e.Status.Ranks[0].Ended, e.Status.Ended = begin.Add(after), begin.Add(after)
	return e
}

// failedBefore returns a rank that had raised an exception, and ends only at the signal because a thread held its process.
func failedBefore(node int, why agent.StopCause) jobs.Event {
	e := obeys(node, why)
	r := &e.Status.Ranks[0]
	r.Tail = []string{"Exception in thread Thread-1 (fetch):", "Traceback (most recent call last):", "ValueError: no source"}
	r.Python = &agent.PythonError{Type: "ValueError", Message: "no source", Seen: begin.Add(time.Second), Traceback: r.Tail[1:]}
	return e
}

// beginsToStop returns a node whose rank saves.
func beginsToStop(node int, why agent.StopCause) jobs.Event {
	return report(node, func(s *agent.JobStatus, _ *agent.RankStatus) {
		s.StopCause, s.StopReason, s.Stopping, s.Kill = why, "so ordered", begin, begin.Add(33*time.Second)
	})
}

func restarts(node int) jobs.Event {
	return report(node, func(s *agent.JobStatus, _ *agent.RankStatus) { s.State = agent.Restarted })
}

// launcherEnds returns a launcher that has started no rank.
func launcherEnds(node int) jobs.Event {
	return jobs.Event{Node: node, Status: agent.JobStatus{ID: "job", Node: node, State: agent.Exited, Launcher: agent.Exit{Code: 1}}}
}

func overSockets(e jobs.Event) jobs.Event {
	e.Status.NCCL = sockets()
	return e
}

func waitsForDebugger(node int) jobs.Event {
	return report(node, func(_ *agent.JobStatus, r *agent.RankStatus) { r.DebugPort = 5678 })
}

func silentNode(node int) jobs.Event {
	return jobs.Event{Node: node, Kind: jobs.Silent, Err: errors.New("no route to host")}
}

func lost(node int) jobs.Event {
	return jobs.Event{Node: node, Kind: jobs.Lost, Err: fail.Becausef(fail.NodeLost, "training: node %d is gone", node)}
}

func because(reason fail.Reason) explained {
	return explained{fail.Becausef(reason, "training: the answer")}
}

var hangs = hung{fail.Becausef(fail.Hang, "training: rank 1 hangs"), "it hangs: rank 1"}

// lossOf returns a line of the metrics.
func lossOf(step, loss float64) measured {
	line := map[string]any{"step": step, "loss": loss}
	if math.IsNaN(loss) || math.IsInf(loss, 0) { // as metrics.Lines has them
		line["loss"] = fmt.Sprint(loss)
	}
	return measured{line, begin.Add(time.Duration(step) * time.Second)}
}

// later is an event that comes so long after the launch.
type later struct {
	event event
	after time.Duration
}

// courseRules are the rules of some cases of TestCourse.
var courseRules = map[string]struct{ stopIf, restartIf []string }{
	"the loss is NaN with a rule":                                    {stopIf: []string{"loss is nan"}},
	"the loss is NaN with a rule, and a node does not obey":          {stopIf: []string{"loss is nan"}},
	"the loss is NaN with a rule, and a node is lost":                {stopIf: []string{"loss is nan"}},
	"the loss is NaN with a rule after a rank has failed":            {stopIf: []string{"loss is nan"}},
	"the loss is NaN with a rule after all ranks have exited with 0": {stopIf: []string{"loss is nan"}},
	"the loss is high with a rule": {stopIf: []string{"loss is nan"},
		restartIf: []string{"loss > 20 after 100 steps"}},
	"no checkpoint comes":  {stopIf: []string{"no checkpoint for 2h"}},
	"the GPUs are idle":    {stopIf: []string{"gpu_use < 5% for 20m"}},
	"the GPUs are unknown": {stopIf: []string{"gpu_use < 5% for 20m"}},
}

// in words is what is done after an event.
func inWords(effects []effect) string {
	var words []string
	for _, e := range effects {
		switch e := e.(type) {
		case say:
			const shown = 5
			words = append(words, fmt.Sprintf("log %q", strings.Join(strings.Fields(e.text)[:shown], " ")))
		case debugger:
			words = append(words, fmt.Sprintf("show debugger of rank %d", e.rank.Rank))
		case alarm:
			words = append(words, fmt.Sprintf("%s after %s", e.timer, e.after))
		case order:
			words = append(words, "stop all: "+e.stop.Reason+strings.TrimSuffix(fmt.Sprintf(" (%s)", e.stop.Cause), " ()"))
			if e.stop.Grace != jobs.Grace {
				words = append(words, "in "+e.stop.Grace.String())
			}
		case question:
			words = append(words, fmt.Sprintf("ask about %s of node %d", e.about, e.status.Node))
		case finish:
			text := "end: success"
			if errors.Is(e.err, context.Canceled) {
				text = "leave"
			} else if e.err != nil {
				text = "end: " + string(fail.ReasonOf(e.err))
			}
			words = append(words, text)
		}
	}
	return strings.Join(words, ", ")
}

// TestCourse lists what an attempt on two nodes does about each thing that may happen to it, and the phase after it.
func TestCourse(t *testing.T) {
	type row struct {
		event event
		want  string
		then  phase
	}
	const saving = `log "The ranks are stopped: the", stop all: `
	const savingRest = ", in 30s, give up after 38s, saving after 10s"
	const rest, ncclWarning = ", give up after 8s", `log "NCCL on host: SocketsInsteadOfRDMA: NCCL"`
	const toSave = ", in 1m0s, give up after 1m8s, saving after 10s"
	for _, tc := range []struct {
		name string
		rows []row
	}{
		{"all ranks exit with 0", []row{
			{runs(0), `log "The first rank started 3.0", proof after 10m0s`, running},
			{proofDue, `log "The ranks have run for"`, running},
			{runs(1), "", running},
			{leaves(0, 0), "", running},
			{leaves(1, 0), "launchers after 20s", leaving},
			{exits(0, 0), "", leaving},
			{exits(1, 0), "end: success", ended},
		}},
		{"launchers outlive their ranks", []row{
			{leaves(0, 0), "", running},
			{leaves(1, 0), "launchers after 20s", leaving},
			{launchersOver, "stop all: its ranks have ended" + rest, leaving},
			{giveUp, "end: success", ended},
		}},
		{"a rank fails by an error of its own", []row{
			{leaves(1, 3), "stop all: rank 1 exited with 3" + rest, stopping},
			{exits(1, 3), "", stopping},
			{obeys(0, ""), "end: RankFailed", ended},
		}},
		{"a rank fails, and a node does not obey", []row{
			{exits(1, 3), "stop all: rank 1 exited with 3" + rest, stopping},
			{giveUp, "end: RankFailed", ended},
		}},
		{"a rank loses its peer, whose error comes later", []row{
			{losesItsPeer(1), "settled after 3s", doubtful},
			{losesItsPeer(1), "", doubtful},
			{leaves(0, 5), "stop all: rank 0 exited with 5" + rest, stopping},
			{settled, "", stopping},
			{obeys(1, ""), "", stopping},
			{exits(0, 5), "end: RankFailed", ended},
		}},
		{"a rank loses its peer, and no error comes", []row{
			{losesItsPeer(1), "settled after 3s", doubtful},
			{settled, "stop all: a rank lost its peers" + rest, stopping},
			{obeys(0, ""), "", stopping},
			{obeys(1, ""), "end: RankFailed", ended},
		}},
		{"a rank loses its peer, whose node does not answer", []row{
			{silentNode(1), `log "Node 1 does not answer;"`, running},
			{losesItsPeer(0), "settled after 3s", doubtful},
			{settled, "stop all: a rank lost its peers" + rest, stopping},
			{giveUp, `log "No rank shows an error"`, explaining},
			{lost(1), "end: NodeLost", ended},
		}},
		{"a rank loses its peer, whose node answers after the end with an error of its own", []row{
			{silentNode(1), `log "Node 1 does not answer;"`, running},
			{losesItsPeer(0), "settled after 3s", doubtful},
			{settled, "stop all: a rank lost its peers" + rest, stopping},
			{obeys(0, ""), "", stopping},
			{giveUp, `log "No rank shows an error"`, explaining},
			{runs(1), "stop all: a rank lost its peers" + rest, explaining},
			{exits(1, 3), "end: RankFailed", ended},
		}},
		{"a rank loses its peer, whose node answers again", []row{
			{silentNode(0), `log "Node 0 does not answer;"`, running},
			{losesItsPeer(1), "settled after 3s", doubtful},
			{runs(0), "", doubtful},
			{settled, "stop all: a rank lost its peers" + rest, stopping},
			{giveUp, "end: RankFailed", ended},
		}},
		{"a rank fails by an error of its own, and another node does not answer", []row{
			{silentNode(0), `log "Node 0 does not answer;"`, running},
			{leaves(1, 3), "stop all: rank 1 exited with 3" + rest, stopping},
			{giveUp, "end: RankFailed", ended},
		}},
		{"a launcher ends before its ranks have started", []row{
			{launcherEnds(1), "stop all: the launcher of node 1 ended before it had started all ranks" + rest, stopping},
			{jobs.Event{Status: agent.JobStatus{State: agent.Stopped}}, "ask about launcher of node 1", explaining},
			{because(fail.RankFailed), "end: RankFailed", ended},
		}},
		{"a node does not answer for a while", []row{
			{runs(0), "", running},
			{silentNode(1), `log "Node 1 does not answer;"`, running},
			{runs(1), "", running},
		}},
		{"a node is lost", []row{
			{runs(0), "", running},
			{lost(1), "stop all: another node is gone" + rest, stopping},
			{obeys(0, ""), "end: NodeLost", ended},
		}},
		{"a node is lost, and the other one does not obey", []row{
			{lost(1), "stop all: another node is gone" + rest, stopping},
			{runs(0), "", stopping},
			{giveUp, "end: NodeLost", ended},
		}},
		{"all nodes are lost", []row{
			{lost(1), "stop all: another node is gone" + rest, stopping},
			{lost(0), "end: NodeLost", ended},
		}},
		{"a node is lost after all ranks have exited with 0", []row{
			{leaves(0, 0), "", running},
			{leaves(1, 0), "launchers after 20s", leaving},
			{lost(1), "stop all: its ranks have ended" + rest + ", end: success", ended},
		}},
		{"the ranks hang", []row{
			{hangs, "stop all: it hangs: rank 1 (hang)" + rest, stopping},
			{obeys(0, agent.StopHang), "", stopping},
			{obeys(1, agent.StopHang), "end: Hang", ended},
		}},
		{"the ranks hang because one of them has failed and does not end", []row{
			{hangs, "stop all: it hangs: rank 1 (hang)" + rest, stopping},
			{obeys(0, agent.StopHang), "", stopping},
			{failedBefore(1, agent.StopHang), "end: RankFailed", ended},
		}},
		{"the ranks hang, exit with 0 at SIGTERM, and a node is lost then", []row{
			{hangs, "stop all: it hangs: rank 1 (hang)" + rest, stopping},
			{leaves(0, 0), "", stopping},
			{leaves(1, 0), "", stopping},
			{lost(1), "", stopping},
			{giveUp, "end: Hang", ended},
		}},
		{"a container is restarted, for memory", []row{
			{restarts(1), "ask about restart of node 1, stop all: a container was restarted" + rest, stopping},
			{because(fail.OutOfMemory), "", stopping},
			{obeys(0, ""), "end: OutOfMemory", ended},
		}},
		{"a container is restarted, and the kubelet reports late why", []row{
			{restarts(1), "ask about restart of node 1, stop all: a container was restarted" + rest, stopping},
			{obeys(0, ""), "", explaining},
			{giveUp, "", explaining},
			{because(fail.OutOfMemory), "end: OutOfMemory", ended},
		}},
		{"a container is restarted, and another node is lost", []row{
			{restarts(0), "ask about restart of node 0, stop all: a container was restarted" + rest, stopping},
			{lost(1), "", explaining},
			{because(fail.ContainerRestarted), "end: ContainerRestarted", ended},
		}},
		{"a node is drained, and its rank saves and exits with 0", []row{
			{exitsAtSIGTERM(1, agent.StopContainer), saving + "the container of node 1 is ending (node)" + savingRest, stopping},
			{obeys(0, ""), "ask about container of node 1", explaining},
			{because(fail.NodeLost), "end: NodeLost", ended},
		}},
		{"a node is drained, and the ranks save", []row{
			{beginsToStop(1, agent.StopContainer), saving + "the container of node 1 is ending (node)" + savingRest, stopping},
			{beginsToStop(0, agent.StopNode), "", stopping},
			{stillSaving, `log "Still saving: rank 0 on", saving after 10s`, stopping},
			{exitsAtSIGTERM(1, agent.StopContainer), "", stopping},
			{exitsAtSIGTERM(0, agent.StopNode), "ask about container of node 1", explaining},
			{because(fail.NodeLost), "end: NodeLost", ended},
		}},
		{"all nodes are preempted, and lost while their ranks save", []row{
			{beginsToStop(1, agent.StopContainer), saving + "the container of node 1 is ending (node)" + savingRest, stopping},
			{lost(1), "", stopping},
			{lost(0), "end: NodeLost", ended},
		}},
		{"the time is over", []row{
			{obeys(0, agent.StopDeadline), saving + "so ordered (deadline)" + savingRest, stopping},
			{obeys(1, agent.StopDeadline), "end: TrainingTimeout", ended},
		}},
		{"a rank fails just before the time is over", []row{
			{at(exits(1, 1), time.Second), "stop all: rank 1 exited with 1, give up after 8s", stopping},
			{obeys(0, agent.StopDeadline), "end: RankFailed", ended},
		}},
		{"the time is over, and a rank saves for longer than its peer", []row{
			{beginsToStop(0, agent.StopDeadline), saving + "so ordered (deadline)" + savingRest, stopping},
			{beginsToStop(1, agent.StopDeadline), "", stopping},
			{leaves(0, 143), "", stopping},
			{obeys(0, agent.StopDeadline), "", stopping},
			{hangs, "", stopping},
			{stillSaving, `log "Still saving: rank 1 on", saving after 10s`, stopping},
			{exitsAtSIGTERM(1, agent.StopDeadline), "end: TrainingTimeout", ended},
			{stillSaving, "", ended},
		}},
		{"the time is over, and all ranks save and exit with 0", []row{
			{exitsAtSIGTERM(0, agent.StopDeadline), saving + "so ordered (deadline)" + savingRest, stopping},
			{exitsAtSIGTERM(1, agent.StopDeadline), "end: TrainingTimeout", ended},
		}},
		{"the time is over, and a node does not end", []row{
			{beginsToStop(0, agent.StopDeadline), saving + "so ordered (deadline)" + savingRest, stopping},
			{obeys(0, agent.StopDeadline), "", stopping},
			{giveUp, "end: TrainingTimeout", ended},
		}},
		{"a user starts another training in its place", []row{
			{obeys(0, agent.StopReplaced), "settled after 3s", doubtful},
			{obeys(1, agent.StopReplaced), "end: Cancelled", ended},
		}},
		{"ranks talk over sockets in mode rdma", []row{
			{overSockets(runs(0)), "nccl after 500ms", running},
			{overSockets(runs(1)), "", running},
			{ncclSettled, `log "NCCL's logs show: TCP sockets,", ` + ncclWarning + ", stop all: ranks talk over sockets" + rest, stopping},
			{overSockets(obeys(0, "")), "", stopping},
			{overSockets(obeys(1, "")), "end: TransportWrong", ended},
		}},
		{"sockets are seen when all ranks have exited with 0", []row{
			{overSockets(leaves(0, 0)), "nccl after 500ms", running},
			{leaves(1, 0), "launchers after 20s", leaving},
			{exits(1, 0), "", leaving},
			{overSockets(exits(0, 0)), ncclWarning + ", end: TransportWrong", ended},
		}},
		{"a rank waits for a debugger", []row{
			{waitsForDebugger(1), "show debugger of rank 1", running},
			{waitsForDebugger(0), "", running},
		}},
		{"the loss is NaN without a rule", []row{
			{lossOf(1, 2.5), "", running},
			{lossOf(2, math.NaN()), `log "The loss at step 2"`, running},
			{lossOf(3, math.NaN()), "", running},
			{lossOf(4, math.Inf(1)), "", running},
			{exits(0, 0), "", running},
			{exits(1, 0), "launchers after 20s, end: success", ended},
		}},
		{"the loss is NaN with a rule", []row{
			{lossOf(1, 2.5), "", running},
			{lossOf(2, math.NaN()), saving + "the loss at step 2 is NaN; before it was 2.5 at step 1 (stop-if: loss is nan) (rule)" + toSave,
				stopping},
			{lossOf(3, math.NaN()), "", stopping},
			{exitsAtSIGTERM(0, ""), "", stopping},
			{exitsAtSIGTERM(1, ""), "end: StopCondition", ended},
		}},
		{"the loss is NaN with a rule, and a node does not obey", []row{
			{lossOf(2, math.NaN()), saving + "the loss at step 2 is NaN, as it was from the beginning (stop-if: loss is nan) (rule)" + toSave,
				stopping},
			{obeys(0, ""), "", stopping},
			{giveUp, "end: StopCondition", ended},
		}},
		{"the loss is NaN with a rule, and a node is lost", []row{
			{lossOf(2, math.NaN()), saving + "the loss at step 2 is NaN, as it was from the beginning (stop-if: loss is nan) (rule)" + toSave,
				stopping},
			{lost(1), "", stopping},
			{obeys(0, ""), "end: StopCondition", ended},
		}},
		{"the loss is NaN with a rule after a rank has failed", []row{
			{leaves(1, 3), "stop all: rank 1 exited with 3" + rest, stopping},
			{lossOf(2, math.NaN()), "", stopping},
			{obeys(0, ""), "", stopping},
			{exits(1, 3), "end: RankFailed", ended},
		}},
		{"the loss is NaN with a rule after all ranks have exited with 0", []row{
			{leaves(0, 0), "", running},
			{leaves(1, 0), "launchers after 20s", leaving},
			{lossOf(2, math.NaN()), "", leaving},
			{exits(0, 0), "", leaving},
			{exits(1, 0), "end: success", ended},
		}},
		{"a step comes back after a rule has stopped the ranks", []row{
			{beginsToStop(0, agent.StopRule), `log "The ranks are stopped: so", stop all: ` + "so ordered (rule), in 30s, give up after 38s, " +
				"saving after 10s", stopping},
			{obeys(0, agent.StopRule), "", stopping},
			{obeys(1, agent.StopRule), "end: StopCondition", ended},
		}},
		{"the loss is high with a rule", []row{
			{lossOf(99, 21), "", running},
			{lossOf(100, 20), "", running},
			{lossOf(101, 20.5), saving + "the loss at step 101 is 20.5; before it was 20 at step 100 (restart-if: loss > 20 after 100 " +
				"steps) (rule)" + toSave, stopping},
			{obeys(0, ""), "", stopping},
			{obeys(1, ""), "end: StopCondition", ended},
		}},
		{"no checkpoint comes", []row{
			{later{saved{}, 2 * time.Hour}, "", running}, // no node has started
			{runs(0), "", running},
			{later{saved{}, time.Hour}, "", running},
			{later{saved{"step-5", begin.Add(time.Hour)}, 2 * time.Hour}, "", running},
			{later{saved{"step-9", begin.Add(time.Hour)}, 3 * time.Hour}, "", running},
			{later{saved{"step-9", begin.Add(time.Hour)}, 5*time.Hour - time.Second}, "", running},
			{later{saved{"step-9", begin.Add(time.Hour)}, 5 * time.Hour}, saving + "the newest complete checkpoint, step-9, was written 2h0m ago " +
				"(stop-if: no checkpoint for 2h) (rule)" + toSave, stopping},
			{obeys(0, ""), "", stopping},
			{obeys(1, ""), "end: StopCondition", ended},
		}},
		{"the GPUs are idle", []row{
			{later{used{4.9, 16}, 0}, "", running},
			{later{used{5, 16}, 10 * time.Minute}, "", running},
			{later{used{0, 16}, 11 * time.Minute}, "", running},
			{later{used{0, 16}, 16 * time.Minute}, "", running},
			{later{used{1, 16}, 21 * time.Minute}, "", running},
			{later{used{0, 16}, 26 * time.Minute}, "", running},
			{later{used{0, 16}, 31 * time.Minute}, `log "The ranks are stopped: 16", ` + "stop all: 16 GPUs were at most 1.0% busy on average for " +
				"20m0s (stop-if: gpu_use < 5% for " +
				"20m) (rule)" + toSave, stopping},
		}},
		{"the GPUs are unknown", []row{
			{used{}, `log "Rule \"gpu_use < 5% for"`, running},
			{used{}, "", running},
		}},
		{"the step is to end", []row{
			{runs(0), "", running},
			{interrupted{context.Canceled}, "leave", ended},
		}},
		{"the step is to end while the cluster is asked", []row{
			{restarts(1), "ask about restart of node 1, stop all: a container was restarted" + rest, stopping},
			{interrupted{context.Canceled}, "leave", ended},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			of := courseRules[tc.name]
			c := &course{
				rules: watches(rules.Valid(of.stopIf), rules.Valid(of.restartIf), false),
				judge: judge{spec: agent.JobSpec{Launcher: agent.Torchrun, Nodes: 2, RanksPerNode: 1, Grace: time.Minute},
					of: cause.Job{Run: "run", Namespace: "ns"}, gone: (&Training{}).nodeGoneError},
				phase: running, statuses: make([]agent.JobStatus, 2), lost: map[int]bool{}, silent: map[int]bool{}, launched: begin,
				started: !strings.Contains(tc.rows[0].want, "first rank"),
				nccl:    ncclMonitor{wanted: nccl.RDMAGPU, ranks: 2},
			}
			type line struct {
				After, Want string
				Then        phase
			}
			for i, row := range tc.rows {
				now := begin.Add(3 * time.Second)
				if l, ok := row.event.(later); ok {
					row.event, now = l.event, begin.Add(l.after)
				}
				event := fmt.Sprintf("event %d, %T", i+1, row.event)
				got := inWords(c.on(row.event, now))
				if diff := cmp.Diff(line{event, row.want, row.then}, line{event, got, c.phase}); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}
