// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"
	"slices"
	"time"
)

// Curve is the course of a training's metrics, in few enough points for a receipt.
type Curve struct {
	// Lines is the number of lines with a step.
	Lines int `json:"lines"`
	// Began is when the first line was written, zero if it is not known, and First is its step.
	Began time.Time `json:"began,omitzero"`
	First float64   `json:"firstStep,omitempty"`
	// Rate is what PerSecond counts, tokens or samples; "" for neither.
	Rate string `json:"rate,omitempty"`
	// StepTime is the median of the points' step times, in nanoseconds.
	StepTime time.Duration `json:"stepTimeNanoseconds,omitempty"`
	// NotFinite is the number of lines whose loss was NaN or infinite; FirstNotFinite is the step of the first one.
	NotFinite      int     `json:"notFinite,omitempty"`
	FirstNotFinite float64 `json:"firstNotFinite,omitempty"`
	// Ranks are those that report their times.
	Ranks  []RankTime `json:"ranks,omitempty"`
	Points []Point    `json:"points,omitempty"`
}

// Point summarizes consecutive lines. A value of 0 or nil is not known.
type Point struct {
	// Step is the step in the last line.
	Step float64 `json:"step"`
	// Elapsed is the time from the first line of the curve to the last of the point.
	Elapsed *time.Duration `json:"elapsedNanoseconds,omitempty"`
	// Loss is the mean of the finite losses, Highest the highest of several.
	Loss    *float64 `json:"loss,omitempty"`
	Highest *float64 `json:"highestLoss,omitempty"`
	// NotFinite is the number of lines whose loss was NaN or infinite.
	NotFinite int `json:"notFinite,omitempty"`
	// PerSecond is the throughput, and StepTime the mean time of a step, since the previous point.
	PerSecond float64       `json:"perSecond,omitempty"`
	StepTime  time.Duration `json:"stepTimeNanoseconds,omitempty"`
	// Slowest is the mean of the slowest rank's times.
	Slowest time.Duration `json:"slowestRankNanoseconds,omitempty"`
}

// RankTime is how long a rank's own part of a step took.
type RankTime struct {
	Rank    int           `json:"rank"`
	Mean    time.Duration `json:"meanNanoseconds"`
	Longest time.Duration `json:"longestNanoseconds"`
}

const (
	// mostPoints is twice what a picture shows, and 50 KB of a receipt.
	mostPoints = 200
	// mostRanks is 100 KB of a receipt.
	mostRanks = 1024
	// longestStep in seconds fits a duration.
	longestStep = 1e9
)

// History collects a Curve from any number of lines, in bounded memory.
type History struct {
	curve   Curve
	buckets []bucket
	// each is the number of lines of a full bucket.
	each  int
	last  map[string]float64
	ranks []rankSum
	// counted is true if the steps were counted by the optimizer.
	counted bool
}

type bucket struct {
	lines int
	// step, at, tokens and samples come from the last line; at is zero if it is not known.
	step                 float64
	at                   time.Time
	tokens, samples      float64
	lossCount, notFinite int
	lossSum, highest     float64
	// timed is the number of lines with the ranks' times, slowest the sum of the longest ones.
	timed     int
	slowest   float64
	firstStep float64
	firstAt   time.Time
}

type rankSum struct {
	count        int
	sum, longest float64
}

// Optimizer is the source of steps that begin at 1 in every attempt.
const Optimizer = "torch.optim"

// CountsItself reports whether a line has a step that the training itself has counted, as one that resumes knows. Before its first such
// line there may be one with the count of its optimizer.
func CountsItself(line map[string]any) bool {
	_, ok := Number(line, "step")
	return ok && line["source"] == nil
}

// Add adds a line. Only lines with a step count. The steps that the training counts itself take the place of others.
func (h *History) Add(line map[string]any) {
	if h.counted && CountsItself(line) {
		*h = History{}
	}
	if h.last == nil {
		h.last, h.each = map[string]float64{}, 1
	}
	for _, key := range []string{"tokens", "samples"} {
		if n, ok := Number(line, key); ok {
			h.last[key] = n
		}
	}
	step, ok := Number(line, "step")
	if !ok {
		return
	}
	h.curve.Lines++
	h.counted = line["source"] == Optimizer
	b := bucket{lines: 1, step: step, firstStep: step, tokens: h.last["tokens"], samples: h.last["samples"], highest: math.Inf(-1)}
	b.at, _ = TimeOf(line)
	b.firstAt = b.at
	loss, ok := LossOf(line)
	if finite := !math.IsNaN(loss) && !math.IsInf(loss, 0); ok && finite {
		b.lossCount, b.lossSum, b.highest = 1, loss, loss
	} else if ok {
		b.notFinite = 1
		if h.curve.NotFinite == 0 {
			h.curve.FirstNotFinite = step
		}
		h.curve.NotFinite++
	}
	h.rankTimes(&b, line["rank_seconds"])
	if end := len(h.buckets) - 1; end >= 0 && h.buckets[end].lines < h.each {
		h.buckets[end] = h.buckets[end].join(b)
		return
	}
	if len(h.buckets) == mostPoints {
		for i := range mostPoints / 2 {
			h.buckets[i] = h.buckets[2*i].join(h.buckets[2*i+1])
		}
		h.buckets = h.buckets[:mostPoints/2]
		h.each *= 2
	}
	h.buckets = append(h.buckets, b)
}

// rankTimes adds a list with a number for each rank.
func (h *History) rankTimes(b *bucket, value any) {
	list, _ := value.([]any)
	for rank, v := range list[:min(len(list), mostRanks)] {
		seconds, ok := v.(float64)
		if !ok || seconds < 0 || seconds > longestStep {
			continue
		}
		if rank >= len(h.ranks) {
			h.ranks = append(h.ranks, make([]rankSum, rank+1-len(h.ranks))...)
		}
		r := &h.ranks[rank]
		r.count++
		r.sum += seconds
		r.longest = max(r.longest, seconds)
		b.timed, b.slowest = 1, max(b.slowest, seconds)
	}
}

// join joins two buckets; next is the later one.
func (b bucket) join(next bucket) bucket {
	next.highest = max(next.highest, b.highest)
	next.lines += b.lines
	next.lossCount += b.lossCount
	next.notFinite += b.notFinite
	next.lossSum += b.lossSum
	next.timed += b.timed
	next.slowest += b.slowest
	next.firstStep, next.firstAt = b.firstStep, b.firstAt
	return next
}

// Curve returns the curve so far, nil if no line had a step.
func (h *History) Curve() *Curve {
	if len(h.buckets) == 0 {
		return nil
	}
	c := h.curve
	c.Began, c.First = h.buckets[0].firstAt.UTC(), h.buckets[0].firstStep
	switch {
	case h.last["tokens"] > 0:
		c.Rate = "tokens"
	case h.last["samples"] > 0:
		c.Rate = "samples"
	}
	var times []time.Duration
	before := h.buckets[0]
	before.step, before.at = before.firstStep, before.firstAt
	for _, b := range h.buckets {
		p := Point{Step: b.step, NotFinite: b.notFinite}
		// The sum of large losses may be infinite, which JSON does not have.
		if b.lossCount > 0 && !math.IsInf(b.lossSum, 0) {
			p.Loss = new(b.lossSum / float64(b.lossCount))
			if b.lossCount > 1 {
				p.Highest = new(b.highest)
			}
		}
		if b.timed > 0 {
			p.Slowest = seconds(b.slowest / float64(b.timed))
		}
		if begin := h.buckets[0].firstAt; !b.at.IsZero() && !begin.IsZero() {
			p.Elapsed = new(b.at.Sub(begin))
		}
		b.rates(&p, before, c.Rate)
		if p.StepTime > 0 {
			times = append(times, p.StepTime)
		}
		c.Points = append(c.Points, p)
		before = b
	}
	if len(times) > 0 {
		slices.Sort(times)
		c.StepTime = times[len(times)/2]
	}
	for rank, r := range h.ranks {
		if r.count > 0 {
			c.Ranks = append(c.Ranks, RankTime{Rank: rank, Mean: seconds(r.sum / float64(r.count)), Longest: seconds(r.longest)})
		}
	}
	return &c
}

// StepTimes returns the times of the curve's steps alone, in at most so many points; the last one stays. It is nil for no curve.
func (c *Curve) StepTimes(most int) *Curve {
	if c == nil {
		return nil
	}
	times := &Curve{Lines: c.Lines, Began: c.Began, First: c.First, StepTime: c.StepTime}
	each := (len(c.Points) + most - 1) / most
	for i, p := range c.Points {
		if (len(c.Points)-1-i)%max(1, each) == 0 {
			times.Points = append(times.Points, Point{Step: p.Step, Elapsed: p.Elapsed})
		}
	}
	return times
}

// Later returns the curve with a first line that was written so much later, by a clock that is ahead of the training's.
func (c *Curve) Later(by time.Duration) *Curve {
	if c != nil && !c.Began.IsZero() {
		c.Began = c.Began.Add(by).UTC()
	}
	return c
}

// rates sets the rates since the previous point. A training that returned to a checkpoint has none.
func (b bucket) rates(p *Point, before bucket, rate string) {
	if b.at.IsZero() || before.at.IsZero() || !b.at.After(before.at) {
		return
	}
	took := b.at.Sub(before.at)
	if steps := b.step - before.step; steps > 0 {
		p.StepTime = seconds(took.Seconds() / steps)
	}
	done := b.tokens - before.tokens
	if rate == "samples" {
		done = b.samples - before.samples
	}
	if done /= took.Seconds(); done > 0 && !math.IsInf(done, 0) {
		p.PerSecond = done
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
