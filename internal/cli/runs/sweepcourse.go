// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// stand is how far a trial is.
type stand int

const (
	// trialWaits means that the trial was not started.
	trialWaits stand = iota
	trialRuns
	// trialEnded means that the run has ended, or that nothing follows it any more.
	trialEnded
)

// trialOver is the end of a trial for this program. begun is false if it has no run.
type trialOver struct {
	trial int
	begun bool
	err   error
}

// Effects of a sweepCourse, in addition to note and the order resume.
type (
	// startTrial starts a run, or finds the one that exists, and follows it.
	startTrial int
	// cancelTrial cancels the run of a trial, or leaves a run that is being cancelled.
	cancelTrial int
	// question asks the user for one key.
	question struct{ explanation, keys string }
)

const (
	// stopStarting ends waiting for what a start waits for.
	stopStarting order = "stop starting"
	// leaveTrials ends following as soon as the runs do not need this program.
	leaveTrials order = "leave the trials"
	endSweep    order = "end the sweep"
)

// sweepCourse is the state of a sweep in progress. It decides, and does nothing itself.
type sweepCourse struct {
	trials []trial
	stands []stand
	// parallel is how many trials are in progress at the same time, unless more were found in progress.
	parallel int
	// keys is true while the user can answer a question; else a signal cancels all trials.
	keys bool
	// asked is true while a question is open; offered are the trials that it offers to cancel.
	asked   bool
	offered []int
	// stopping is true after all trials were cancelled, leaving when the trials in progress are not followed any more.
	stopping, leaving bool
	// failed is why no further trial is started.
	failed  error
	effects []effect
}

// begin follows what is in progress, and starts the first trials.
func (c *sweepCourse) begin() []effect {
	c.effects = nil
	for i, s := range c.stands {
		if s == trialRuns {
			c.do(startTrial(i))
		}
	}
	c.fill()
	return c.effects
}

// on takes an event, and returns what is to be done.
func (c *sweepCourse) on(e event) []effect {
	c.effects = nil
	switch e := e.(type) {
	case trialOver:
		c.over(e)
	case os.Signal:
		c.signalled(e)
	case key:
		c.answered(e)
	case noKeys:
		c.keys = false
		c.answered(0)
	}
	return c.effects
}

// fill starts trials until as many are in progress as may be, and finishes when none is.
func (c *sweepCourse) fill() {
	running := c.all(trialRuns)
	if !c.stopping && !c.leaving && c.failed == nil {
		next := c.all(trialWaits)
		for _, i := range next[:min(len(next), max(0, c.parallel-len(running)))] {
			c.stands[i] = trialRuns
			c.do(startTrial(i))
			running = append(running, i)
		}
	}
	if len(running) == 0 {
		c.do(endSweep)
	}
}

// over takes the end of a trial. After an error that is not the trial's own, such as a refused request, the next trials would fail, too:
// none is started, and the same command starts them later.
func (c *sweepCourse) over(e trialOver) {
	if c.stands[e.trial] = trialEnded; !e.begun {
		c.stands[e.trial] = trialWaits
	}
	exit := (*command.Exit)(nil)
	given := errors.As(e.err, &exit) && exit.Err == nil // the user has left the run
	if e.err != nil && !given && (e.begun || !c.stopping) {
		c.failed = errors.Join(c.failed, e.err)
	}
	c.fill()
}

func (c *sweepCourse) signalled(s os.Signal) {
	switch {
	case c.leaving && c.stopping:
		c.do(endSweep)
	case c.stopping:
		c.leaving = true
		c.do(note("== leaving"), leaveTrials)
	case c.asked || !c.keys || s != os.Interrupt:
		c.cancelAll()
	default:
		c.ask()
	}
}

// mostOffered is how many trials a question offers: one digit each.
const mostOffered = 9

func (c *sweepCourse) ask() {
	running := c.all(trialRuns)
	c.offered = running[:min(len(running), mostOffered)]
	q := question{keys: "a, "}
	q.explanation = fmt.Sprintf("== a, or Ctrl-C again: cancel all trials in progress (%d), and start no more", len(running))
	for n, i := range c.offered {
		q.explanation += fmt.Sprintf("; %d: cancel only %s (%s)", n+1, c.trials[i].name, c.trials[i].text())
		q.keys += fmt.Sprintf("%d, ", n+1)
	}
	q.explanation += "; d: detach, they continue without mlenv, and no more is started; any other key: keep following"
	q.keys += "d or another key? "
	c.asked = true
	c.do(q)
}

func (c *sweepCourse) answered(k key) {
	if !c.asked {
		return
	}
	c.asked = false
	switch n := int(k - '1'); {
	case strings.ContainsRune("aA", rune(k)), k == ctrlC:
		c.cancelAll()
	case strings.ContainsRune("dD", rune(k)):
		c.leaving = true
		c.do(resume, leaveTrials)
	case k >= '1' && n < len(c.offered) && c.stands[c.offered[n]] == trialRuns:
		c.do(resume, cancelTrial(c.offered[n]))
	default:
		c.do(resume)
	}
}

func (c *sweepCourse) cancelAll() {
	running := c.all(trialRuns)
	c.asked, c.stopping = false, true
	c.do(resume, note(fmt.Sprintf("== cancelling %s; everything is released, and claims stay", humanize.Count(len(running), "trial"))),
		stopStarting)
	for _, i := range running {
		c.do(cancelTrial(i))
	}
}

// all returns the trials that stand so.
func (c *sweepCourse) all(s stand) (found []int) {
	for i := range c.stands {
		if c.stands[i] == s {
			found = append(found, i)
		}
	}
	return found
}

func (c *sweepCourse) do(effects ...effect) { c.effects = append(c.effects, effects...) }
