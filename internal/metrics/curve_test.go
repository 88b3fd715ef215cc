// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/lines"
)

func curveOf(t *testing.T, file string) *Curve {
	t.Helper()
	h := &History{}
	if _, err := io.WriteString(Lines(h.Add), file); err != nil {
		t.Fatal(err)
	}
	return h.Curve()
}

func TestCurve(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		want       *Curve
	}{
		{"nothing", "", nil},
		{"no step", `{"loss":1}` + "\n", nil},
		{"loss, time and tokens", `{"step":10,"loss":4,"tokens":1000,"time":1790000000}
{"step":20,"loss":3,"tokens":2000,"time":1790000005}
{"evaluation":0.5,"time":1790000006}
{"step":40,"loss":2.5,"tokens":4000,"time":1790000015}
`, &Curve{Lines: 3, Began: time.Unix(1790000000, 0).UTC(), First: 10, Rate: "tokens", StepTime: 500 * time.Millisecond, Points: []Point{
			{Step: 10, Elapsed: new(time.Duration(0)), Loss: new(4.0)},
			{Step: 20, Elapsed: new(5 * time.Second), Loss: new(3.0), PerSecond: 200, StepTime: 500 * time.Millisecond},
			{Step: 40, Elapsed: new(15 * time.Second), Loss: new(2.5), PerSecond: 200, StepTime: 500 * time.Millisecond},
		}}},
		{"diverged", `{"step":1,"loss":4}
{"step":2,"loss":NaN}
{"step":3,"loss":-Infinity}
{"step":4}
`, &Curve{Lines: 4, First: 1, NotFinite: 2, FirstNotFinite: 2, Points: []Point{{Step: 1, Loss: new(4.0)}, {Step: 2, NotFinite: 1},
			{Step: 3, NotFinite: 1}, {Step: 4}}}},
		{"back to a checkpoint", `{"step":10,"samples":100,"time":1790000000}
{"step":5,"samples":50,"time":1790000005}
{"step":6,"samples":60,"time":1790000006}
`, &Curve{Lines: 3, Began: time.Unix(1790000000, 0).UTC(), First: 10, Rate: "samples", StepTime: time.Second, Points: []Point{
			{Step: 10, Elapsed: new(time.Duration(0))}, {Step: 5, Elapsed: new(5 * time.Second)},
			{Step: 6, Elapsed: new(6 * time.Second), PerSecond: 10, StepTime: time.Second}}}},
		{"each rank's time", `{"step":1,"rank_seconds":[0.5,0.75]}
{"step":2,"rank_seconds":[0.5,0.25,"x",-1]}
{"step":3,"rank_seconds":0.5}
`, &Curve{Lines: 3, First: 1, Ranks: []RankTime{{0, 500 * time.Millisecond, 500 * time.Millisecond},
			{1, 500 * time.Millisecond, 750 * time.Millisecond}}, Points: []Point{
			{Step: 1, Slowest: 750 * time.Millisecond}, {Step: 2, Slowest: 500 * time.Millisecond}, {Step: 3}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, curveOf(t, tc.file)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A course has the times of the steps in few points, from the first line to the last one.
func TestCourse(t *testing.T) {
	var file strings.Builder
	for step := 5; step <= 105; step++ {
		fmt.Fprintf(&file, `{"step":%d,"loss":2,"time":%d}`+"\n", step, 1790000000+2*step)
	}
	got := curveOf(t, file.String()).StepTimes(20).Later(time.Minute)
	first, last := got.Points[0], got.Points[len(got.Points)-1]
	if len(got.Points) > 20 || len(got.Points) < 15 || first.Loss != nil || last.Step != 105 || *last.Elapsed != 200*time.Second {
		t.Errorf("%d points from %+v to %+v", len(got.Points), first, last)
	}
	if want := time.Unix(1790000010, 0).Add(time.Minute).UTC(); !got.Began.Equal(want) || got.First != 5 || got.Lines != 101 {
		t.Errorf("began %s with step %v, %d lines; want %s", got.Began, got.First, got.Lines, want)
	}
	if none := curveOf(t, "").StepTimes(20).Later(time.Minute); none != nil {
		t.Errorf("without a step: %+v, want nil", none)
	}
}

// A receipt is a ConfigMap, so the curve is short however long the training is. It still has both ends and everything that
// went wrong in between.
func TestLongTraining(t *testing.T) {
	var file strings.Builder
	ranks := strings.TrimSuffix(strings.Repeat("0.123456789,", 2000), ",")
	const count = 100_001
	for i := range count {
		loss := fmt.Sprint(10 - 8*float64(i)/count)
		switch i {
		case 50_000:
			loss = "NaN"
		case 70_000:
			loss = "1000"
		}
		fmt.Fprintf(&file, `{"step":%d,"loss":%s,"tokens":%d,"time":%d}`+"\n", i+1, loss, i*4096, 1_790_000_000+i)
	}
	fmt.Fprintf(&file, `{"step":%d,"rank_seconds":[%s]}`+"\n", count+1, ranks)
	c := curveOf(t, file.String())
	if n := len(c.Points); n < mostPoints/2 || n > mostPoints || len(c.Ranks) != mostRanks || c.Lines != count+1 {
		t.Fatalf("%d points, %d ranks of %d lines", n, len(c.Ranks), c.Lines)
	}
	first, last, highest := c.Points[0], c.Points[len(c.Points)-1], 0.0
	for _, p := range c.Points {
		highest = max(highest, *p.Highest)
	}
	if *first.Loss < 9.9 || *last.Loss > 2.1 || last.Step != count+1 || highest != 1000 || c.NotFinite != 1 || c.FirstNotFinite != 50_001 ||
		c.StepTime != time.Second {
		t.Errorf("from %+v to %+v, highest %g, of %+v", first, last, highest, c)
	}
	encoded, err := json.MarshalIndent(c, "    ", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const sizeOfACurve = 300 << 10
	if len(encoded) > sizeOfACurve {
		t.Errorf("%d bytes, want at most %d", len(encoded), sizeOfACurve)
	}
}

// The receipt's content must be valid JSON, whatever a training writes.
func TestCurveIsAlwaysJSON(t *testing.T) {
	var file strings.Builder
	for i := range mostPoints + 1 {
		fmt.Fprintf(&file, `{"step":%d,"loss":1e308,"tokens":%d,"time":1.%d}`+"\n", i, i, i)
	}
	fmt.Fprintln(&file, `{"step":1e308,"loss":-1e308,"tokens":1e308,"time":2,"rank_seconds":[1e308]}`)
	if _, err := json.Marshal(curveOf(t, file.String())); err != nil {
		t.Error(err)
	}
}

// FuzzLines reads a file whole and in two pieces. The objects are the same, and their curve is bounded and valid JSON.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"step\":1,\"loss\":NaN}\n[1]\nStep 2\n{\"step\":2,\"time\":1e300,\"rank_seconds\":[1,-1,\"x\"]}\n"), 5)
	f.Add([]byte("{\"step\":1e308,\"tokens\":1e308,\"time\":1}\r\n{\"step\":-1e308,\"tokens\":2,\"time\":1.5}\n{\"loss\""), 30)
	f.Fuzz(func(t *testing.T, content []byte, at int) {
		if len(content) > lines.Most {
			return
		}
		read := func(pieces ...[]byte) (objects []map[string]any, history History) {
			writer := Lines(func(object map[string]any) {
				objects = append(objects, object)
				history.Add(object)
			})
			for _, piece := range pieces {
				if n, err := writer.Write(piece); n != len(piece) || err != nil {
					t.Fatalf("wrote %d of %d: %v", n, len(piece), err)
				}
			}
			return objects, history
		}
		whole, history := read(content)
		if at = max(at, 0) % (len(content) + 1); at > 0 {
			pieces, _ := read(content[:at], content[at:])
			if diff := cmp.Diff(whole, pieces); diff != "" {
				t.Errorf("cut at %d (-whole +pieces):\n%s", at, diff)
			}
		}
		curve := history.Curve()
		if curve != nil && len(curve.Points) > mostPoints {
			t.Errorf("%d points, want at most %d", len(curve.Points), mostPoints)
		}
		if _, err := json.Marshal(curve); err != nil {
			t.Error(err)
		}
	})
}

// A number as text is no loss, and so it is not one that is lost.
func TestLossAsText(t *testing.T) {
	h := &History{}
	h.Add(map[string]any{"step": 1.0, "loss": "2.3100"})
	h.Add(map[string]any{"step": 2.0, "loss": "nan"})
	if c := h.Curve(); c.NotFinite != 1 || c.FirstNotFinite != 2 {
		t.Errorf("%d losses are not finite, the first at step %g; want one, at step 2", c.NotFinite, c.FirstNotFinite)
	}
}

// A script that reports its steps after its optimizer's step has a line before its own, with a count that begins at 1 in every attempt.
func TestCountOfTheOptimizerIsReplaced(t *testing.T) {
	var h History
	h.Add(map[string]any{"step": 1.0, "source": "torch.optim", "time": 100.0})
	for i := range 3 {
		h.Add(map[string]any{"step": 101.0 + float64(i), "time": 101.0 + float64(i), "loss": 0.5})
	}
	if c := h.Curve(); c.Lines != 3 || c.First != 101 || c.Points[len(c.Points)-1].Step != 103 {
		t.Errorf("got %+v, want 3 lines from step 101 to 103", c)
	}
}
