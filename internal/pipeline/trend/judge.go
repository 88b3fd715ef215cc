// SPDX-License-Identifier: Apache-2.0

package trend

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// anything is the tolerance of a measure that is shown and not judged. Nothing can be worse by more than 100% of its median that is at
// least 0 and better if it is more.
const anything = Percent(100)

const (
	// window is the number of earlier runs that the median is taken of.
	window = 10
	// fewest is the number of earlier runs that a verdict needs.
	fewest = 3
	// visible is the least difference that is not printed as 0.0%.
	visible = 0.05
)

// Tolerance is how much worse than the median each measure may be.
type Tolerance map[Measure]Percent

// DefaultTolerance allows for other users of the network and the storage, and for the order of sums in the loss. It does not judge the
// goodput: a node that failed, or an image that had to be pulled, is not a property of a commit. Neither are the devices, which
// check-fabric judges.
func DefaultTolerance() Tolerance {
	return Tolerance{Bandwidth: 10, StepTime: 10, Loss: 5, Goodput: anything, Product: anything, Slowest: anything}
}

// AddTolerances adds a flag for each measure.
func AddTolerances(flags *pflag.FlagSet) Tolerance {
	t := DefaultTolerance()
	for _, m := range Measures() {
		usual := t[m].String()
		if t[m] == anything {
			usual += ", which judges nothing"
		}
		flags.Func(strings.ReplaceAll(string(m), " ", "-")+"-tolerance",
			fmt.Sprintf("by how many `percent` the %s may be worse than the median of the last ten runs (default: %s)", m, usual),
			func(text string) (err error) {
				t[m], err = ParsePercent(text)
				return err
			})
	}
	return t
}

// Comparison compares one measure of a run with earlier runs.
type Comparison struct {
	Measure Measure `json:"measure"`
	// Value and Median have their units; "-" is none.
	Value  string `json:"value"`
	Median string `json:"median"`
	// Runs is the number of runs in the median; fewer than three give no verdict.
	Runs int `json:"runs"`
	// Worse is how much worse than the median the value is, negative if it is better.
	Worse     Percent `json:"worsePercent"`
	Tolerance Percent `json:"tolerancePercent"`
	Regressed bool    `json:"regressed"`
}

// String formats the judgement as a line.
func (c Comparison) String() string {
	switch {
	case c.Runs == 0:
		return fmt.Sprintf("%s %s; no earlier run has measured it", c.Measure, c.Value)
	case c.Value == "-":
		return fmt.Sprintf("%s was not measured; the median of %d runs before is %s", c.Measure, c.Runs, c.Median)
	}
	how := "as"
	switch {
	case c.Worse >= visible:
		how = fmt.Sprintf("%s worse than", c.Worse)
	case c.Worse <= -visible:
		how = fmt.Sprintf("%s better than", -c.Worse)
	}
	text := fmt.Sprintf("%s %s, %s the median %s of %d runs before", c.Measure, c.Value, how, c.Median, c.Runs)
	switch {
	case c.Regressed:
		text += fmt.Sprintf("; want at most %s worse", c.Tolerance)
	case c.Runs < fewest:
		text += "; too few to judge"
	}
	return text
}

// Judge compares a run with the last ten runs of its kind that succeeded. history is sorted from the newest run and may
// contain the run itself.
func Judge(now receipt.Receipt, history []receipt.Receipt, tolerance Tolerance) []Comparison {
	return judgeWith(now, history, tolerance, fewest)
}

// judgeWith is Judge with the number of earlier runs that a verdict needs.
func judgeWith(now receipt.Receipt, history []receipt.Receipt, tolerance Tolerance, least int) []Comparison {
	var before []receipt.Receipt
	for _, r := range history {
		if r.Run != now.Run && r.Verdict == receipt.Succeeded && SameKind(now, r) && len(before) < window {
			before = append(before, r)
		}
	}
	values := ValuesOf(now)
	var result []Comparison
	for _, m := range Measures() {
		var known []float64
		for _, r := range before {
			if v := m.valueIn(ValuesOf(r)); !math.IsNaN(v) {
				known = append(known, v)
			}
		}
		value, median := m.valueIn(values), Median(known)
		if (m == Product || m == Slowest) && math.IsNaN(value) && len(known) == 0 {
			continue // most runs measure no device
		}
		c := Comparison{Measure: m, Value: m.formatValue(value), Median: m.formatValue(median), Runs: len(known), Tolerance: tolerance[m]}
		if m == Loss && values.LossLost {
			c.Value, c.Worse, c.Regressed = "not finite", Percent(math.MaxInt32), len(known) >= least
			result = append(result, c)
			continue
		}
		if worse := (value - median) / math.Abs(median); !math.IsNaN(worse) && !math.IsInf(worse, 0) {
			if !m.lessIsBetter() {
				worse = -worse
			}
			c.Worse = Percent(100 * worse)
			c.Regressed = len(known) >= least && c.Worse > c.Tolerance
		}
		result = append(result, c)
	}
	return result
}

// Regression returns the error if a measure is worse than its tolerance. Reason: Regression.
func Regression(run string, comparisons []Comparison) error {
	var worse []string
	for _, c := range comparisons {
		if c.Regressed {
			worse = append(worse, c.String())
		}
	}
	if len(worse) == 0 {
		return nil
	}
	return fail.Because(fail.Regression, fmt.Errorf("comparing run %s with those before it: %s", run, strings.Join(worse, "; ")))
}

// SameKind reports whether two runs trained the same script of the same repository with the same arguments, nodes and
// ranks in one environment. Commit, image and network may differ: a comparison shows their effect.
func SameKind(a, b receipt.Receipt) bool {
	if a.Environment != b.Environment || a.Repository != b.Repository || (a.Training == nil) != (b.Training == nil) {
		return false
	}
	if a.Training == nil {
		return true
	}
	return a.Training.Launcher == b.Training.Launcher && a.Training.Script == b.Training.Script &&
		slices.Equal(a.Training.Args, b.Training.Args) &&
		a.Training.Nodes == b.Training.Nodes && a.Training.RanksPerNode == b.Training.RanksPerNode
}

// Median sorts the values; it is NaN without values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}
