// SPDX-License-Identifier: Apache-2.0

package trend

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// night returns the receipt of the run in the night with this number.
func night(number int, change ...func(*receipt.Receipt)) receipt.Receipt {
	r := receipt.Receipt{
		Run: fmt.Sprintf("mlenv-nightly-%d", number), Environment: "env", Repository: "https://git.example.com/me/model.git", Schedule: "nightly",
		Verdict: receipt.Succeeded, Commit: "0123456789abcdef", Mode: "rdma",
		Started:  time.Date(2026, 3, number, 2, 30, 0, 0, time.UTC),
		Training: &receipt.Training{Launcher: "deepspeed", Script: "train.py", Nodes: 2, RanksPerNode: 4},
		Fabric:   &fabric.Report{Bandwidth: 194 * rdma.GBps},
		Curve:    &metrics.Curve{StepTime: 250 * time.Millisecond},
		Goodput:  &receipt.Goodput{Share: 0.9, Measured: true},
		Metrics:  json.RawMessage(`{"step": 500, "loss": 2.0}`),
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func bandwidth(b rdma.BytesPerSecond) func(*receipt.Receipt) {
	return func(r *receipt.Receipt) { r.Fabric = &fabric.Report{Bandwidth: b} }
}

// devices has eight of a kind, of which the slowest has this rate, and one that is alone.
func devices(slowest fabric.FLOPS) func(*receipt.Receipt) {
	kinds := []fabric.DeviceKind{
		{Kind: "NVIDIA H100", Devices: 8, Product: fabric.Spread[fabric.FLOPS]{Lowest: slowest, Median: 650e12, Highest: 655e12},
			Copy: fabric.Spread[rdma.BytesPerSecond]{Lowest: 2910 * rdma.GBps, Median: 3000 * rdma.GBps, Highest: 3010 * rdma.GBps}},
		{Kind: "NVIDIA H200", Devices: 1, Product: fabric.Spread[fabric.FLOPS]{Lowest: 700e12, Median: 700e12, Highest: 700e12}},
	}
	return func(r *receipt.Receipt) { r.Fabric = &fabric.Report{Bandwidth: 194 * rdma.GBps, DeviceKinds: kinds} }
}
func stepTime(d time.Duration) func(*receipt.Receipt) {
	return func(r *receipt.Receipt) { r.Curve = &metrics.Curve{StepTime: d} }
}
func goodput(share float64) func(*receipt.Receipt) {
	return func(r *receipt.Receipt) { r.Goodput = &receipt.Goodput{Share: share, Measured: true} }
}
func last(text string) func(*receipt.Receipt) {
	return func(r *receipt.Receipt) { r.Metrics = json.RawMessage(text) }
}
func failed(r *receipt.Receipt)          { r.Verdict, r.Reason = receipt.Failed, "RankFailed" }
func otherRepository(r *receipt.Receipt) { r.Repository = "https://git.example.com/you/model.git" }
func otherScript(r *receipt.Receipt) {
	r.Training = &receipt.Training{Launcher: "deepspeed", Script: "other.py", Nodes: 2, RanksPerNode: 4}
}

// nights returns receipts, the newest first.
func nights(n int, change ...func(*receipt.Receipt)) (all []receipt.Receipt) {
	for i := n; i > 0; i-- {
		all = append(all, night(i, change...))
	}
	return all
}

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name    string
		now     receipt.Receipt
		history []receipt.Receipt
		want    string // the regression, "" for none
	}{
		{"as always", night(20), nights(10), ""},
		{"within the tolerance", night(20, bandwidth(175*rdma.GBps), stepTime(274*time.Millisecond), last(`{"loss": 2.09}`)), nights(10), ""},
		{"better", night(20, bandwidth(390*rdma.GBps), stepTime(time.Millisecond), last(`{"loss": 0.1}`)), nights(10), ""},
		{"a slower network", night(20, bandwidth(97*rdma.GBps)), nights(10),
			"bandwidth 97.0 GB/s, 50.0% worse than the median 194.0 GB/s of 10 runs before; want at most 10.0% worse"},
		{"slower steps and a higher loss", night(20, stepTime(300*time.Millisecond), last(`{"loss": 3}`)), nights(10),
			"step time 300ms, 20.0% worse than the median 250ms of 10 runs before; want at most 10.0% worse; loss 3, 50.0% worse than the median " +
				"2 of 10 runs before; want at most 5.0% worse"},
		{"a loss that is lost", night(20, last(`{"loss": "NaN"}`)), nights(10),
			"loss not finite, infinitely worse than the median 2 of 10 runs before; want at most 5.0% worse"},
		{"losses may be negative", night(20, last(`{"loss": -1}`)), nights(10, last(`{"loss": -2}`)),
			"loss -1, 50.0% worse than the median -2 of 10 runs before; want at most 5.0% worse"},
		{"not measured this time", night(20, func(r *receipt.Receipt) { r.Fabric, r.Curve, r.Metrics = nil, nil, nil }), nights(10), ""},
		{"never measured before", night(20), nights(10, func(r *receipt.Receipt) { r.Fabric, r.Curve, r.Metrics = nil, nil, nil }), ""},
		{"lost hours are shown, and not judged", night(20, goodput(0)), nights(10), ""},
		{"too few before", night(20, bandwidth(97*rdma.GBps)), nights(2), ""},
		{"those that failed do not count", night(20, bandwidth(97*rdma.GBps)), nights(10, failed), ""},
		{"nor those of another kind", night(20, bandwidth(97*rdma.GBps)), nights(10, otherScript), ""},
		{"nor those of another repository", night(20, bandwidth(97*rdma.GBps)), nights(10, otherRepository), ""},
		{"nor the run itself, nor what is older than ten", night(20, stepTime(300*time.Millisecond)),
			append(append([]receipt.Receipt{night(20, stepTime(300*time.Millisecond))}, nights(10, stepTime(290*time.Millisecond))...),
				nights(20, stepTime(time.Millisecond))...), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Regression(tc.now.Run, Judge(tc.now, tc.history, DefaultTolerance()))
			got := ""
			if err != nil {
				got = strings.TrimPrefix(err.Error(), "comparing run mlenv-nightly-20 with those before it: ")
				if reason := fail.ReasonOf(err); reason != fail.Regression {
					t.Errorf("reason %s, want Regression", reason)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPrint(t *testing.T) {
	// The newest run failed before its training.
	all := append([]receipt.Receipt{night(6, failed, func(r *receipt.Receipt) {
		r.Repository, r.Training, r.Fabric, r.Curve, r.Metrics, r.Goodput = "", nil, nil, nil, nil, nil
	}),
		night(5, bandwidth(97*rdma.GBps), func(r *receipt.Receipt) { r.Regression = "bandwidth" })}, nights(4)...)
	all = append(all, night(1, otherScript), night(0, otherScript), night(-1, otherRepository))
	trend, err := Select(all, "nightly", "", DefaultTolerance())
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if err := trend.Print(&got); err != nil {
		t.Fatal(err)
	}
	const want = `https://git.example.com/me/model.git: train.py, by deepspeed on 2 nodes with 4 ranks each

bandwidth  ████▁·  97.0 GB/s to 194.0 GB/s
step time  ▅▅▅▅▅·  250ms to 250ms
loss       ▅▅▅▅▅·  2 to 2
goodput    ▅▅▅▅▅·  90.0% to 90.0%

STARTED RUN VERDICT COMMIT MODE BANDWIDTH STEP TIME LOSS GOODPUT MATRIX PRODUCT SLOWEST DEVICE
2026-03-01 02:30  mlenv-nightly-1  Succeeded   0123456789  rdma  194.0 GB/s  250ms    2 90.0% - -
2026-03-02 02:30  mlenv-nightly-2  Succeeded   0123456789  rdma  194.0 GB/s  250ms    2 90.0% - -
2026-03-03 02:30  mlenv-nightly-3  Succeeded   0123456789  rdma  194.0 GB/s  250ms    2 90.0% - -
2026-03-04 02:30  mlenv-nightly-4  Succeeded   0123456789  rdma  194.0 GB/s  250ms    2 90.0% - -
2026-03-05 02:30  mlenv-nightly-5  Regression  0123456789  rdma  97.0 GB/s    250ms    2 90.0% - -
2026-03-06 02:30  mlenv-nightly-6  RankFailed  0123456789  rdma  -                        -          - - - -

The newest run that succeeded:
  bandwidth 97.0 GB/s, 50.0% worse than the median 194.0 GB/s of 4 runs before; want at most 10.0% worse
  step time 250ms, as the median 250ms of 4 runs before
  loss 2, as the median 2 of 4 runs before
  goodput 90.0%, as the median 90.0% of 4 runs before

Other kinds of runs:
  --like=mlenv-nightly-1  https://git.example.com/me/model.git: other.py, by deepspeed on 2 nodes with 4 ranks each
  --like=mlenv-nightly--1  https://git.example.com/you/model.git: train.py, by deepspeed on 2 nodes with 4 ranks each
`
	// The test ignores the widths of columns.
	if diff := cmp.Diff(fields(want), fields(got.String())); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, got.String())
	}
}

func fields(text string) (lines []string) {
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// The speed of the devices is shown, and judged only if a tolerance asks for it.
func TestDevices(t *testing.T) {
	now, before := night(20, devices(390e12)), nights(10, devices(640e12))
	if err := Regression("x", Judge(now, before, DefaultTolerance())); err != nil {
		t.Errorf("by default: got %v, want no regression", err)
	}
	tolerance := DefaultTolerance()
	tolerance[Product], tolerance[Slowest] = 10, 10
	err := Regression("x", Judge(now, before, tolerance))
	if want := "matrix product 390.0 TFLOP/s, 39.1% worse than the median 640.0 TFLOP/s of 10 runs before; want at most 10.0% worse; " +
		"slowest device 60.0%, 38.1% worse than the median 97.0% of 10 runs before; want at most 10.0% worse"; err == nil ||
		!strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	for _, c := range Judge(night(20), nights(10), tolerance) {
		if c.Measure == Product || c.Measure == Slowest {
			t.Errorf("of reports without devices: got %s, want nothing", c)
		}
	}
	trend, err := Select([]receipt.Receipt{now, night(19)}, "nightly", "", tolerance)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if err := trend.Print(&got); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"matrix product ·▅ 390.0 TFLOP/s to 390.0 TFLOP/s", "slowest device ·▅ 60.0% to 60.0%",
		"2 90.0% 390.0 TFLOP/s 60.0%", "2 90.0% - -"} {
		if !strings.Contains(strings.Join(fields(got.String()), "\n"), want) {
			t.Errorf("%q not found in\n%s", want, &got)
		}
	}
}

// The goodput is judged only if a tolerance asks for it, and alone it shows nothing about a commit.
func TestGoodput(t *testing.T) {
	tolerance := DefaultTolerance()
	tolerance[Goodput] = 10
	err := Regression("x", Judge(night(20, goodput(0.45)), nights(10), tolerance))
	if want := "goodput 45.0%, 50.0% worse than the median 90.0% of 10 runs before; want at most 10.0% worse"; err == nil ||
		!strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	alone := func(r *receipt.Receipt) { r.Fabric, r.Curve, r.Metrics = nil, nil, nil }
	if b := Compare(night(20, alone), "main", nights(10, alone), false, DefaultTolerance()); b.Verdict != Unknown || len(b.Measures) != 1 {
		t.Errorf("got %s with %d measures, want Unknown with the goodput", b.Verdict, len(b.Measures))
	}
	if v := ValuesOf(receipt.Receipt{Goodput: &receipt.Goodput{Share: 1}}); v.Goodput != nil {
		t.Error("a goodput without the times of steps is compared")
	}
}

func TestNothingToShow(t *testing.T) {
	for _, tc := range []struct{ schedule, like, want string }{
		{"", "", "this environment"}, {"weekly", "", "schedule weekly"}, {"", "x", "run x"},
	} {
		_, err := Select(nil, tc.schedule, tc.like, DefaultTolerance())
		if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: got %v", tc, err)
		}
	}
}

func TestSVG(t *testing.T) {
	trend, err := Select(append([]receipt.Receipt{night(5, stepTime(500*time.Millisecond))}, nights(4)...), "", "", DefaultTolerance())
	if err != nil {
		t.Fatal(err)
	}
	got := trend.SVG()
	for _, want := range []string{"<svg", "mlenv-nightly-5: step time 500ms", "bandwidth (more is better)", "03-05"} {
		if !strings.Contains(got, want) {
			t.Errorf("the picture has no %q:\n%s", want, got)
		}
	}
}

func TestPercent(t *testing.T) {
	for _, tc := range []struct {
		text string
		want Percent
		ok   bool
	}{{"10", 10, true}, {"2.5%", 2.5, true}, {"0", 0, true}, {"-1", 0, false}, {"NaN", 0, false}, {"Inf", 0, false}, {"ten", 0, false},
		{"", 0, false}} {
		if got, err := ParsePercent(tc.text); (err == nil) != tc.ok || got != tc.want {
			t.Errorf("%q: got %v, %v; want %v, allowed %t", tc.text, got, err, tc.want, tc.ok)
		}
	}
}

// A run next to a base: the values come from the newest run of the base that did the same. The verdict comes from the median, or from
// the one run that was named.
func TestCompare(t *testing.T) {
	elsewhere := func(r *receipt.Receipt) { r.Environment = "nightly" }
	for _, tc := range []struct {
		name string
		now  receipt.Receipt
		base []receipt.Receipt
		one  bool
		want string
	}{
		{"as good", night(9), nights(4, elsewhere), false,
			"main mlenv-nightly-4 NoRegression: bandwidth 194.0 GB/s|194.0 GB/s; step time 250ms|250ms; loss 2|2; " +
				"goodput 90.0%|90.0%"},
		{"slower steps", night(9, stepTime(300*time.Millisecond)), nights(3), false,
			"main mlenv-nightly-3 Regression: bandwidth 194.0 GB/s|194.0 GB/s; step time 300ms|250ms worse; loss 2|2; " +
				"goodput 90.0%|90.0%"},
		{"the newest run was slow, not the median", night(9), append([]receipt.Receipt{night(8, bandwidth(90*rdma.GBps))}, nights(4)...), false,
			"main mlenv-nightly-8 NoRegression: bandwidth 194.0 GB/s|90.0 GB/s; step time 250ms|250ms; loss 2|2; " +
				"goodput 90.0%|90.0%"},
		{"too few to judge", night(9, bandwidth(10*rdma.GBps)), nights(2), false,
			"main mlenv-nightly-2 Unknown (2 runs of it did the same: want at least 3 to judge by): " +
				"bandwidth 10.0 GB/s|194.0 GB/s; step time 250ms|250ms; loss 2|2; goodput 90.0%|90.0%"},
		{"one run by name", night(9, last(`{"loss": 2.2}`)), nights(1), true,
			"main mlenv-nightly-1 Regression: bandwidth 194.0 GB/s|194.0 GB/s; step time 250ms|250ms; loss 2.2|2 " +
				"worse; goodput 90.0%|90.0%"},
		{"itself, failures, and other trainings", night(4), append(nights(4, otherScript), append(nights(3, failed), night(4))...), false,
			"main  Unknown (no run of it that succeeded did the same: " +
				"https://git.example.com/me/model.git: train.py, by deepspeed on 2 nodes with 4 ranks each): "},
	} {
		b := Compare(tc.now, "main", tc.base, tc.one, DefaultTolerance())
		got := fmt.Sprintf("%s %s %s", b.Base, b.Run, b.Verdict)
		if b.Why != "" {
			got += " (" + b.Why + ")"
		}
		var pairs []string
		for _, m := range b.Measures {
			text := fmt.Sprintf("%s %s|%s", m.Measure, m.Value, m.Base)
			if m.Regressed {
				text += " worse"
			}
			pairs = append(pairs, text)
		}
		if got += ": " + strings.Join(pairs, "; "); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
}
