// SPDX-License-Identifier: Apache-2.0

package trend

import (
	"math"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// Outcome is the verdict of a comparison with a base.
type Outcome string

// The outcomes.
const (
	// Regressed: a measure is worse than its tolerance.
	Regressed Outcome = "Regression"
	// Kept: at least one measure was judged, and none is worse.
	Kept Outcome = "NoRegression"
	// Unknown: nothing could be judged.
	Unknown Outcome = "Unknown"
)

// BaseComparison shows a run next to the newest run of a base, and judges it.
type BaseComparison struct {
	// Base is what was asked for, a branch or a run; Run is its newest run that did the same and succeeded, "" for none.
	Base    string  `json:"base"`
	Run     string  `json:"run,omitempty"`
	Verdict Outcome `json:"verdict"`
	// Why is the reason for Unknown.
	Why      string `json:"why,omitempty"`
	Measures []Pair `json:"measures,omitempty"`
}

// Pair is a measure of both runs, and how it was judged.
type Pair struct {
	Comparison
	// Base is the value of the newest run of the base.
	Base string `json:"base"`
}

// Compare compares a run that succeeded with runs of a base, the newest first. With several it is judged as Judge does, by the median of
// up to ten; with one by that run alone. Their environments may differ: a branch may train in one of its own.
func Compare(now receipt.Receipt, base string, runs []receipt.Receipt, one bool, tolerance Tolerance) BaseComparison {
	b := BaseComparison{Base: base, Verdict: Unknown}
	var same []receipt.Receipt
	for _, r := range runs {
		if r.Environment = now.Environment; r.Run != now.Run && r.Verdict == receipt.Succeeded && SameKind(now, r) {
			same = append(same, r)
		}
	}
	if len(same) == 0 {
		b.Why = "no run of it that succeeded did the same: " + kindOf(now)
		return b
	}
	b.Run = same[0].Run
	least := fewest
	if one {
		least = 1
	}
	newest, judged := ValuesOf(same[0]), false
	for _, c := range judgeWith(now, same, tolerance, least) {
		there := c.Measure.formatValue(c.Measure.valueIn(newest))
		if c.Value == "-" && there == "-" {
			continue
		}
		b.Measures = append(b.Measures, Pair{c, there})
		switch {
		case c.Regressed:
			b.Verdict = Regressed
		case c.Runs >= least && c.Tolerance != anything && !math.IsNaN(c.Measure.valueIn(ValuesOf(now))):
			judged = true
		}
	}
	switch {
	case b.Verdict == Regressed:
	case judged:
		b.Verdict = Kept
	case len(same) < least:
		b.Why = humanize.Count(len(same), "run") + " of it did the same: want at least 3 to judge by"
	default:
		b.Why = "both measured nothing that can be compared"
	}
	return b
}
