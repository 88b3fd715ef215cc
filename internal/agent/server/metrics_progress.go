// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/promtext"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
)

// progress is what the end of a training's own metrics shows. Values that are missing are nil.
type progress struct {
	step, steps, loss, tokens, samples *float64
	tokensPerSecond, samplesPerSecond  *float64
}

// rateTime is the time over which the rates of tokens and samples are means.
const rateTime = time.Minute

// readProgress reads the end of the file; a missing file has no values.
func readProgress(path string) (p progress) {
	content, _, err := claimfile.ReadTail(path, recentMetrics)
	if err != nil {
		return p
	}
	var tokens, samples rate
	lines := metrics.Lines(func(line map[string]any) {
		p.step, p.steps = cmp.Or(number(line, "step"), p.step), cmp.Or(number(line, "steps"), p.steps)
		p.loss = cmp.Or(number(line, "loss"), p.loss)
		p.tokens, p.samples = cmp.Or(number(line, "tokens"), p.tokens), cmp.Or(number(line, "samples"), p.samples)
		tokens.add(line, "tokens")
		samples.add(line, "samples")
	})
	_, _ = lines.Write(content) // it never fails
	p.tokensPerSecond, p.samplesPerSecond = tokens.perSecond(), samples.perSecond()
	return p
}

// number returns the number of a line, nil for none. The words for what JSON does not have, as NaN, become numbers for Prometheus.
func number(line map[string]any, key string) *float64 {
	switch line[key] {
	case "NaN":
		return new(math.NaN())
	case "Infinity":
		return new(math.Inf(1))
	case "-Infinity":
		return new(math.Inf(-1))
	}
	if n, ok := metrics.Number(line, key); ok {
		return &n
	}
	return nil
}

// rate is how fast a number grows. A training that returned to a checkpoint begins again.
type rate struct {
	at     []time.Time
	values []float64
}

func (r *rate) add(line map[string]any, key string) {
	value, known := metrics.Number(line, key)
	at, timed := metrics.TimeOf(line)
	if !known || !timed {
		return
	}
	if last := len(r.at) - 1; last >= 0 && (value < r.values[last] || !at.After(r.at[last])) {
		r.at, r.values = nil, nil
	}
	r.at, r.values = append(r.at, at), append(r.values, value)
}

// perSecond returns the mean of the last rateTime, nil if it is not known.
func (r *rate) perSecond() *float64 {
	last := len(r.at) - 1
	if last < 1 {
		return nil
	}
	first := slices.IndexFunc(r.at[:last], func(at time.Time) bool { return r.at[last].Sub(at) <= rateTime })
	if first < 0 {
		first = last - 1
	}
	return new((r.values[last] - r.values[first]) / r.at[last].Sub(r.at[first]).Seconds())
}

// progressMetrics has gauges also for what is counted: the numbers go back with a training that returns to a checkpoint, which
// rate() would take for growth.
func progressMetrics(p progress) []promtext.Metric {
	var all []promtext.Metric
	for _, m := range []struct {
		name, help string
		value      *float64
	}{
		{"step", "Optimiser steps done so far, as the training reports them.", p.step},
		{"steps", "Total number of steps, as the training reports it.", p.steps},
		{"loss", "Loss as the training reports it.", p.loss},
		{"tokens", "Tokens processed so far by all ranks, as the training reports them.", p.tokens},
		{"tokens_per_second", "Tokens that all ranks processed per second in the last minute.", p.tokensPerSecond},
		{"samples", "Samples processed so far by all ranks, as the training reports them.", p.samples},
		{"samples_per_second", "Samples that all ranks processed per second in the last minute.", p.samplesPerSecond},
	} {
		metric := promtext.Metric{Name: "mlenv_training_" + m.name, Type: promtext.Gauge, Help: m.help}
		if m.value != nil {
			metric.Add(*m.value)
		}
		all = append(all, metric)
	}
	return all
}
