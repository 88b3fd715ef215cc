// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// phase is how far an attempt is.
type phase string

const (
	running phase = "running"
	// doubtful: a rank failed whose error may be the consequence of another one's.
	doubtful phase = "doubtful"
	// leaving: all ranks have exited with 0, and launchers have not ended.
	leaving phase = "leaving"
	// stopping: the nodes have the order to stop.
	stopping phase = "stopping"
	// explaining: all that answer is over, and the cluster is asked why, or a silent node is waited for.
	explaining phase = "explaining"
	ended      phase = "ended"
)

// event is what happens to an attempt: a jobs.Event, a fact by which rules are judged, or one of these.
type event any

type (
	// hung reports ranks that hang; why is for the nodes.
	hung struct {
		err error
		why string
	}
	// timer is the end of an alarm.
	timer string
	// explained is the answer to a question.
	explained struct{ err error }
	// interrupted reports that the step is to end.
	interrupted struct{ err error }
)

const (
	settled       timer = "settled"
	ncclSettled   timer = "nccl"
	launchersOver timer = "launchers"
	giveUp        timer = "give up"
	stillSaving   timer = "saving"
	proofDue      timer = "proof"
)

// effect is what an event leads to: one of these.
type effect any

type (
	// say is a line of the log.
	say struct {
		level slog.Level
		text  string
		args  []any
	}
	// debugger prints how to reach a rank that waits for one.
	debugger struct{ rank agent.RankStatus }
	// alarm sends the timer after a time.
	alarm struct {
		timer timer
		after time.Duration
	}
	// order stops all nodes.
	order struct{ stop agent.Stop }
	// question asks what the statuses do not show. Its answer is explained.
	question struct {
		about  topic
		status agent.JobStatus
	}
	// finish ends the attempt.
	finish struct{ err error }
)

// topic is what a question is about.
type topic string

const (
	// aboutRestart asks how the container ended that was restarted under the job.
	aboutRestart topic = "restart"
	// aboutContainer asks why a container was told to end.
	aboutContainer topic = "container"
	// aboutLauncher asks what a launcher printed that ended before its ranks had started.
	aboutLauncher topic = "launcher"
)

// course is the state of one attempt. It decides, and does nothing itself.
type course struct {
	judge
	phase    phase
	statuses []agent.JobStatus
	// lost are the nodes that report nothing any more, and silent those that may report again.
	lost, silent map[int]bool
	// failure is the first one. It is nil as long as its question is open, which asked means.
	failure error
	asked   bool
	// stopped is true after the order to stop, and late if not all nodes have reported their end in time after it.
	stopped, late bool
	ordered       agent.Stop // the latest order
	nccl          ncclMonitor
	// launched is zero if an earlier step launched the attempt.
	launched          time.Time
	started, debugged bool
	rules             []ruled
	// warned is true after a loss that was not finite, and unseen after GPUs that do not report their use.
	warned, unseen bool
	effects        []effect
}

// on takes an event, and returns what is to be done.
func (c *course) on(e event, now time.Time) []effect {
	c.effects = nil
	switch e := e.(type) {
	case jobs.Event:
		c.heard(e, now)
	case hung:
		if !c.stopped { // else it is about ranks that were being stopped
			c.fail(e.err, agent.StopHang, e.why)
		}
	case timer:
		c.fired(e, now)
	case explained:
		c.failure, c.asked = e.err, false
	case interrupted:
		c.finish(e.err)
	case measured, saved, used:
		c.judgeFact(e, now)
	}
	if c.phase != ended && (c.late || c.over()) {
		c.conclude()
	}
	return c.effects
}

func (c *course) heard(e jobs.Event, now time.Time) {
	switch e.Kind {
	case jobs.Silent:
		c.silent[e.Node] = true
		c.say(slog.LevelWarn, fmt.Sprintf("Node %d does not answer; the training may continue. Trying again. (%v)", e.Node, e.Err))
	case jobs.Lost:
		c.lost[e.Node] = true
		c.fail(onNode{node: e.Node, error: e.Err}, "", "another node is gone")
	case jobs.Reported:
		c.reported(e.Node, e.Status, now)
	}
}

func (c *course) reported(node int, status agent.JobStatus, now time.Time) {
	if c.late && c.silent[node] && status.State == agent.Running { // the order to stop has not reached it
		c.late = false
		c.order(c.ordered, jobs.Grace+jobs.Settle)
	}
	delete(c.silent, node)
	if c.nccl.note(c.statuses[node].NCCL, status.NCCL) {
		c.effects = append(c.effects, alarm{ncclSettled, together})
	}
	c.statuses[node] = status
	c.show(status, now)
	why, certain := c.failing(status)
	switch {
	case c.succeeded(c.statuses):
		if !c.stopped && c.phase != leaving {
			c.phase = leaving
			c.effects = append(c.effects, alarm{launchersOver, launcherEnd})
		}
	case status.State == agent.Restarted:
		if c.failure == nil && !c.asked {
			c.ask(question{aboutRestart, status})
		}
		c.stop("", "a container was restarted")
	case c.stopped:
	case status.StopCause.Saves():
		c.save(status, now)
	case why == "":
	case certain:
		c.stop("", why)
	case c.phase != doubtful:
		c.phase = doubtful
		c.effects = append(c.effects, alarm{settled, jobs.Settle})
	}
}

// show reports the first rank that starts, and the first that waits for a debugger.
func (c *course) show(status agent.JobStatus, now time.Time) {
	if !c.started && slices.ContainsFunc(status.Ranks, func(r agent.RankStatus) bool { return !r.Started.IsZero() }) {
		c.started = true
		took := now.Sub(c.launched).Seconds()
		c.say(slog.LevelDebug, fmt.Sprintf("The first rank started %.1f s after the launch.", took), "event", "first-rank", "seconds", took)
		c.effects = append(c.effects, alarm{proofDue, proofTime})
	}
	waits := func(r agent.RankStatus) bool { return r.DebugPort != 0 && r.Ended.IsZero() }
	if i := slices.IndexFunc(status.Ranks, waits); i >= 0 && !c.debugged {
		c.debugged = true
		c.effects = append(c.effects, debugger{status.Ranks[i]})
	}
}

// fail takes an error after which the attempt cannot succeed. Only the transport matters to ranks that have all exited with 0.
func (c *course) fail(err error, cause agent.StopCause, why string) {
	if c.failure == nil && !c.asked {
		if c.succeeded(c.statuses) {
			err := c.transport()
			c.stop("", "its ranks have ended") // launchers may still run
			c.finish(err)
			return
		}
		c.failure = err
	}
	c.stop(cause, why)
}

func (c *course) fired(t timer, now time.Time) {
	switch t {
	case settled:
		if c.phase == doubtful {
			c.stop("", "a rank lost its peers")
		}
	case ncclSettled:
		_ = c.transport() // conclude looks again
	case launchersOver:
		c.stop("", "its ranks have ended")
	case giveUp:
		c.late = true
	case stillSaving:
		c.saySaving(now)
	case proofDue:
		if text := cause.Unproven(c.statuses, c.nccl.wanted); text != "" && c.phase == running {
			c.say(slog.LevelWarn, fmt.Sprintf("The ranks have run for %s, and %s. Next: %s.", humanize.Duration(proofTime), text,
				cause.UnprovenNext), "event", "transport-unproven", "why", text)
		}
	}
}

// transport returns the error for ranks on a wrong transport, and stops them.
func (c *course) transport() error {
	err := c.nccl.look(c.statuses, c.say)
	if err != nil {
		c.stop("", "ranks talk over sockets")
	}
	return err
}

func (c *course) stop(cause agent.StopCause, why string) {
	if c.stopped {
		return
	}
	c.stopped = true
	if c.phase != leaving {
		c.phase = stopping
	}
	c.order(agent.Stop{Cause: cause, Reason: why, Grace: jobs.Grace}, jobs.Grace+jobs.Settle)
}

// order orders all nodes to stop. Those that do not report their end within a time are waited for no longer.
func (c *course) order(stop agent.Stop, most time.Duration) {
	c.ordered = stop
	c.effects = append(c.effects, order{stop}, alarm{giveUp, most})
}

// stopByRule stops all nodes because the training meets a rule. Nothing is broken, so the ranks have the job's time to save.
func (c *course) stopByRule(err error, why string) {
	c.failure = err
	c.sayStopped(why, agent.StopRule, c.spec.Grace)
	c.orderToSave(agent.Stop{Cause: agent.StopRule, Reason: why, Grace: c.spec.Grace}, cmp.Or(c.spec.Grace, agent.MaxStopGrace))
}

// save stops all nodes after one has begun to stop its ranks, so that all can save together and have the same time.
func (c *course) save(status agent.JobStatus, now time.Time) {
	left := min(max(status.Kill.Sub(now), time.Second), agent.MaxStopGrace).Round(time.Second)
	stop := agent.Stop{Cause: status.StopCause, Reason: status.StopReason, Grace: left}
	if stop.Cause == agent.StopContainer {
		stop.Cause, stop.Reason = agent.StopNode, fmt.Sprintf("the container of node %d is ending", status.Node)
	}
	c.sayStopped(savingBecause(status), status.StopCause, left)
	c.orderToSave(stop, left)
}

// sayStopped reports why the ranks are stopped, and how long they have to save; 0 for the environment's time.
func (c *course) sayStopped(why string, cause agent.StopCause, left time.Duration) {
	text := "the environment's time"
	if left > 0 {
		text = left.String()
	}
	c.say(slog.LevelInfo, fmt.Sprintf("The ranks are stopped: %s. They have %s to save.", why, text), "event", "stopping", "cause", cause,
		"seconds", left.Seconds())
}

// orderToSave stops all nodes, whose ranks have at most that time to save.
func (c *course) orderToSave(stop agent.Stop, most time.Duration) {
	c.stopped, c.phase = true, stopping
	c.order(stop, most+killTime+jobs.Settle)
	c.effects = append(c.effects, alarm{stillSaving, jobs.SavingEvery})
}

// savingBecause returns why a node stops its ranks, a clause of a message.
func savingBecause(status agent.JobStatus) string {
	switch status.StopCause {
	case agent.StopDeadline:
		return "the time of the training is over"
	case agent.StopContainer:
		return fmt.Sprintf("the container of node %d is ending, as when its pod is deleted, evicted or preempted", status.Node)
	case agent.StopReplaced, agent.StopCancelled, agent.StopNode, agent.StopHang, agent.StopRule:
	}
	return status.StopReason
}

// saySaving reports, again and again, which ranks are still saving.
func (c *course) saySaving(now time.Time) {
	if who := agent.Saving(c.statuses, now); who != "" {
		c.say(slog.LevelInfo, "Still saving: "+who+".")
		c.effects = append(c.effects, alarm{stillSaving, jobs.SavingEvery})
	}
}

// over reports whether no node can report anything new. A lost node reports nothing, whatever ended the attempt.
func (c *course) over() bool {
	for node, status := range c.statuses {
		if !c.lost[node] && (status.State == agent.Running || status.State == "") {
			return false
		}
	}
	return true
}

// conclude ends the attempt, if no question is open about it, and no node that may still show the cause.
func (c *course) conclude() {
	first := c.phase != explaining
	c.phase = explaining
	if c.asked {
		return
	}
	err := cmp.Or(c.failure, c.nccl.look(c.statuses, c.say))
	if fail.ReasonOf(err) == fail.Hang { // what a rank had printed is read when it ends
		found, _ := cause.Find(c.statuses)
		err = cmp.Or(c.held(c.statuses, found, "when the training counted as hanging"), err)
	}
	if err == nil {
		var q *question
		if q, err = c.verdict(c.statuses); q != nil {
			c.ask(*q)
			return
		}
		if node, awaited := c.awaited(err); awaited {
			if first {
				c.say(slog.LevelInfo, fmt.Sprintf("No rank shows an error of its own. Waiting at most %s for node %d, which does not answer.",
					jobs.Reachable, node))
			}
			return
		}
	}
	c.finish(err)
}

// awaited returns a node that does not answer, if a rank lost its peers and no rank shows an error of its own. Either the node answers,
// and shows what its ranks did, or it counts as lost.
func (c *course) awaited(err error) (node int, ok bool) {
	var lost cause.Error
	if !errors.As(err, &lost) || lost.Known || lost.Left != nil || lost.Waiting != nil || lost.Behind != "" || lost.Stalled != "" {
		return 0, false
	}
	for node, status := range c.statuses {
		if c.silent[node] && !c.lost[node] && (status.State == agent.Running || status.State == "") {
			return node, true
		}
	}
	return 0, false
}

func (c *course) ask(q question) {
	c.asked = true
	c.effects = append(c.effects, q)
}

func (c *course) finish(err error) {
	c.phase = ended
	c.effects = append(c.effects, finish{err})
}

func (c *course) say(level slog.Level, text string, args ...any) {
	c.effects = append(c.effects, say{level, text, args})
}
