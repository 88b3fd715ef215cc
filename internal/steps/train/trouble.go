// SPDX-License-Identifier: Apache-2.0

package train

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/rules"
)

// The facts by which rules are judged. They are events of a course. All times are by the clock of this step.
type (
	// measured is a line of the training's metrics, and when it was written.
	measured struct {
		line map[string]any
		at   time.Time
	}
	// saved is the newest complete checkpoint, and when it was written; its path is "" if there is none.
	saved struct {
		path string
		at   time.Time
	}
	// used is the mean use of all GPUs in percent.
	used struct {
		percent float64
		gpus    int
	}
)

// watcher judges the facts by one rule.
type watcher interface {
	// take takes a fact. It returns the numbers that meet the rule, "" if none do.
	take(fact event, started, now time.Time) (numbers string)
}

// ruled is a rule of a training, with what has been seen of it.
type ruled struct {
	watcher
	rule rules.Rule
	// restarts is true for a rule of restart-if.
	restarts bool
}

// param returns the param that has the rule.
func (r ruled) param() string {
	if r.restarts {
		return "restart-if"
	}
	return "stop-if"
}

// troubleError is an error of type StopCondition: the training met a rule.
type troubleError struct {
	ruled
	error
}

func (e troubleError) Unwrap() error { return e.error }

// doubtFrom returns since when checkpoints may be as bad as the model, in a training that started then; zero if the rule does not doubt the
// model. A loss is that of the weights before its step, so what was saved after the last good loss may be bad.
func (e troubleError) doubtFrom(started time.Time) time.Time {
	w, ok := e.watcher.(*lossWatch)
	switch {
	case !ok:
		return time.Time{}
	case w.good.at.After(started):
		return w.good.at
	}
	return started
}

// doubtsModel reports whether the training was stopped because of its loss, so that what its ranks save then may be as bad.
func doubtsModel(err error) bool {
	trouble := troubleError{}
	if !errors.As(err, &trouble) {
		return false
	}
	_, loss := trouble.watcher.(*lossWatch)
	return loss
}

// watches returns the rules of a training. While a rank waits for its debugger, only the loss means anything.
func watches(stopIf, restartIf []rules.Rule, debugged bool) (all []ruled) {
	add := func(rule rules.Rule, restarts bool) {
		w := watchOf(rule)
		if _, loss := w.(*lossWatch); loss || !debugged {
			all = append(all, ruled{w, rule, restarts})
		}
	}
	for _, rule := range stopIf {
		add(rule, false)
	}
	for _, rule := range restartIf {
		add(rule, true)
	}
	return all
}

func watchOf(rule rules.Rule) watcher {
	switch rule := rule.(type) {
	case rules.NaN:
		return &lossWatch{bad: func(loss, _ float64) bool { return math.IsNaN(loss) }}
	case rules.Above:
		return &lossWatch{bad: func(loss, step float64) bool { return loss > rule.Limit && step >= float64(rule.After) }}
	case rules.Slow:
		return &paceWatch{rule: rule, stride: 1}
	case rules.Unsaved:
		return &saveWatch{rule: rule}
	case rules.Idle:
		return &idleWatch{rule: rule}
	}
	panic(fmt.Sprintf("rule %T has no watcher", rule))
}

// judgeFact ends the attempt if the fact meets a rule. Rules are for a training that runs: one that ends by itself is not judged.
func (c *course) judgeFact(fact event, now time.Time) {
	if c.phase != running {
		return
	}
	for _, r := range c.rules {
		if numbers := r.take(fact, c.startedAt(), now); numbers != "" {
			why := fmt.Sprintf("%s (%s: %s)", numbers, r.param(), r.rule)
			c.stopByRule(c.trouble(r, why), why)
			return
		}
	}
	switch fact := fact.(type) {
	case measured:
		c.warnOfLoss(fact)
	case used:
		if fact.gpus == 0 {
			c.warnOfGPUs()
		}
	}
}

// startedAt returns when the first node started its part, zero if none has reported it.
func (c *course) startedAt() (first time.Time) {
	for _, status := range c.statuses {
		if first.IsZero() || !status.Started.IsZero() && status.Started.Before(first) {
			first = status.Started
		}
	}
	return first
}

// warnOfLoss warns of the first loss that is not finite.
func (c *course) warnOfLoss(fact measured) {
	loss, ok := metrics.LossOf(fact.line)
	if !ok || !math.IsNaN(loss) && !math.IsInf(loss, 0) || c.warned {
		return
	}
	c.warned = true
	step, known := metrics.Number(fact.line, "step")
	text := fmt.Sprintf("The loss%s is %s, and the training continues.", atTheStep(step, known), lossText(loss))
	if math.IsNaN(loss) {
		text += fmt.Sprintf(" With stop-if %q it would end.", rules.NaN{})
	}
	c.say(slog.LevelWarn, text)
}

// warnOfGPUs warns, once, that the use of the GPUs is not known.
func (c *course) warnOfGPUs() {
	for _, r := range c.rules {
		if _, idle := r.rule.(rules.Idle); idle && !c.unseen {
			c.unseen = true
			c.say(slog.LevelWarn, fmt.Sprintf("Rule %q of %s cannot be judged: the nodes have no GPUs, or some that do not report their "+
				"use, such as MIG devices.", r.rule, r.param()))
		}
	}
}

// trouble returns the error of a training that met a rule.
func (c *course) trouble(r ruled, why string) error {
	err := fail.Because(fail.StopCondition, troubleError{r, fmt.Errorf("training: %s", why)})
	_, unsaved := r.rule.(rules.Unsaved)
	switch {
	case unsaved:
		return fail.Advise(err, "write checkpoints to checkpoint_folder() in a format that is found; docs/reference/node.md lists them")
	case c.spec.Run != "":
		return fail.Advise(err, "mlenv receipt %s --html=report.html%s   # its curves", c.spec.Run, c.of.NamespaceFlag())
	}
	return fail.Advise(err, "%s", c.causeJob(c.statuses[0]).LogCommand(0, "metrics.jsonl"))
}

// atTheStep returns " at step 7", or "" if the step is not known.
func atTheStep(step float64, known bool) string {
	if !known {
		return ""
	}
	return fmt.Sprintf(" at step %.0f", step)
}

func lossText(loss float64) string {
	switch {
	case math.IsInf(loss, 1):
		return "Infinity"
	case math.IsInf(loss, -1):
		return "-Infinity"
	}
	return fmt.Sprintf("%.4g", loss)
}
