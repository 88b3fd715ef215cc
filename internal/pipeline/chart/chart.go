// Package chart draws lines as SVG that reads well on a phone, on paper, in the dark and
// without colours: text scales with the page, a series has a dash as well as a colour, and
// the style is one sheet that follows the reader's preference.
package chart

import "math"

// Chart is one picture.
type Chart struct {
	// Title is its name for those who do not see it.
	Title string
	X, Y  Axis
	// Series beyond the eighth look like earlier ones.
	Series []Series
	// Levels are values to compare with, as an expected one or a bound.
	Levels []Level
}

// Axis is one of the two.
type Axis struct {
	// Label says what it shows with its unit, as in "bus bandwidth in GB/s".
	Label string
	// Log has equal distances for equal factors. What is not above 0 is not drawn then.
	Log bool
	// FromZero has 0 in the picture, however far away the values are.
	FromZero bool
	// Ticks are those to use instead of round numbers. Those that would overlap are left out.
	Ticks []Tick
	// Format writes a value, Number where it is nil.
	Format func(float64) string
}

// Tick is a value with its words.
type Tick struct {
	Value float64
	Label string
}

// Series is a line through its points in their order.
type Series struct {
	Name   string
	Points []Point
	// Marked has a mark at each point. A point without neighbours always has one.
	Marked bool
}

// Point is one value. One that is not finite, or is beyond 1e300, is a gap in the line.
type Point struct {
	X, Y float64
	// Label is shown by a pointer that rests on it; without one it is the two values.
	Label string
}

// Level is a horizontal line.
type Level struct {
	Name string
	Y    float64
}

// drawn is true of points that are in the picture.
func (c *Chart) drawn(p Point) bool { return c.X.has(p.X) && c.Y.has(p.Y) }

// largest is a bound of what is drawn, so that no difference of two values overflows.
const largest = 1e300

func (a Axis) has(v float64) bool {
	return math.Abs(v) <= largest && (!a.Log || v > 1/largest)
}

// Empty is true where there is no point to draw.
func (c *Chart) Empty() bool {
	for _, s := range c.Series {
		for _, p := range s.Points {
			if c.drawn(p) {
				return false
			}
		}
	}
	return true
}
