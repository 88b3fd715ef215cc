// SPDX-License-Identifier: Apache-2.0

// Package chart draws line charts as SVG that are readable on a phone, on paper, in dark mode and without colors: each
// series has a dash pattern as well as a color.
package chart

import "math"

// Chart is one picture.
type Chart struct {
	// Title is for screen readers.
	Title string
	X, Y  Axis
	// Series after the eighth repeat the styles.
	Series []Series
	// Levels are values to compare with, such as an expected one.
	Levels []Level
}

// Axis is one of the two axes.
type Axis struct {
	// Label has the unit, as in "bus bandwidth in GB/s".
	Label string
	// Log is a logarithmic scale, which leaves out values that are not above 0.
	Log bool
	// FromZero includes 0.
	FromZero bool
	// Ticks replace round numbers. Ticks that would overlap are left out.
	Ticks []Tick
	// Format formats a value; the default is Number.
	Format func(float64) string
}

// Tick is a value with its label.
type Tick struct {
	Value float64
	Label string
}

// Series is a line through its points.
type Series struct {
	Name   string
	Points []Point
}

// Point is one value. A value that is not finite, or beyond 1e300, is a gap.
type Point struct {
	X, Y float64
	// Label is the tooltip; the default is the two values.
	Label string
}

// Level is a horizontal line.
type Level struct {
	Name string
	Y    float64
}

func (c *Chart) inRange(p Point) bool { return c.X.has(p.X) && c.Y.has(p.Y) }

// largest bounds the values, so that no difference overflows.
const largest = 1e300

func (a Axis) has(v float64) bool {
	return math.Abs(v) <= largest && (!a.Log || v > 1/largest)
}

// Empty reports whether the chart has no point to draw.
func (c *Chart) Empty() bool {
	for _, s := range c.Series {
		for _, p := range s.Points {
			if c.inRange(p) {
				return false
			}
		}
	}
	return true
}
