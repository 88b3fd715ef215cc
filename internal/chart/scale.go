// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"math"
	"strconv"
)

type scale struct {
	Axis
	low, high float64
}

// scaleOf includes all values that can be drawn; without any it is from 0 to 1.
func scaleOf(a Axis, values []float64) scale {
	s := scale{Axis: a, low: math.Inf(1), high: math.Inf(-1)}
	for _, v := range values {
		if a.has(v) {
			s.low, s.high = min(s.low, v), max(s.high, v)
		}
	}
	if s.low > s.high {
		s.low, s.high = 0, 1
		if a.Log {
			s.low, s.high = 1, 10
		}
	}
	if a.FromZero && !a.Log {
		s.low, s.high = min(s.low, 0), max(s.high, 0)
	}
	// A picture needs some of the 16 digits of a float.
	if s.high-s.low < max(1/largest, math.Abs(s.high)*1e-12) {
		s.widen()
	}
	return s
}

// widen adds a margin to a single value.
func (s *scale) widen() {
	switch {
	case s.Log:
		s.low, s.high = s.low/2, s.high*2
	case math.Abs(s.low) < 1/largest:
		s.low, s.high = 0, 1
	default:
		room := math.Abs(s.low) / 10
		s.low, s.high = s.low-room, s.high+room
	}
}

// position returns where a value lies, from 0 at the low end to 1 at the high end.
func (s scale) position(v float64) float64 {
	if s.Log {
		return math.Log(v/s.low) / math.Log(s.high/s.low)
	}
	return (v - s.low) / (s.high - s.low)
}

func (s scale) labelOf(v float64) string {
	if s.Format != nil {
		return s.Format(v)
	}
	return Number(v)
}

// roundOut extends the range to round numbers.
func (s *scale) roundOut(most int) {
	if s.Log || len(s.Ticks) > 0 {
		return
	}
	step := niceStep(s.high-s.low, most)
	low, high := math.Floor(s.low/step)*step, math.Ceil(s.high/step)*step
	if s.has(low) && s.has(high) {
		s.low, s.high = low, high
	}
}

// ticks returns at most so many ticks.
func (s scale) ticks(most int) (ticks []Tick) {
	switch {
	case len(s.Ticks) > 0:
		every := (len(s.Ticks) + most - 1) / most
		for i, t := range s.Ticks {
			// The last tick stays: it is the newest or largest value.
			if (len(s.Ticks)-1-i)%every == 0 && s.has(t.Value) && t.Value >= s.low && t.Value <= s.high {
				ticks = append(ticks, t)
			}
		}
		return ticks
	case s.Log:
		from, to := math.Ceil(math.Log10(s.low)-1e-9), math.Floor(math.Log10(s.high)+1e-9)
		if to-from < 1 {
			return []Tick{{s.low, s.labelOf(s.low)}, {s.high, s.labelOf(s.high)}}
		}
		every := math.Ceil((to - from + 1) / float64(most))
		for e := from; e <= to; e += every {
			ticks = append(ticks, Tick{math.Pow(10, e), s.labelOf(math.Pow(10, e))})
		}
		return ticks
	}
	step := niceStep(s.high-s.low, most)
	for i := math.Ceil(s.low/step - 1e-9); i*step <= s.high+step*1e-9; i++ {
		ticks = append(ticks, Tick{i * step, s.labelOf(i * step)})
	}
	return ticks
}

// niceStep returns 1, 2 or 5 times a power of ten, with at most so many steps in the range.
func niceStep(span float64, most int) float64 {
	rough := span / float64(most)
	power := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= rough*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// Number formats a value: 0.25, 1200, 12.3k, 4.5M, 1e+12.
func Number(v float64) string {
	if v == 0 {
		return "0"
	}
	for _, unit := range []struct {
		from, size float64
		name       string
	}{{1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}} {
		if abs := math.Abs(v); abs >= unit.from && abs < 1e12 {
			return fmt.Sprintf("%.4g%s", v/unit.size, unit.name)
		}
	}
	return strconv.FormatFloat(rounded(v), 'g', -1, 64)
}

func rounded(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 3, 64), 64)
	if err != nil {
		return v
	}
	return r
}
