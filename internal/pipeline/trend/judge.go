package trend

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

const (
	// window is how many earlier runs the median is of.
	window = 10
	// fewest is how many there must be: the median of two is the mean of two accidents.
	fewest = 3
	// shown is the least difference that is not written as 0.0%.
	shown = 0.05
)

// Tolerance is by how much each measure may be worse than the median.
type Tolerance map[Measure]Percent

// DefaultTolerance is what two runs of one training differ by at most, where nothing is
// wrong: bandwidth and step time by what else uses the network and the storage, loss by the
// order of sums.
func DefaultTolerance() Tolerance {
	return Tolerance{Bandwidth: 10, StepTime: 10, Loss: 5}
}

// Comparison is one measure of a run beside those before it.
type Comparison struct {
	Measure Measure `json:"measure"`
	// Value and Median in words, with their units; "-" where there is none.
	Value  string `json:"value"`
	Median string `json:"median"`
	// Runs is how many the median is of; with less than three nothing is judged.
	Runs int `json:"runs"`
	// Worse is by how much the value is worse than the median, negative where it is better.
	Worse Percent `json:"worsePercent"`
	// Tolerance is how much worse it may be.
	Tolerance Percent `json:"tolerancePercent"`
	Regressed bool    `json:"regressed"`
}

// String is a line for people.
func (c Comparison) String() string {
	switch {
	case c.Runs == 0:
		return fmt.Sprintf("%s %s; no earlier run has one", c.Measure, c.Value)
	case c.Value == "-":
		return fmt.Sprintf("%s was not measured; the median of %d runs before is %s", c.Measure, c.Runs, c.Median)
	}
	how := "as"
	switch {
	case c.Worse >= shown:
		how = fmt.Sprintf("%s worse than", c.Worse)
	case c.Worse <= -shown:
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

// Judge compares a run with the last ten of its history that succeeded and are of its
// kind. history is the newest first, and may have the run itself in it.
func Judge(now receipt.Receipt, history []receipt.Receipt, tolerance Tolerance) []Comparison {
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
			if v := m.of(ValuesOf(r)); !math.IsNaN(v) {
				known = append(known, v)
			}
		}
		value, median := m.of(values), Median(known)
		c := Comparison{Measure: m, Value: m.text(value), Median: m.text(median), Runs: len(known), Tolerance: tolerance[m]}
		if m == Loss && values.LossLost {
			c.Value, c.Worse, c.Regressed = "not finite", Percent(math.MaxInt32), len(known) >= fewest
			result = append(result, c)
			continue
		}
		if worse := (value - median) / math.Abs(median); !math.IsNaN(worse) && !math.IsInf(worse, 0) {
			if !m.lessIsBetter() {
				worse = -worse
			}
			c.Worse = Percent(100 * worse)
			c.Regressed = len(known) >= fewest && c.Worse > c.Tolerance
		}
		result = append(result, c)
	}
	return result
}

// Regression is the error of a run that is worse than it may be, nil where none is. Reason:
// Regression.
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

// SameKind is true of runs that did the same: the same script of the same repository with the same
// arguments, on as many nodes and ranks, in environments of one name. Commit, image and what network
// it was may differ: they are what is compared.
func SameKind(a, b receipt.Receipt) bool {
	if a.Environment != b.Environment || a.Repository != b.Repository || (a.Training == nil) != (b.Training == nil) {
		return false
	}
	if a.Training == nil {
		return true
	}
	return a.Training.Launcher == b.Training.Launcher && a.Training.Script == b.Training.Script && slices.Equal(a.Training.Args, b.Training.Args) &&
		a.Training.Nodes == b.Training.Nodes && a.Training.RanksPerNode == b.Training.RanksPerNode
}

// Median is NaN of nothing. values are sorted by it.
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
