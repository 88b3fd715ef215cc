// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
)

// GPUs are the GPUs that a run held.
type GPUs struct {
	// Count is the number of GPUs of all nodes.
	Count int `json:"count"`
	// Since is when the last of them was assigned, zero if not all were.
	Since time.Time `json:"since,omitzero"`
	// Before is how long the others were assigned by then, in seconds of one GPU.
	Before float64 `json:"gpuSecondsBefore,omitempty"`
}

// Spent is what a time was spent on.
type Spent struct {
	// Waiting is the time before all GPUs were assigned: checks, the build of the image, the queue, and other users.
	Waiting float64 `json:"waiting"`
	// Starting is the time until the first step, and after a failed attempt until the first step of the next one.
	Starting float64 `json:"starting"`
	// Steps is the time of useful steps, which no later attempt did again. The end of the training after its last step counts, too.
	Steps float64 `json:"steps"`
	// Repeated is the time of steps that a later attempt did again.
	Repeated float64 `json:"repeated"`
	// Hang is the silence of all ranks before it was named a hang.
	Hang float64 `json:"hang"`
	// Teardown is the time from the end of the training to the end of the run.
	Teardown float64 `json:"teardown"`
}

// Total returns the whole time.
func (s Spent) Total() float64 {
	return s.Waiting + s.Starting + s.Steps + s.Repeated + s.Hang + s.Teardown
}

// times returns the time multiplied by a factor.
func (s Spent) times(factor float64) Spent {
	return Spent{
		Waiting: factor * s.Waiting, Starting: factor * s.Starting, Steps: factor * s.Steps,
		Repeated: factor * s.Repeated, Hang: factor * s.Hang, Teardown: factor * s.Teardown,
	}
}

// Share returns the steps' part of the time with all GPUs, from 0 to 1; 0 if there was none.
func (s Spent) Share() float64 {
	if held := s.Total() - s.Waiting; held > 0 {
		return s.Steps / held
	}
	return 0
}

// Goodput is what the minutes of a run became.
type Goodput struct {
	// GPUs is how many the run held, 0 for none.
	GPUs int `json:"gpus"`
	// Seconds add up to the time from the start to the end of the run.
	Seconds Spent `json:"seconds"`
	// GPUHours are these times multiplied by the GPUs that were assigned.
	GPUHours Spent `json:"gpuHours"`
	// Share is the part of the time with all GPUs that useful steps took, from 0 to 1.
	Share float64 `json:"share"`
	// Measured reports whether the training wrote the times of its steps. Without them the time of the last attempt's ranks counts as useful
	// steps, and the time of earlier ones as repeated.
	Measured bool `json:"measured"`
}

// GoodputOf computes the goodput from the phases, attempts and curve of a receipt; nil if the run never started. What an earlier writer
// computed stays if the receipt has lost what it was computed from.
func GoodputOf(r Receipt) *Goodput {
	end := r.lastTime()
	switch {
	case r.Started.IsZero():
		return r.Goodput
	case r.Goodput != nil && len(r.LeftOut) > 0:
		return r.Goodput.until(end.Sub(r.Started))
	}
	var gpus GPUs
	if r.GPUs != nil {
		gpus = *r.GPUs
	}
	c := clock{at: r.Started, end: end}
	g := &Goodput{GPUs: gpus.Count}
	s := &g.Seconds
	over := r.trainingOver(end)
	if gpus.Since.IsZero() {
		s.Waiting = c.until(over)
	} else {
		s.Waiting = c.until(gpus.Since)
		all := r.spans()
		g.Measured = slices.ContainsFunc(all, span.measured)
		for i := range all {
			all[i].spend(s, &c, all[i+1:], g.Measured)
		}
		if len(all) == 0 {
			s.Starting += c.until(over)
		}
	}
	s.Teardown += c.until(end)
	before := s.Waiting
	g.GPUHours = s.times(float64(gpus.Count) / time.Hour.Seconds())
	g.GPUHours.Waiting = min(gpus.Before, before*float64(gpus.Count)) / time.Hour.Seconds()
	if gpus.Since.IsZero() {
		g.GPUHours.Teardown = 0
	}
	g.Share = s.Share()
	return g
}

// until returns the goodput of a run that ended later, so long after its start: its teardown took longer.
func (g Goodput) until(whole time.Duration) *Goodput {
	if more := whole.Seconds() - g.Seconds.Total(); more > 0 {
		g.Seconds.Teardown += more
		g.GPUHours.Teardown += more * float64(g.GPUs) / time.Hour.Seconds()
		g.Share = g.Seconds.Share()
	}
	return &g
}

// clock is a time that does not go back, and stops at the end of the run.
type clock struct{ at, end time.Time }

// until moves the clock and returns the seconds that have passed.
func (c *clock) until(next time.Time) float64 {
	if next.After(c.end) {
		next = c.end
	}
	if !next.After(c.at) {
		return 0
	}
	passed := next.Sub(c.at).Seconds()
	c.at = next
	return passed
}

// lastTime returns when the run ended, or else the last time in its receipt.
func (r Receipt) lastTime() time.Time {
	if !r.Ended.IsZero() {
		return r.Ended
	}
	last := r.Started
	for _, p := range r.Phases {
		last = latest(last, p.Started, p.Ended)
	}
	return last
}

// trainingOver returns the end of the last task.
func (r Receipt) trainingOver(end time.Time) time.Time {
	var over time.Time
	for _, p := range r.Phases {
		if p.Ended.IsZero() && !p.Started.IsZero() {
			return end
		}
		over = latest(over, p.Ended)
	}
	if over.IsZero() {
		return end
	}
	return over
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

func (r Receipt) phase(name string) *Phase {
	if i := slices.IndexFunc(r.Phases, func(p Phase) bool { return p.Name == name }); i >= 0 {
		return &r.Phases[i]
	}
	return nil
}

// span is an attempt.
type span struct {
	started, ended time.Time
	// steps reports whether the attempt measured a step. marks has the times of its steps: the first mark is the step before the first one
	// that was measured. It is empty if the times are not known.
	steps bool
	marks []mark
	hang  *agent.Hang
}

type mark struct {
	step float64
	at   time.Time
}

func (s span) measured() bool { return len(s.marks) > 0 }

// spans returns the attempts of the training, none if nothing was launched.
func (r Receipt) spans() (all []span) {
	if len(r.Attempts) == 0 {
		s := span{hang: r.Hang}
		if s.started, s.ended = r.rankTimes(); s.ended.IsZero() {
			return nil
		}
		s.mark(r.Curve)
		return []span{s}
	}
	for i, a := range r.Attempts {
		s := span{started: a.Started, ended: a.Ended, hang: a.Hang, steps: a.First != nil}
		course := a.StepTimes
		if i == len(r.Attempts)-1 {
			course, s.hang = r.Curve, cmp.Or(a.Hang, r.Hang)
			if p := r.phase(trainTask); s.ended.IsZero() && p != nil {
				s.ended = p.Ended
			}
		}
		s.mark(course)
		all = append(all, s)
	}
	return all
}

// trainTask is the name of the step train in the pipeline.
const trainTask = "train"

// rankTimes returns when the first rank of the only attempt started, and when the last one ended. The task's times have to do if the nodes
// did not report their ranks.
func (r Receipt) rankTimes() (started, ended time.Time) {
	complete := len(r.Ranks) > 0
	for _, rank := range r.Ranks {
		if rank.Started.IsZero() {
			continue
		}
		if started.IsZero() || rank.Started.Before(started) {
			started = rank.Started
		}
		complete = complete && rank.Seconds > 0
		ended = latest(ended, rank.Started.Add(time.Duration(rank.Seconds*float64(time.Second))))
	}
	p := r.phase(trainTask)
	if p == nil || r.Training == nil {
		return started, ended
	}
	if started.IsZero() {
		started = p.Started
	}
	if !complete {
		ended = latest(ended, p.Ended)
	}
	if p.Ended.IsZero() {
		ended = r.lastTime()
	}
	return started, ended
}

// mark sets the marks from the course of an attempt. A step that was measured first took as long as the others, and there were as many of
// them before the first line as between two lines.
func (s *span) mark(c *metrics.Curve) {
	if c == nil || c.Lines == 0 {
		return
	}
	s.steps = true
	if c.Began.IsZero() {
		return
	}
	marks := []mark{{c.First, c.Began}}
	for _, p := range c.Points {
		if p.Elapsed != nil {
			marks = append(marks, mark{p.Step, c.Began.Add(*p.Elapsed)})
		}
	}
	last := marks[len(marks)-1]
	each := max(0, last.step-c.First) / float64(max(1, c.Lines-1))
	took := time.Duration(min(each*float64(c.StepTime), float64(math.MaxInt64/2)))
	begin := c.Began.Add(-took)
	if begin.Before(s.started) {
		begin = s.started
	}
	s.marks = append([]mark{{c.First - each, begin}}, marks...)
}

// spend adds the time of an attempt, whose later attempts are known, and moves the clock to its end.
func (s span) spend(spent *Spent, c *clock, later []span, measured bool) {
	spent.Starting += c.until(s.started)
	if measured && !s.steps { // it ended before its first step
		s.spendHang(spent, c, &spent.Starting)
		s.spendRest(spent, c, later)
		return
	}
	rest := &spent.Steps
	if len(later) > 0 {
		rest = &spent.Repeated
	}
	if s.measured() {
		spent.Starting += c.until(s.marks[0].at)
		if kept, again := keptStep(later); again {
			spent.Steps += c.until(s.when(kept))
		} else {
			rest = &spent.Steps // no later attempt did any step
		}
	}
	s.spendHang(spent, c, rest)
	if s.hang != nil {
		s.spendRest(spent, c, later)
		return
	}
	*rest += c.until(s.ended)
}

// spendHang adds the silence of a hang, and what came before it to rest.
func (s span) spendHang(spent *Spent, c *clock, rest *float64) {
	if s.hang == nil {
		return
	}
	*rest += c.until(s.hang.Since)
	spent.Hang += c.until(s.hang.Named)
}

// spendRest adds the end of an attempt in which no step was done.
func (s span) spendRest(spent *Spent, c *clock, later []span) {
	if len(later) > 0 {
		spent.Starting += c.until(s.ended)
		return
	}
	spent.Teardown += c.until(s.ended)
}

// keptStep returns the last step that no later attempt did again; again is false if none did any step.
func keptStep(later []span) (kept float64, again bool) {
	kept = math.Inf(1)
	for _, s := range later {
		if s.measured() {
			kept, again = min(kept, s.marks[0].step), true
		}
	}
	return kept, again
}

// when returns when a step was done for the last time.
func (s span) when(step float64) time.Time {
	for i := len(s.marks) - 1; i >= 0; i-- {
		from := s.marks[i]
		if from.step > step {
			continue
		}
		if i == len(s.marks)-1 || s.marks[i+1].step <= step {
			return from.at
		}
		to := s.marks[i+1]
		return from.at.Add(time.Duration(float64(to.at.Sub(from.at)) * (step - from.step) / (to.step - from.step)))
	}
	return s.marks[0].at
}
