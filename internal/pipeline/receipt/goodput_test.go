// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"math"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

func after(seconds float64) time.Time {
	return noon().Add(time.Duration(seconds * float64(time.Second)))
}

// course returns the curve of steps from first to last, each of which took 2 s; the first line was written so many seconds after
// noon.
func course(at float64, first, last int) *metrics.Curve {
	h := &metrics.History{}
	for step := first; step <= last; step++ {
		h.Add(map[string]any{"step": float64(step), "time": float64(noon().Unix()) + at + 2*float64(step-first)})
	}
	return h.Curve()
}

// phased returns a receipt of a run on 2 nodes with 4 GPUs each, whose training and whole run ended then, in seconds after noon.
func phased(trainTo, ended float64) Receipt {
	phase := func(name string, from, to float64) Phase {
		return Phase{Name: name, Status: run.Succeeded, Started: after(from), Ended: after(to)}
	}
	return Receipt{
		Run: "train-1", Namespace: "ns", Started: noon(), Ended: after(ended), Training: &Training{Nodes: 2, RanksPerNode: 4},
		GPUs: &GPUs{Count: 8, Since: after(100), Before: 4 * 60}, // one node had its GPUs a minute earlier
		Phases: []Phase{phase("preflight", 0, 10), phase("provision", 12, 130), phase("sync-repo", 131, 140), phase("check-fabric", 141, 160),
			phase("train", 162, trainTo)},
	}
}

// ranks returns the times of two ranks that ended then.
func ranks(to float64) []Rank {
	const from = 165
	return []Rank{{Rank: 0, Started: after(from), Seconds: to - from - 1},
		{Rank: 1, Node: 1, Started: after(from + 1), Seconds: to - from - 1}}
}

func TestGoodput(t *testing.T) {
	undisturbed := phased(1215, 1250)
	undisturbed.Ranks, undisturbed.Curve = ranks(1210), course(202, 1, 500)

	// Three attempts of steps of 2 s: 1 to 100, 81 to 180 from the checkpoint of step 80, and 151 to 500 from the one of step 150.
	restarted := phased(1500, 1530)
	restarted.Curve = course(652, 151, 500)
	restarted.Attempts = []agent.Attempt{
		{Attempt: 1, Started: after(165), Ended: after(405), First: new(1.0), Last: new(100.0), StepTimes: course(202, 1, 100).StepTimes(20),
			Reason: fail.RankFailed},
		{Attempt: 2, Started: after(420), Ended: after(630), First: new(81.0), Last: new(180.0), StepTimes: course(422, 81, 180).StepTimes(20),
			Reason: fail.NodeLost},
		{Attempt: 3, Started: after(640), Ended: after(1360), First: new(151.0), Last: new(500.0)},
	}

	hanging := phased(900, 930)
	hanging.Ranks, hanging.Curve = ranks(890), course(202, 1, 100)
	hanging.Hang = &agent.Hang{Since: after(405), Named: after(880)}

	// The metrics have a line for every tenth step: the first line is written when ten of them are done.
	tenth := phased(1215, 1250)
	h := &metrics.History{}
	for step := 10; step <= 500; step += 10 {
		h.Add(map[string]any{"step": float64(step), "time": float64(noon().Unix()) + 200 + 2*float64(step)})
	}
	tenth.Ranks, tenth.Curve = ranks(1210), h.Curve()

	silent := phased(1215, 1250)
	silent.Ranks = ranks(1210)

	// The first attempt ended before its first step.
	early := restarted
	early.Attempts = []agent.Attempt{{Attempt: 1, Started: after(165), Ended: after(405)}, restarted.Attempts[2]}

	// Nothing to resume from: all steps are done again.
	again := restarted
	again.Curve = course(652, 1, 350)
	again.Attempts = []agent.Attempt{restarted.Attempts[0], restarted.Attempts[2]}

	refused := Receipt{Run: "train-1", Namespace: "ns", Started: noon(), Ended: after(90), GPUs: &GPUs{Count: 8, Before: 4 * 30},
		Phases: []Phase{{Name: "provision", Status: run.Failed, Started: after(5), Ended: after(60)}}}

	local := Receipt{Run: "local-1", Started: noon(), Ended: after(1215), GPUs: &GPUs{Since: noon()}, Ranks: ranks(1210),
		Curve: course(202, 1, 500)}

	for _, tc := range []struct {
		name string
		of   Receipt
		want Spent
		// hours are those of waiting alone: the others are the seconds times the GPUs.
		hours    float64
		gpus     int
		measured bool
	}{
		// The first step took 2 s, so it began at 200 s. The ranks ended at 1210 s.
		{"undisturbed", undisturbed, Spent{Waiting: 100, Starting: 100, Steps: 1010, Teardown: 40}, 240. / 3600, 8, true},
		// Step 80 was done at 202+158=360 s, step 150 in the second attempt at 422+138=560 s. The first steps began at 200, 420 and 650 s.
		{"restarted twice", restarted, Spent{Waiting: 100, Starting: 100 + 15 + 20, Steps: 160 + 140 + 710, Repeated: 45 + 70, Teardown: 170},
			240. / 3600, 8, true},
		{"hanging", hanging, Spent{Waiting: 100, Starting: 100, Steps: 205, Hang: 475, Teardown: 50}, 240. / 3600, 8, true},
		{"a line for every tenth step", tenth, Spent{Waiting: 100, Starting: 100, Steps: 1010, Teardown: 40}, 240. / 3600, 8, true},
		{"no metrics", silent, Spent{Waiting: 100, Starting: 65, Steps: 1045, Teardown: 40}, 240. / 3600, 8, false},
		{"an attempt without a step", early, Spent{Waiting: 100, Starting: 550, Steps: 710, Teardown: 170}, 240. / 3600, 8, true},
		{"no checkpoint", again, Spent{Waiting: 100, Starting: 100 + 245, Steps: 710, Repeated: 205, Teardown: 170}, 240. / 3600, 8, true},
		{"never had its GPUs", refused, Spent{Waiting: 60, Teardown: 30}, 120. / 3600, 8, false},
		{"local", local, Spent{Starting: 200, Steps: 1010, Teardown: 5}, 0, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := GoodputOf(tc.of)
			if got == nil {
				t.Fatal("no goodput")
			}
			hours := tc.want.times(float64(tc.gpus) / 3600)
			if hours.Waiting = tc.hours; tc.of.GPUs != nil && tc.of.GPUs.Since.IsZero() {
				hours.Teardown = 0
			}
			if !within(got.Seconds, tc.want, 1) || !within(got.GPUHours, hours, 8./3600) || got.GPUs != tc.gpus || got.Measured != tc.measured {
				t.Errorf("got  %+v\nwant %+v, GPU hours %+v, measured %t", got, tc.want, hours, tc.measured)
			}
			if whole := tc.of.Ended.Sub(tc.of.Started).Seconds(); math.Abs(got.Seconds.Total()-whole) > 1e-6 {
				t.Errorf("the seconds add up to %f, want %f", got.Seconds.Total(), whole)
			}
		})
	}
}

// within reports whether two times differ by at most so much in all their parts.
func within(a, b Spent, most float64) bool {
	for _, part := range []float64{a.Waiting - b.Waiting, a.Starting - b.Starting, a.Steps - b.Steps, a.Repeated - b.Repeated,
		a.Hang - b.Hang, a.Teardown - b.Teardown} {
		if math.Abs(part) > most {
			return false
		}
	}
	return true
}

// A receipt that has lost its ranks and its curve keeps its goodput. Only its teardown may take longer.
func TestGoodputOfShortenedReceipt(t *testing.T) {
	r := phased(1215, 1250)
	r.Ranks, r.Curve = ranks(1210), course(202, 1, 500)
	r.Goodput = GoodputOf(r)
	r.Ranks, r.Curve, r.LeftOut, r.Ended = nil, nil, []string{"2 healthy ranks", "curve"}, after(1300)
	got, want := GoodputOf(r), Spent{Waiting: 100, Starting: 100, Steps: 1010, Teardown: 90}
	if !within(got.Seconds, want, 1) || math.Abs(got.GPUHours.Teardown-8*90./3600) > 0.01 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	core(&r)
	if r.Goodput == nil || r.GPUs == nil {
		t.Error("the core of the receipt has no goodput")
	}
}

// A training writes its own metrics, and may write anything. Its seconds still add up.
func TestGoodputOfForgedMetrics(t *testing.T) {
	huge := time.Duration(math.MaxInt64)
	for name, curve := range map[string]*metrics.Curve{
		"steps without bounds": {Lines: 2, Began: after(200), First: -1e308, StepTime: huge, Points: []metrics.Point{
			{Step: 1e308, Elapsed: &huge}, {Step: -1e308, Elapsed: new(-huge)}}},
		"before the run": {Lines: 1, Began: after(-1e6), First: 1, StepTime: -1,
			Points: []metrics.Point{{Step: 1, Elapsed: new(time.Duration(0))}}},
		"after the run":       {Lines: 1, Began: after(1e6), First: 1, Points: []metrics.Point{{Step: 1, Elapsed: new(time.Duration(0))}}},
		"no points":           {Lines: 1, Began: after(200)},
		"no times":            {Lines: 1, First: 1, Points: []metrics.Point{{Step: 1}}},
		"lines without bound": {Lines: -5, Began: after(200), Points: []metrics.Point{{Step: math.MaxFloat64, Elapsed: &huge}}},
	} {
		r := phased(1215, 1250)
		r.Ranks, r.Curve = ranks(1210), curve
		two := r
		two.Attempts = []agent.Attempt{{Attempt: 1, Started: after(1e7), Ended: after(300), First: new(1.0), StepTimes: curve},
			{Attempt: 2, Started: after(100), Ended: after(-5), Hang: &agent.Hang{Since: after(1e9)}}}
		for _, r := range []Receipt{r, two} {
			g := GoodputOf(r)
			for _, s := range []Spent{g.Seconds, g.GPUHours} {
				if lowest := min(s.Waiting, s.Starting, s.Steps, s.Repeated, s.Hang, s.Teardown); !(lowest >= 0) {
					t.Errorf("%s: %+v; want no part below 0", name, s)
				}
			}
			if math.Abs(g.Seconds.Total()-1250) > 1e-6 {
				t.Errorf("%s: %+v; want seconds that add up to 1250", name, g.Seconds)
			}
		}
	}
}
