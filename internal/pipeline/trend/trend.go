// SPDX-License-Identifier: Apache-2.0

package trend

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// Trend is a series of runs of one kind.
type Trend struct {
	// Kind describes what the runs did.
	Kind string `json:"kind"`
	// Runs start with the oldest one.
	Runs []Run `json:"runs"`
	// Newest compares the newest run that succeeded with those before it.
	Newest []Comparison `json:"newest,omitempty"`
	// Others are the newest runs of the other kinds.
	Others []Other `json:"others,omitempty"`
}

// Other is the newest run of another kind.
type Other struct {
	Run  string `json:"run"`
	Kind string `json:"kind"`
}

// Run is one run of a trend.
type Run struct {
	Run        string          `json:"run"`
	Started    time.Time       `json:"started"`
	Verdict    receipt.Verdict `json:"verdict"`
	Reason     fail.Reason     `json:"reason,omitempty"`
	Regression string          `json:"regression,omitempty"`
	Commit     string          `json:"commit,omitempty"`
	Mode       agent.Mode      `json:"mode,omitempty"`
	Values     Values          `json:"values"`
}

// Select selects the receipts of a schedule ("" for any) that are of the kind of the run like, or else of the newest run that
// has trained. Nights of the schedule that have not trained are part of the trend. all starts with the newest receipt.
// Errors: InvalidInput if no receipt fits.
func Select(all []receipt.Receipt, schedule, like string, tolerance Tolerance) (Trend, error) {
	var model *receipt.Receipt
	for i, r := range all {
		wanted := like != "" && r.Run == like || like == "" && (schedule == "" || r.Schedule == schedule)
		if wanted && (model == nil || model.Training == nil && r.Training != nil) {
			model = &all[i]
		}
	}
	if model == nil {
		return Trend{}, fail.Advise(fail.Becausef(fail.InvalidInput, "looking for receipts of %s: found none", describeRuns(schedule, like)),
			"mlenv runs (lists the runs)")
	}
	t := Trend{Kind: kindOf(*model)}
	var history, others []receipt.Receipt
	for _, r := range all {
		switch {
		case schedule != "" && r.Schedule != schedule:
		case SameKind(*model, r), schedule != "" && r.Training == nil:
			history = append(history, r)
			t.Runs = append(t.Runs, Run{Run: r.Run, Started: r.Started, Verdict: r.Verdict, Reason: r.Reason,
				Regression: r.Regression, Commit: r.Commit, Mode: r.Mode, Values: ValuesOf(r)})
		case r.Training != nil && !slices.ContainsFunc(others, func(o receipt.Receipt) bool { return SameKind(o, r) }):
			others = append(others, r)
			t.Others = append(t.Others, Other{Run: r.Run, Kind: kindOf(r)})
		}
	}
	slices.Reverse(t.Runs)
	if i := slices.IndexFunc(history, func(r receipt.Receipt) bool { return r.Verdict == receipt.Succeeded }); i >= 0 {
		t.Newest = Judge(history[i], history[i+1:], tolerance)
	}
	return t, nil
}

// kindOf describes what SameKind compares.
func kindOf(r receipt.Receipt) string {
	from := cmp.Or(r.Repository, "no repository")
	t := r.Training
	if t == nil {
		return from + ", nothing trained"
	}
	return fmt.Sprintf("%s: %s, by %s on %s with %s each", from, strings.Join(append([]string{t.Script}, t.Args...), " "), t.Launcher,
		humanize.Count(t.Nodes, "node"), humanize.Count(t.RanksPerNode, "rank"))
}

func describeRuns(schedule, like string) string {
	switch {
	case like != "":
		return "run " + like
	case schedule != "":
		return "schedule " + schedule
	}
	return "this environment"
}
