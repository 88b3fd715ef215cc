// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
)

const (
	// settle is how long ranks have to print their own errors after the first one has failed, and to end after all is measured.
	settle = 2 * time.Second
	// mostMeasurements is many more than the benchmark prints.
	mostMeasurements = 1 << 14
)

// phase is how far a job is.
type phase string

const (
	running phase = "running"
	// settling: all is measured, or a rank has failed.
	settling phase = "settling"
	// stopping: the members have the order to stop.
	stopping phase = "stopping"
	ended    phase = "ended"
)

// event is what happens to a job: a jobs.Event, or one of these.
type event any

type (
	// printed is a line of a node's rank.
	printed struct {
		node int
		line fabric.Line
	}
	// logged is a node whose log is complete.
	logged int
	// timer is the end of an alarm.
	timer string
)

const (
	silent    timer = "silent"
	outOfTime timer = "out of time"
	settled   timer = "settled"
	giveUp    timer = "give up"
)

// effect is what an event leads to: one of these.
type effect any

type (
	// alarm sends the timer after a time.
	alarm struct {
		timer timer
		after time.Duration
	}
	// order ends the job on all members. Its text is why.
	order string
)

// course is the state of a job. It decides, and does nothing itself.
type course struct {
	*job
	phase    phase
	out      outcome
	statuses map[int]agent.JobStatus
	// logged and done are the members whose log is complete, and who have measured all.
	logged, done map[int]bool
	// cut is true if the job measured as much as there was time for.
	cut bool
	// last is when a rank printed something.
	began, last time.Time
	effects     []effect
}

type outcome struct {
	measurements []fabric.Measurement
	devices      []fabric.Device
	// rail is the one that was measured last, -1 before the first.
	rail int
	// withoutGPU are the nodes whose torch sees no GPU; ready and joined those that printed these events.
	withoutGPU, ready, joined []int
	// importing is how long all members took to import torch, and meeting how long they then took to meet; 0 if they did not.
	importing, meeting time.Duration
	// done: all was measured, or as much as there was time for.
	done bool
	// failed is true if a rank ended by itself with an error.
	failed bool
	// stalled is true if the job was stopped because no rank printed anything any more, though all had imported torch.
	stalled  bool
	statuses []agent.JobStatus
	// unreachable are the errors of nodes whose agents do not answer.
	unreachable map[int]error
}

func (c *course) begin() []effect {
	c.phase, c.out.rail, c.last = running, noRail, c.began
	c.statuses, c.logged, c.done = map[int]agent.JobStatus{}, map[int]bool{}, map[int]bool{}
	return []effect{alarm{outOfTime, c.bound}}
}

// on takes an event, and returns what is to be done.
func (c *course) on(e event, now time.Time) []effect {
	c.effects = nil
	switch e := e.(type) {
	case printed:
		c.heard(e.node, e.line, now)
	case jobs.Event:
		// A member that is silent or lost decides nothing: what counts is what the ranks print within their time.
		if e.Kind == jobs.Reported {
			c.statuses[e.Node] = e.Status
			if c.phase == running && failed(e.Status) {
				c.out.failed = true
				c.settle()
			}
		}
	case logged:
		c.logged[int(e)] = true
	case timer:
		c.fired(e, now)
	}
	if c.over() {
		c.phase = ended
	}
	return c.effects
}

func (c *course) heard(node int, line fabric.Line, now time.Time) {
	ready, joined := c.all(c.out.ready), c.all(c.out.joined)
	c.out.take(node, line, c.Members)
	c.last = now
	if line.Event == fabric.Done {
		c.done[node] = true
	}
	if !ready && c.all(c.out.ready) {
		c.out.importing = now.Sub(c.began)
		c.alarm(silent, c.patience())
	}
	if !joined && c.all(c.out.joined) {
		c.out.meeting = now.Sub(c.began) - c.out.importing
		c.alarm(silent, c.patience())
	}
	if c.phase == running && c.measured() {
		c.settle() // torch may be slow to end, which shows nothing about the network
	}
}

func (c *course) fired(t timer, now time.Time) {
	silence, joined := now.Sub(c.last), c.all(c.out.joined)
	switch {
	case t == giveUp:
		c.phase = ended
	case c.phase != running && c.phase != settling:
	case t == settled && c.measured():
		c.stop("all is measured")
	case t == settled:
		c.stop("another rank failed")
	case t == silent && silence < c.patience():
		c.alarm(silent, c.patience()-silence)
	case t == silent:
		c.out.stalled = true
		c.stop("no rank answers any more")
	case t == outOfTime:
		// On a busy machine measuring takes longer than the program estimates, and importing torch or meeting longer than there is time.
		// NCCL that had less than its time to start shows nothing.
		c.out.stalled = c.all(c.out.ready) && silence >= c.patience()/2 && (joined || c.input.Backend != fabric.NCCL)
		c.cut = joined && !c.out.stalled
		c.stop("the time for the check is over")
	}
}

// patience is how long the ranks may be silent once all have imported torch.
func (c *course) patience() time.Duration {
	if c.all(c.out.joined) {
		return c.stall
	}
	return c.joining
}

func (c *course) all(members []int) bool { return len(members) == len(c.Members) }

func (c *course) measured() bool { return len(c.done) == len(c.Members) }

func (c *course) settle() {
	c.phase = settling
	c.alarm(settled, settle)
}

func (c *course) stop(why string) {
	c.phase = stopping
	c.effects = append(c.effects, order(why))
	c.alarm(giveUp, ending)
}

func (c *course) alarm(t timer, after time.Duration) { c.effects = append(c.effects, alarm{t, after}) }

// over reports whether all members have ended, and their logs are complete.
func (c *course) over() bool {
	return len(c.logged) == len(c.Members) && !slices.ContainsFunc(c.Members, func(member *agent.Client) bool {
		status, known := c.statuses[member.Node()]
		return !known || status.State == agent.Running
	})
}

// outcome returns what the job has shown until now.
func (c *course) outcome() outcome {
	out := c.out
	out.done = c.measured() || c.cut
	for _, member := range c.Members {
		if status, ok := c.statuses[member.Node()]; ok {
			out.statuses = append(out.statuses, status)
		}
	}
	return out
}

func failed(status agent.JobStatus) bool {
	_, failed := cause.Find([]agent.JobStatus{status})
	return failed || status.State == agent.Exited && len(status.Ranks) == 0
}

// take takes a line of a node. The benchmark knows places among the members, and not nodes.
func (o *outcome) take(node int, line fabric.Line, members nodes.Set) {
	note := func(known *[]int) {
		if !slices.Contains(*known, node) {
			*known = append(*known, node)
		}
	}
	switch line.Event {
	case fabric.WithoutGPU:
		note(&o.withoutGPU)
	case fabric.Ready:
		note(&o.ready)
	case fabric.Joined:
		note(&o.joined)
	case fabric.OnRail:
		o.rail = line.Rail
	case fabric.OfDevice:
		known := slices.ContainsFunc(o.devices, func(d fabric.Device) bool { return d.Rank == line.Device.Rank })
		if line.Device.Node = node; !known {
			o.devices = append(o.devices, line.Device)
		}
	case "": // a measurement
		if line.Scope == fabric.InPair {
			p := line.Pair
			if !p.Within(len(members)) {
				return
			}
			a, b := members[p[0]].Node(), members[p[1]].Node()
			line.Pair = fabric.Pair{min(a, b), max(a, b)}
		}
		if line.Scope == fabric.InNode {
			line.Node = node
		}
		if len(o.measurements) < mostMeasurements {
			o.measurements = append(o.measurements, line.Measurement)
		}
	}
}

// conclusive reports whether an end without a result shows something about the network: something failed, or ranks were silent for long
// after all members had imported torch. Members that had no time show nothing.
func (o *outcome) conclusive() bool { return o.stalled || o.failed }
