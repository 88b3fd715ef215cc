// SPDX-License-Identifier: Apache-2.0

package train

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// progress turns the training's metrics, whose format is in docs/reference/metrics.md, into lines of the log.
type progress struct {
	mu   sync.Mutex
	last metrics.Last
	// dropped explains what last does not keep, until notice has returned it.
	dropped string
	// Rates are those from first to latest; printed is the point of the last line.
	first, latest, printed point
	// longest is the longest time between two steps that were reported.
	longest time.Duration
	// notFinite is the first step whose loss was NaN or infinite, nil for none; hasLoss is true after any loss.
	notFinite *float64
	hasLoss   bool
	history   metrics.History
	// arrived is when the last step arrived here; wrongTime is true after a metric time that is no time.
	arrived   time.Time
	wrongTime bool
}

// stepTimePoints bounds what an attempt keeps of the times of its steps: every node gets it with the next attempt.
const stepTimePoints = 20

type point struct {
	at                    time.Time
	step, samples, tokens float64
}

// add takes one object of the metrics file, and reports whether it is the first step.
func (p *progress) add(value map[string]any, now time.Time) (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last.Values()["source"] == metrics.Optimizer && metrics.CountsItself(value) {
		p.first, p.latest, p.printed, p.longest = point{}, point{}, point{}, 0
	}
	if dropped := p.last.Add(value); dropped != "" {
		p.dropped = dropped
	}
	step, ok := metrics.Number(value, "step")
	loss, measured := metrics.LossOf(value)
	p.hasLoss = p.hasLoss || measured
	if !ok {
		return false
	}
	if measured && (math.IsNaN(loss) || math.IsInf(loss, 0)) && p.notFinite == nil {
		p.notFinite = &step
	}
	const skew = 24 * time.Hour // of clocks; a time further away is none
	at := now
	if written, ok := metrics.TimeOf(value); ok && written.Sub(now).Abs() <= skew {
		at = written
	} else if wrong := value["time"]; wrong != nil {
		delete(value, "time")
		if !p.wrongTime {
			p.wrongTime = true
			p.dropped = fmt.Sprintf("The metric time is %v, and not the time now in seconds since 1970, as time.time() returns it. It is not used.",
				wrong)
		}
	}
	p.history.Add(value)
	// An evaluation's line may not have them.
	samples, _ := metrics.Number(p.last.Values(), "samples")
	tokens, _ := metrics.Number(p.last.Values(), "tokens")
	if !p.latest.at.IsZero() {
		// A time that jumps must not switch off what looks for hangs. Lines of before arrive at once after a restart of the step.
		p.longest = max(p.longest, min(at.Sub(p.latest.at), max(now.Sub(p.arrived), leastHang)))
	}
	p.arrived = now
	p.latest = point{at: at, step: step, samples: samples, tokens: tokens}
	if first = p.first.at.IsZero(); first {
		p.first = p.latest
	}
	return first
}

// notice explains, once, which metrics are not kept; "" if there is nothing new.
func (p *progress) notice() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	notice := p.dropped
	p.dropped = ""
	return notice
}

// stepTime returns how long the first step that was reported took from the start on, and the longest time between two others.
func (p *progress) stepTime(start time.Time) (first, longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.first.at.Sub(start), p.longest
}

// stepTimes returns the times of the steps, measured by a clock that is so far behind; nil for no steps.
func (p *progress) stepTimes(behind time.Duration) *metrics.Curve {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.history.Curve().StepTimes(stepTimePoints).Later(behind)
}

// stepRange returns the first and the last step, nil for none.
func (p *progress) stepRange() (first, last *float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first.at.IsZero() {
		return nil, nil
	}
	return new(p.first.step), new(p.latest.step)
}

// measures reports whether the training has written a loss and a step.
func (p *progress) measures() (loss, step bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hasLoss, !p.first.at.IsZero()
}

// snapshot returns the progress in numbers, and whether there is any.
func (p *progress) snapshot() (now receipt.Progress, measured bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest.at.IsZero() {
		return now, false
	}
	now = receipt.Progress{At: p.latest.at.UTC(), Step: p.latest.step}
	now.Steps, _ = metrics.Number(p.last.Values(), "steps")
	now.Source, _ = p.last.Values()["source"].(string)
	if loss, ok := metrics.Number(p.last.Values(), "loss"); ok {
		now.Loss = &loss
	}
	now.NotFinite = p.notFinite
	now.TokensPerSecond, now.SamplesPerSecond, now.SecondsLeft = p.rates(now.Steps)
	return now, true
}

// rates returns the tokens and samples per second from the first to the latest step, and the seconds that are left until the step of
// that number; 0 if they are not known.
func (p *progress) rates(steps float64) (tokens, samples, left float64) {
	elapsed := p.latest.at.Sub(p.first.at).Seconds()
	if elapsed <= 0 {
		return 0, 0, 0
	}
	tokens, samples = max(0, p.latest.tokens-p.first.tokens)/elapsed, max(0, p.latest.samples-p.first.samples)/elapsed
	if done := p.latest.step - p.first.step; done > 0 && steps > p.latest.step {
		left = elapsed / done * (steps - p.latest.step)
	}
	return tokens, samples, left
}

// nextLine returns the current progress with its step, "" if nothing is new since the last call.
func (p *progress) nextLine(gpu string) (text string, step float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest == p.printed {
		return "", 0
	}
	p.printed = p.latest
	steps, _ := metrics.Number(p.last.Values(), "steps")
	parts := []string{metrics.AtStep(p.latest.step, steps, p.last.Values()["source"])}
	if loss, ok := metrics.Number(p.last.Values(), "loss"); ok {
		parts = append(parts, fmt.Sprintf("loss %.4g", loss))
	} else if loss, ok := p.last.Values()["loss"].(string); ok {
		parts = append(parts, "loss "+humanize.OneLine(loss, 20))
	}
	tokens, samples, left := p.rates(steps)
	if tokens > 0 {
		parts = append(parts, short(tokens)+" tokens/s")
	} else if samples > 0 {
		parts = append(parts, short(samples)+" samples/s")
	}
	if left > 0 {
		parts = append(parts, "about "+time.Duration(left*float64(time.Second)).Round(time.Second).String()+" left")
	}
	if bar, ok := p.last.Values()["bar"].(string); ok {
		parts = append(parts, humanize.OneLine(bar, 60))
	}
	if gpu != "" {
		parts = append(parts, gpu)
	}
	return "progress: " + strings.Join(parts, ", "), p.latest.step
}

// finalMetrics returns the last value of every metric as one JSON object of at most so many bytes: first the metrics that
// docs/reference/metrics.md defines, then the others by name.
func (p *progress) finalMetrics(most int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	defined, last := metrics.Defined(), p.last.Values()
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(last)), func(key string) bool { return slices.Contains(defined, key) })
	var parts []string
	size := 2
	for _, key := range slices.Concat(defined, others) {
		if _, ok := last[key]; !ok {
			continue
		}
		part, err := json.Marshal(map[string]any{key: last[key]})
		if err != nil || size+len(part)-1 > most {
			continue
		}
		size += len(part) - 1
		parts = append(parts, string(part[1:len(part)-1]))
	}
	if len(parts) == 0 {
		return ""
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// short returns a rate in the short form, such as 12.3k.
func short(n float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if n >= unit.size {
			return fmt.Sprintf("%.1f%s", n/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%.1f", n)
}
