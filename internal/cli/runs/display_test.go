// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// Lines that are printed while a question waits for its answer appear above it.
func TestQuestionStaysLast(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(100, 0)
	d := newDisplay(&out, 7)
	d.width, d.now = func() int { return 40 }, func() time.Time { return now }
	line := func(text string) { d.observe(launch.Event{Kind: launch.Line, Task: "train", Text: text}) }
	taken := 0
	d.takeKeys = func() func() {
		taken++
		return func() { taken-- }
	}
	d.observe(launch.Event{Kind: launch.TaskStarted, Task: "train", Time: now})
	const clear = "\r\x1b[K"
	for _, tc := range []struct {
		name string
		do   func()
		want string
	}{
		{"a line", func() { line("one") }, clear + "[train] one\r\n0 of 7 done; train for 0.0 s"},
		{"the question", func() { d.askQuestion("== d: detach", "d? ") }, clear + "== d: detach\r\n0 of 7 done; train for 0.0 s" + clear + "d? "},
		{"a line meanwhile", func() { line("two") }, clear + "[train] two\r\nd? "},
		{"time passes", d.tick, ""},
		{"the answer", d.resume, clear + "0 of 7 done; train for 0.0 s"},
		{"the end", d.end, clear},
		{"a line after it", func() { line("three") }, "[train] three\r\n"},
	} {
		out.Reset()
		tc.do()
		if diff := cmp.Diff(tc.want, out.String()); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
		if want := map[string]int{"the question": 1, "a line meanwhile": 1, "time passes": 1}[tc.name]; taken != want {
			t.Errorf("%s: the keys are taken %d times, want %d", tc.name, taken, want)
		}
	}
}

// A training can print anything, but it cannot erase or color what mlenv prints.
func TestLinesSteerNoTerminal(t *testing.T) {
	var out bytes.Buffer
	newDisplay(&out, 1).observe(launch.Event{Kind: launch.Line, Task: "train", Text: "10%\r\x1b[2J\x1b[31m20%\x1b]0;title\a"})
	if got, want := out.String(), "[train] 20%\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMetricsText(t *testing.T) {
	for line, want := range map[string]string{
		"": "",
		"{\n  \"step\": 10,\n  \"loss\": 2.9,\n  \"time\": 1790000000.25\n}": "loss 2.9, step 10",
		`{"loss": 1.2764880657196045, "tokens": 1966080000}`:                 "loss 1.2765, tokens 1966080000",
		`["odd"]`: `["odd"]`,
	} {
		if got := metricsText([]byte(line)); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}
