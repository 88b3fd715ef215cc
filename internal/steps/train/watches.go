// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/rules"
)

// lossWatch judges the losses. A loss without a step is at the step before.
type lossWatch struct {
	bad func(loss, step float64) bool
	// step is the last one, if stepped.
	step    float64
	stepped bool
	// good is the last loss before the trouble; its time is zero if there was none.
	good struct {
		at         time.Time
		loss, step float64
		stepped    bool
	}
}

func (w *lossWatch) take(fact event, _, _ time.Time) string {
	line, ok := fact.(measured)
	if !ok {
		return ""
	}
	if step, ok := metrics.Number(line.line, "step"); ok {
		w.step, w.stepped = step, true
	}
	loss, ok := metrics.LossOf(line.line)
	if !ok {
		return ""
	}
	if !w.bad(loss, w.step) {
		w.good.at, w.good.loss, w.good.step, w.good.stepped = line.at, loss, w.step, w.stepped
		return ""
	}
	text := fmt.Sprintf("the loss%s is %s", atTheStep(w.step, w.stepped), lossText(loss))
	if w.good.at.IsZero() {
		return text + ", as it was from the beginning"
	}
	return text + fmt.Sprintf("; before it was %s%s", lossText(w.good.loss), atTheStep(w.good.step, w.good.stepped))
}

const (
	// leastPace is the shortest time by which the time of a step is measured: lines that arrive at once after a connection broke show
	// nothing.
	leastPace = time.Second
	// leastPaces is how many measurements a median needs, and mostPaces how many are kept for it.
	leastPaces = 10
	mostPaces  = 1000
)

// paceWatch judges the times of steps.
type paceWatch struct {
	rule rules.Slow
	// at and step are where the next measurement begins.
	at   time.Time
	step float64
	// paces are the seconds of steps before the spell, sorted: each of them or, in a long training, each of stride.
	paces           []float64
	stride, skipped int
	// since and from are where the spell of slow steps began; since is zero if there is none.
	since time.Time
	from  float64
}

func (w *paceWatch) take(fact event, _, _ time.Time) string {
	line, ok := fact.(measured)
	if !ok {
		return ""
	}
	step, ok := metrics.Number(line.line, "step")
	switch {
	case !ok:
		return ""
	case w.at.IsZero() || step < w.step: // it starts over
		w.at, w.step, w.since = line.at, step, time.Time{}
		return ""
	case step == w.step: // such as an evaluation, which is not part of the next step
		w.at = line.at
		return ""
	case line.at.Sub(w.at) < leastPace:
		return ""
	}
	began, first := w.at, w.step
	w.at, w.step = line.at, step
	pace := line.at.Sub(began).Seconds() / (step - first)
	if len(w.paces) < leastPaces || pace <= w.rule.Factor*w.median() {
		w.since = time.Time{}
		w.add(pace)
		return ""
	}
	if w.since.IsZero() {
		w.since, w.from = began, first
	}
	lasted := line.at.Sub(w.since)
	if lasted < w.rule.For {
		return ""
	}
	pace = lasted.Seconds() / (step - w.from)
	return fmt.Sprintf("steps %.0f to %.0f took %s each, %.1f times the median of %s before, for %s", w.from+1, step, humanize.Seconds(pace),
		pace/w.median(), humanize.Seconds(w.median()), humanize.Duration(lasted))
}

func (w *paceWatch) median() float64 { return w.paces[len(w.paces)/2] }

// add keeps a measurement. If there are too many, it drops every other one, and from then on keeps fewer.
func (w *paceWatch) add(pace float64) {
	if w.skipped++; w.skipped < w.stride {
		return
	}
	w.skipped = 0
	if len(w.paces) == mostPaces {
		for i := range mostPaces / 2 {
			w.paces[i] = w.paces[2*i+1]
		}
		w.paces = w.paces[:mostPaces/2]
		w.stride *= 2
	}
	at, _ := slices.BinarySearch(w.paces, pace)
	w.paces = slices.Insert(w.paces, at, pace)
}

// saveWatch judges when the last checkpoint was completed.
type saveWatch struct {
	rule rules.Unsaved
	// newest is the last answer, and last when it changed: as far as this step has seen, because the clock of a storage may be wrong.
	newest saved
	last   time.Time
	asked  bool
}

func (w *saveWatch) take(fact event, started, now time.Time) string {
	found, ok := fact.(saved)
	if !ok || started.IsZero() {
		return ""
	}
	switch {
	case found.path == "":
	case !w.asked:
		w.last = found.at
		if w.last.After(now) {
			w.last = now
		}
	case found.path != w.newest.path || !found.at.Equal(w.newest.at):
		w.last = now
	}
	w.newest, w.asked = found, true
	if w.last.After(started) {
		if old := now.Sub(w.last); old >= w.rule.For {
			return fmt.Sprintf("the newest complete checkpoint, %s, was written %s ago", w.newest.path, humanize.Duration(old))
		}
		return ""
	}
	if without := now.Sub(started); without >= w.rule.For {
		return fmt.Sprintf("no checkpoint was completed since the training started %s ago", humanize.Duration(without))
	}
	return ""
}

// longestGap is the longest time between two measurements of the GPUs for which the GPUs count as idle in between, unless a quarter of the
// rule's time is longer.
const longestGap = 30 * time.Second

// idleWatch judges the use of the GPUs.
type idleWatch struct {
	rule rules.Idle
	// since is when the GPUs were first seen idle, zero if they are not; last is the last time, and highest the highest use since.
	since, last time.Time
	highest     float64
}

func (w *idleWatch) take(fact event, _, now time.Time) string {
	use, ok := fact.(used)
	if !ok || use.gpus == 0 {
		return ""
	}
	if use.percent >= w.rule.Percent {
		w.since = time.Time{}
		return ""
	}
	if w.since.IsZero() || now.Sub(w.last) > max(longestGap, w.rule.For/4) {
		w.since, w.highest = now, 0
	}
	w.last, w.highest = now, max(w.highest, use.percent)
	if idle := now.Sub(w.since); idle >= w.rule.For {
		return fmt.Sprintf("%s were at most %.1f%% busy on average for %s", humanize.Count(use.gpus, "GPU"), w.highest, humanize.Duration(idle))
	}
	return ""
}
