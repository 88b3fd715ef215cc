package trend

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// Trend is how runs of one kind went.
type Trend struct {
	// Kind is what the runs did, in words.
	Kind string `json:"kind"`
	// Runs are the oldest first.
	Runs []Run `json:"runs"`
	// Newest compares the last one that succeeded with those before it.
	Newest []Comparison `json:"newest,omitempty"`
	// Others are the newest runs of other kinds, one of each.
	Others []Other `json:"others,omitempty"`
}

// Other stands for runs of another kind.
type Other struct {
	Run  string `json:"run"`
	Kind string `json:"kind"`
}

// Run is one of them.
type Run struct {
	Run        string          `json:"run"`
	Started    time.Time       `json:"started"`
	Verdict    receipt.Verdict `json:"verdict"`
	Reason     string          `json:"reason,omitempty"`
	Regression string          `json:"regression,omitempty"`
	Commit     string          `json:"commit,omitempty"`
	Mode       string          `json:"mode,omitempty"`
	Values     Values          `json:"values"`
}

// Of picks from receipts, the newest first, those of the schedule ("" for any) that are of the kind
// of the run like, or of "" the newest one that got as far as to train. Nights of a schedule that did not
// are among its others. InvalidInput where there is none.
func Of(all []receipt.Receipt, schedule, like string, tolerance Tolerance) (Trend, error) {
	var model *receipt.Receipt
	for i, r := range all {
		wanted := like != "" && r.Run == like || like == "" && (schedule == "" || r.Schedule == schedule)
		if wanted && (model == nil || model.Training == nil && r.Training != nil) {
			model = &all[i]
		}
	}
	if model == nil {
		return Trend{}, fail.Advise(fail.Becausef(fail.InvalidInput, "looking for receipts: there is none of %s: want one at least", whose(schedule, like)),
			"mlenv runs (shows which there are)")
	}
	t := Trend{Kind: kindOf(*model)}
	var history, others []receipt.Receipt
	for _, r := range all {
		switch {
		case schedule != "" && r.Schedule != schedule:
			continue
		case SameKind(*model, r), schedule != "" && r.Training == nil:
		default:
			if r.Training != nil && !slices.ContainsFunc(others, func(o receipt.Receipt) bool { return SameKind(o, r) }) {
				others = append(others, r)
				t.Others = append(t.Others, Other{Run: r.Run, Kind: kindOf(r)})
			}
			continue
		}
		history = append(history, r)
		t.Runs = append([]Run{{Run: r.Run, Started: r.Started, Verdict: r.Verdict, Reason: r.Reason, Regression: r.Regression, Commit: r.Commit, Mode: r.Mode, Values: ValuesOf(r)}}, t.Runs...)
	}
	for i, r := range history {
		if r.Verdict == receipt.Succeeded {
			t.Newest = Judge(r, history[i+1:], tolerance)
			break
		}
	}
	return t, nil
}

// kindOf says what SameKind compares.
func kindOf(r receipt.Receipt) string {
	from := cmp.Or(r.Repository, "no repository")
	t := r.Training
	if t == nil {
		return from + ", nothing trained"
	}
	return fmt.Sprintf("%s: %s, by %s on %s with %s each", from, strings.Join(append([]string{t.Script}, t.Args...), " "), t.Launcher,
		humanize.Count(t.Nodes, "node"), humanize.Count(t.RanksPerNode, "rank"))
}

func whose(schedule, like string) string {
	switch {
	case like != "":
		return "run " + like
	case schedule != "":
		return "schedule " + schedule
	}
	return "this environment"
}
