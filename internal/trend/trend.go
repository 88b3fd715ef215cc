package trend

import (
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/receipt"
)

// Trend is how runs of one kind went.
type Trend struct {
	// Runs are the oldest first.
	Runs []Run `json:"runs"`
	// Newest compares the last one that succeeded with those before it.
	Newest []Comparison `json:"newest,omitempty"`
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
// of the run like, or of the newest one of "". InvalidInput where there is none.
func Of(all []receipt.Receipt, schedule, like string, tolerance Tolerance) (Trend, error) {
	var model *receipt.Receipt
	for i, r := range all {
		if model == nil && (like != "" && r.Run == like || like == "" && (schedule == "" || r.Schedule == schedule)) {
			model = &all[i]
		}
	}
	if model == nil {
		return Trend{}, fail.Advise(fail.Becausef(fail.InvalidInput, "looking for receipts: there is none of %s: want one at least", whose(schedule, like)),
			"mlenv runs (shows which there are)")
	}
	var t Trend
	var history []receipt.Receipt
	for _, r := range all {
		if !SameKind(*model, r) || schedule != "" && r.Schedule != schedule {
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

func whose(schedule, like string) string {
	switch {
	case like != "":
		return "run " + like
	case schedule != "":
		return "schedule " + schedule
	}
	return "this environment"
}
