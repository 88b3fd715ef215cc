// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
)

func TestProgress(t *testing.T) {
	began := time.Unix(1_790_000_000, 0)
	for _, tc := range []struct {
		name    string
		metrics string // what the training writes; it arrives 10 s after the training began
		line    string
		final   string
	}{
		{"nothing", "", "", ""},
		{"no steps", `{"loss":1}` + "\n", "", `{"loss":1}`},
		{"one step", `{"step":1,"steps":500,"loss":10.8257}` + "\n", "progress: step 1 of 500, loss 10.83",
			`{"step":1,"steps":500,"loss":10.8257}`},
		{"tokens a second and the time left", `{"step":100,"steps":500,"loss":3,"tokens":1000000,"time":1790000000}
{"step":120,"steps":500,"loss":2.5,"tokens":1250000,"time":1790000010.0}
`, "progress: step 120 of 500, loss 2.5, 25.0k tokens/s, about 3m10s left",
			`{"step":120,"steps":500,"loss":2.5,"tokens":1250000,"time":1790000010}`},
		{"samples a second", `{"step":1,"samples":8,"time":1790000000}
{"step":5,"samples":40,"time":1790000016}
`, "progress: step 5, 2.0 samples/s", `{"step":5,"samples":40,"time":1790000016}`},
		{"a line that counts no tokens", `{"step":1,"tokens":100,"time":1790000000}
{"step":5,"tokens":500,"time":1790000010}
{"step":5,"heldout_loss":2.25,"time":1790000010}
`, "progress: step 5, 40.0 tokens/s", `{"step":5,"tokens":500,"time":1790000010,"heldout_loss":2.25}`},
		{"a loss that has diverged, as Python writes it", `{"step": 1, "loss": 3.5}
{"step": 2, "loss": NaN, "grads": [1.0, -Infinity]}
`, "progress: step 2, loss NaN", `{"step":2,"loss":"NaN","grads":[1,"-Infinity"]}`},
		{"a loss that would forge a line", `{"step": 1, "loss": "1\ntrain failed: Internal: \u001b[2Jx"}` + "\n",
			"progress: step 1, loss 1 train failed: Inte...",
			`{"step":1,"loss":"1\ntrain failed: Internal: \u001b[2Jx"}`},
		{"the last step", `{"step":1,"steps":2,"time":1790000000}
{"step":2,"steps":2,"time":1790000001}
`, "progress: step 2 of 2", `{"step":2,"steps":2,"time":1790000001}`},
		{"started again at an earlier step", `{"step":9,"steps":20,"tokens":900,"time":1790000000}
{"step":5,"steps":20,"tokens":500,"time":1790000009}
`, "progress: step 5 of 20", `{"step":5,"steps":20,"tokens":500,"time":1790000009}`},
		{"what is no object is passed over", "epoch 1\n[1]\nnull\n\"x\"\n{\"step\":1}\r\n{\"step\":2", "progress: step 1", `{"step":1}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &progress{}
			lines := metrics.Lines(func(value map[string]any) { p.add(value, began.Add(10*time.Second)) })
			// The result does not depend on how the lines are cut on the way.
			for i := range len(tc.metrics) {
				if _, err := lines.Write([]byte(tc.metrics[i : i+1])); err != nil {
					t.Fatal(err)
				}
			}
			line, _ := p.nextLine("")
			if diff := cmp.Diff(tc.line, line); diff != "" {
				t.Errorf("line (-want +got):\n%s", diff)
			}
			if again, _ := p.nextLine("GPUs 90% busy"); again != "" {
				t.Errorf("nothing is new, and it prints %q", again)
			}
			if diff := cmp.Diff(tc.final, p.finalMetrics(600)); diff != "" {
				t.Errorf("final (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProgressSaysEveryStep(t *testing.T) {
	p := &progress{}
	now := time.Unix(1_790_000_000, 0)
	if !p.add(map[string]any{"step": 1.0}, now) || p.add(map[string]any{"step": 2.0}, now) {
		t.Error("want only the first step reported as the first")
	}
	if got, step := p.nextLine("GPUs 90% busy"); got != "progress: step 2, GPUs 90% busy" || step != 2 {
		t.Errorf("got %q", got)
	}
	// Some trainers write only whole seconds.
	p.add(map[string]any{"step": 3.0}, now)
	if got, _ := p.nextLine(""); got != "progress: step 3" {
		t.Errorf("a step in the same second: %q", got)
	}
}

// The results of a pod share 4 KB.
func TestFinalIsBounded(t *testing.T) {
	p := &progress{}
	p.add(map[string]any{"a": 1.0, "long": string(make([]byte, 100)), "z": 2.0}, time.Unix(0, 0))
	if got, want := p.finalMetrics(30), `{"a":1,"z":2}`; got != want {
		t.Errorf("got %s, want %s: whole values, and what fits", got, want)
	}
}

// A time that is none, as of a script that logs a duration, is not used, and reported once. What looks for hangs is not misled by a jump.
func TestWrongTimes(t *testing.T) {
	p := &progress{}
	now := time.Unix(1_790_000_000, 0)
	notices := 0
	for step := range 4 {
		now = now.Add(10 * time.Second)
		line := map[string]any{"step": float64(step), "tokens": float64(1000 * step), "time": 12.5}
		p.add(line, now)
		if p.notice() != "" {
			notices++
		}
	}
	if _, longest := p.stepTime(now); notices != 1 || longest != 10*time.Second {
		t.Errorf("%d notices, and the longest step took %s; want one, and 10s", notices, longest)
	}
	if course := p.stepTimes(0); course == nil || !course.Began.IsZero() {
		t.Errorf("the course began at %+v, want no time", course)
	}
	p.add(map[string]any{"step": 5.0, "time": float64(now.Add(5 * time.Hour).Unix())}, now.Add(time.Second))
	if _, longest := p.stepTime(now); longest != leastHang {
		t.Errorf("after a jump the longest step took %s, want %s at most", longest, leastHang)
	}
}

// A training that invents keys is reported once, and its progress goes on.
func TestProgressReportsDroppedMetrics(t *testing.T) {
	p := &progress{}
	notices := 0
	for step := range 3 * metrics.MostKeys {
		p.add(map[string]any{"step": float64(step), fmt.Sprint("loss_at_", step): 1.0}, time.Unix(int64(step), 0))
		if p.notice() != "" {
			notices++
		}
	}
	if line, _ := p.nextLine(""); notices != 1 || line != "progress: step 599" {
		t.Errorf("%d notices, %q; want one, and the last step", notices, line)
	}
	if kept := len(p.last.Values()); kept != metrics.MostKeys+1 {
		t.Errorf("%d keys are kept, want %d", kept, metrics.MostKeys+1)
	}
}

// The count of the optimizer begins at 1 in an attempt that resumes, and comes before the script's own.
func TestOwnStepsReplaceTheOptimizers(t *testing.T) {
	p := &progress{}
	now := time.Unix(1_790_000_000, 0)
	p.add(map[string]any{"step": 1.0, "source": "torch.optim"}, now)
	for step := 101.0; step <= 103; step++ {
		p.add(map[string]any{"step": step, "steps": 200.0}, now.Add(time.Duration(step)*time.Second))
	}
	if first, last := p.stepRange(); first == nil || *first != 101 || *last != 103 {
		t.Errorf("steps from %v to %v, want 101 to 103", first, last)
	}
	if got, _ := p.nextLine(""); got != "progress: step 103 of 200, about 1m37s left" {
		t.Errorf("got %q", got)
	}
}
