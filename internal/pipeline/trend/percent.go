package trend

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Percent of something.
type Percent float64

// String has as many digits as mean something.
func (p Percent) String() string {
	if math.Abs(float64(p)) >= math.MaxInt32 {
		return "infinitely"
	}
	return strconv.FormatFloat(float64(p), 'f', 1, 64) + "%"
}

// Type implements pflag.Value.
func (p *Percent) Type() string { return "percent" }

// Set implements pflag.Value: "10" and "10%" are the same.
func (p *Percent) Set(text string) error {
	value, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || value < 0 || math.IsInf(value, 0) || math.IsNaN(value) {
		return fmt.Errorf("want a percentage from 0 on, as in 10%%")
	}
	*p = Percent(value)
	return nil
}
