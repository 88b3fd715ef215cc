// SPDX-License-Identifier: Apache-2.0

package train

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rules"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/locked"
)

// Without any rule, a loss that is NaN is no end of a training: the log warns once.
func TestNaNWarnsOnce(t *testing.T) {
	training, out, agents := newTraining(t, `[ $NODE_RANK = 0 ] || exit 0
echo '{"step":1,"loss":2.5}
{"step":2,"loss":NaN}
{"step":3,"loss":NaN}
{"step":4,"loss":-Infinity}
{"step":5,"loss":3}' >> "$MLENV_METRICS_FILE"
until [ -e seen ]; do sleep 0.02; done`)
	go func() { // the lines arrive together
		for !strings.Contains(out.String(), "The loss at step 2 is NaN") && t.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		_ = os.WriteFile(filepath.Join(agents[0].Config.Paths.Workspace, "seen"), nil, 0o644)
	}()
	if _, err := training.Attempt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "The loss at step"); got != 1 ||
		!strings.Contains(out.String(), "The loss at step 2 is NaN, and the training continues.") {
		t.Errorf("output %q, want one warning", out)
	}
}

// parsed returns the watcher of a rule.
func parsed(t *testing.T, text string) watcher {
	t.Helper()
	rule, err := rules.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return watchOf(rule)
}

// steps returns a line for each step, the first one so many seconds after begin and each later one after the time of a step.
func steps(from, to int, after, each float64) (facts []event) {
	for step := from; step <= to; step++ {
		at := begin.Add(time.Duration((after + float64(step-from)*each) * float64(time.Second)))
		facts = append(facts, measured{map[string]any{"step": float64(step)}, at})
	}
	return facts
}

// TestNumbers lists what each rule sees in facts that come one after the other, a second apart: the first numbers that meet it.
func TestNumbers(t *testing.T) {
	line := func(value map[string]any) event { return measured{value, begin} }
	for _, tc := range []struct {
		name, rule string
		facts      []event
		// want is "" for a rule that is not met, else the end of the facts has to meet it.
		want string
	}{
		{"a finite loss", "loss is nan", []event{lossOf(1, 2), lossOf(2, -1), lossOf(3, math.Inf(1))}, ""},
		{"NaN", "loss is nan", []event{lossOf(119, 2.3125), lossOf(120, math.NaN())},
			"the loss at step 120 is NaN; before it was 2.312 at step 119"},
		{"NaN without a step", "loss is nan", []event{line(map[string]any{"loss": 3.0}), line(map[string]any{"loss": "NaN"})},
			"the loss is NaN; before it was 3"},
		{"NaN at once", "loss is nan", []event{lossOf(101, math.NaN())}, "the loss at step 101 is NaN, as it was from the beginning"},
		{"another metric is NaN", "loss is nan", []event{line(map[string]any{"step": 1.0, "heldout_loss": "NaN"})}, ""},
		{"other facts", "loss is nan", []event{saved{}, used{}}, ""},
		{"a high loss at the start", "loss > 20 after 100 steps", []event{lossOf(1, 900), lossOf(99, 21), lossOf(100, 20), lossOf(101, -3)}, ""},
		{"a high loss", "loss > 20 after 100 steps", []event{lossOf(99, 21), lossOf(100, 20.25)},
			"the loss at step 100 is 20.25; before it was 21 at step 99"},
		{"a high loss after a restart", "loss > 20 after 100 steps", []event{lossOf(501, 25)},
			"the loss at step 501 is 25, as it was from the beginning"},
		{"an infinite loss", "loss > 20 after 100 steps", []event{lossOf(100, 2), lossOf(101, math.Inf(1))},
			"the loss at step 101 is Infinity; before it was 2 at step 100"},
		{"NaN is not above", "loss > 20 after 100 steps", []event{lossOf(101, math.NaN()), lossOf(102, math.Inf(-1))}, ""},
		{"a high loss in a line without a step", "loss > 20 after 100 steps",
			[]event{line(map[string]any{"step": 100.0}), line(map[string]any{"loss": 30.0})},
			"the loss at step 100 is 30, as it was from the beginning"},
		{"even steps", "step_time > 2x median for 10m", steps(1, 900, 0, 2), ""},
		{"slow steps", "step_time > 2x median for 10m", slices.Concat(steps(1, 100, 0, 2), steps(101, 220, 203, 5)),
			"steps 101 to 220 took 5.0 s each, 2.5 times the median of 2.0 s before, for 10m0s"},
		{"slow steps, not for long enough", "step_time > 2x median for 10m",
			slices.Concat(steps(1, 100, 0, 2), steps(101, 200, 203, 5), steps(201, 300, 700, 2)), ""},
		{"slow steps, and a fast one in between", "step_time > 2x median for 10m",
			slices.Concat(steps(1, 100, 0, 2), steps(101, 200, 203, 5), steps(201, 300, 700, 5)), ""},
		{"slower, and not by as much", "step_time > 2x median for 10m", slices.Concat(steps(1, 100, 0, 2), steps(101, 500, 202, 4)), ""},
		{"slow before the median is known", "step_time > 2x median for 10m", slices.Concat(steps(1, 5, 0, 2), steps(6, 60, 70, 60)), ""},
		{"one long step", "step_time > 2x median for 10m", slices.Concat(steps(1, 20, 0, 2), steps(21, 21, 640, 2)),
			"steps 21 to 21 took 10m2s each, 301.0 times the median of 2.0 s before, for 10m2s"},
		{"an evaluation with a line of its own", "step_time > 2x median for 10m",
			slices.Concat(steps(1, 20, 0, 2), steps(20, 20, 900, 2), steps(21, 40, 902, 2)), ""},
		{"a burst of lines", "step_time > 2x median for 1s", slices.Concat(steps(1, 500, 0, 0), steps(501, 540, 2, 2)), ""},
		{"several steps a second", "step_time > 2x median for 10m", slices.Concat(steps(1, 1000, 0, 0.1), steps(1001, 2999, 100.25, 0.3)), ""},
		{"it starts over", "step_time > 2x median for 10m", slices.Concat(steps(1, 100, 0, 2), steps(50, 90, 1200, 2)), ""},
		{"a time that goes back", "step_time > 2x median for 10m", slices.Concat(steps(1, 100, 0, 2), steps(101, 150, -5000, 9)), ""},
		{"no steps", "step_time > 2x median for 10m", []event{line(map[string]any{"loss": 1.0}), saved{}}, ""},
		{"no checkpoint", "no checkpoint for 3s", []event{saved{}, saved{}, saved{}},
			"no checkpoint was completed since the training started 3.0 s ago"},
		{"checkpoints", "no checkpoint for 2s", []event{saved{"a", begin.Add(time.Second)}, saved{"b", begin}, saved{"c", begin},
			saved{"c", begin.Add(time.Minute)},
			saved{"c", begin.Add(time.Minute)}}, ""},
		{"an earlier run's checkpoint", "no checkpoint for 3s", []event{saved{"a", begin.Add(-time.Hour)}, saved{"a", begin.Add(-time.Hour)},
			saved{"a", begin.Add(-time.Hour)}}, "no checkpoint was completed since the training started 3.0 s ago"},
		{"no more checkpoints", "no checkpoint for 3s", []event{saved{}, saved{"a", begin}, saved{"a", begin}, saved{"a", begin},
			saved{"a", begin}},
			"the newest complete checkpoint, a, was written 3.0 s ago"},
		{"found by a step that came back", "no checkpoint for 10s", []event{saved{"a", begin.Add(-time.Minute)}}, ""},
		{"a checkpoint of a clock that is ahead", "no checkpoint for 2s",
			[]event{saved{"a", begin.Add(time.Hour)}, saved{"a", begin.Add(time.Hour)},
				saved{"a", begin.Add(time.Hour)}}, "the newest complete checkpoint, a, was written 2.0 s ago"},
		{"busy GPUs", "gpu_use < 5% for 2s", []event{used{90, 2}, used{1, 2}, used{5, 2}, used{0, 2}, used{0, 2}}, ""},
		{"idle GPUs", "gpu_use < 5% for 2s", []event{used{90, 2}, used{0.5, 2}, used{4.9, 2}, used{1, 2}},
			"2 GPUs were at most 4.9% busy on average for 2.0 s"},
		{"unknown GPUs", "gpu_use < 5% for 2s", []event{used{}, used{}, used{}, used{}}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := parsed(t, tc.rule)
			for i, fact := range tc.facts {
				got := w.take(fact, begin, begin.Add(time.Duration(i+1)*time.Second))
				if want := map[bool]string{i == len(tc.facts)-1: tc.want}[true]; got != want {
					t.Fatalf("fact %d of %d, %v: %q, want %q", i+1, len(tc.facts), fact, got, want)
				}
			}
		})
	}
}

// Nothing is known of the time in which no agent answered.
func TestGapInUse(t *testing.T) {
	w := parsed(t, "gpu_use < 5% for 4m")
	for _, look := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {time.Minute, false}, {2*time.Minute + time.Second, false}, {4 * time.Minute, false}, {5 * time.Minute, false},
		{6*time.Minute + 2*time.Second, true}} {
		if got := w.take(used{0, 8}, begin, begin.Add(look.after)); (got != "") != look.want && look.after < 6*time.Minute {
			t.Errorf("after %s: %q, want met %t", look.after, got, look.want)
		}
	}
}

// The median of a long training is kept in bounded memory.
func TestMedianIsBounded(t *testing.T) {
	w := &paceWatch{stride: 1}
	for i := range 1_000_000 {
		w.add(float64(1 + i%9))
	}
	if got := w.median(); len(w.paces) > mostPaces || got < 4 || got > 6 {
		t.Errorf("median %g of %d, want about 5 of at most %d", got, len(w.paces), mostPaces)
	}
}

// While a rank waits for its debugger, the GPUs are idle and no checkpoint comes.
func TestRulesWhileDebugged(t *testing.T) {
	all := []string{"loss is nan", "loss > 20 after 100 steps", "step_time > 2x median for 10m", "no checkpoint for 2h",
		"gpu_use < 5% for 20m"}
	for debugged, want := range map[bool]int{false: 5, true: 2} {
		if got := len(watches(rules.Valid(all), nil, debugged)); got != want {
			t.Errorf("debugged %t: %d rules are judged, want %d", debugged, got, want)
		}
	}
}

// Checkpoints are in doubt from the last good loss on, and only after a rule about the loss.
func TestDoubt(t *testing.T) {
	for _, tc := range []struct {
		rule  string
		facts []event
		want  time.Duration // after begin, -1 for never
	}{
		{"loss is nan", []event{lossOf(60, 2), lossOf(90, 1), lossOf(120, math.NaN())}, 90 * time.Second},
		{"loss is nan", []event{lossOf(120, math.NaN())}, 30 * time.Second},
		{"loss > 5 after 1 steps", []event{lossOf(60, 2), lossOf(90, 6)}, 60 * time.Second},
		{"loss > 5 after 1 steps", []event{lossOf(10, 2), lossOf(90, 6)}, 30 * time.Second},
		{"no checkpoint for 1s", []event{saved{}}, -1},
	} {
		c := &course{judge: judge{spec: agent.JobSpec{Launcher: agent.Torchrun, Nodes: 1, RanksPerNode: 1}}, phase: running,
			statuses: []agent.JobStatus{{Started: begin}}, rules: watches(nil, rules.Valid([]string{tc.rule}), false)}
		for _, fact := range tc.facts {
			c.on(fact, begin.Add(time.Hour))
		}
		trouble := troubleError{}
		if !errors.As(c.failure, &trouble) || !trouble.restarts || fail.ReasonOf(c.failure) != fail.StopCondition {
			t.Errorf("%s: %v, want a trouble after which it is started again", tc.rule, c.failure)
			continue
		}
		got := time.Duration(-1)
		if doubt := trouble.doubtFrom(begin.Add(30 * time.Second)); !doubt.IsZero() {
			got = doubt.Sub(begin)
		}
		if got != tc.want {
			t.Errorf("%s: in doubt from %s on, want %s", tc.rule, got, tc.want)
		}
	}
}

// withRules returns newRestartable with rules. Its nodes have two GPUs each, of that use.
func withRules(t *testing.T, restarts, use int, stopIf, restartIf []string, script string) (*Training, *locked.Buffer, []*agenttest.Node) {
	t.Helper()
	training, out, agents := newRestartable(t, restarts, script)
	withoutFaults(agents, func(facts *agent.Facts) {
		for i := range facts.GPUs {
			facts.GPUs[i].Utilization = use
		}
	})
	for _, node := range agents { // the first answer writes into the workspace, and the end of the training does not wait for it
		if _, err := node.Client.Facts(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range stopIf {
		_ = training.StopIf.Set(text)
	}
	for _, text := range restartIf {
		_ = training.RestartIf.Set(text)
	}
	if err := errors.Join(training.StopIf.TakeMistake(), training.RestartIf.TakeMistake()); err != nil {
		t.Fatal(err)
	}
	return training, out, agents
}

// TestRulesEndATraining: each rule ends a training on two real agents whose ranks would run on, with its numbers, and the ranks are gone.
func TestRulesEndATraining(t *testing.T) {
	t.Parallel() // it waits
	const metrics = `[ $NODE_RANK = 0 ] && printf '%s\n' "$LINES" >> "$MLENV_METRICS_FILE"
`
	var slow strings.Builder
	for step := range 40 {
		at := int(time.Now().Unix()) - 1000 + 2*step
		if step > 20 {
			at += 30 * (step - 20)
		}
		fmt.Fprintf(&slow, "{\"step\":%d,\"time\":%d}\n", step, at)
	}
	for _, tc := range []struct {
		rule, lines, script string
		use                 int
		want                string
	}{
		{"loss is nan", "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":NaN}", "", 90,
			"training: the loss at step 2 is NaN; before it was 2.5 at step 1 (stop-if: loss is nan)"},
		{"loss > 20 after 100 steps", "{\"step\":99,\"loss\":31}\n{\"step\":100,\"loss\":20.5}", "", 90,
			"training: the loss at step 100 is 20.5; before it was 31 at step 99 (stop-if: loss > 20 after 100 steps)"},
		{"step_time > 2x median for 5m", slow.String(), "", 90,
			"training: steps 21 to 30 took 32.0 s each, 16.0 times the median of 2.0 s before, for 5m20s (stop-if: step_time > 2x median for 5m)"},
		{"no checkpoint for 2s", "", "", 90, "training: no checkpoint was completed since the training started "},
		{"gpu_use < 5% for 2s", "", "", 3, "training: 4 GPUs were at most 3.0% busy on average for "},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			training, out, agents := withRules(t, 0, tc.use, []string{tc.rule}, nil, metrics+"exec sleep 1000")
			training.Spec.Env = map[string]string{"LINES": tc.lines}
			began := time.Now()
			_, err := training.attempts(t.Context())
			if fail.ReasonOf(err) != fail.StopCondition || !strings.Contains(err.Error(), tc.want) || fail.NextOf(err) == "" {
				t.Fatalf("got %s: %v (%s), want StopCondition with %q\n%s", fail.ReasonOf(err), err, fail.NextOf(err), tc.want, out)
			}
			const timeOfTheRule = 2 * time.Second
			if took := time.Since(began); strings.HasSuffix(tc.rule, " for 2s") && took < timeOfTheRule {
				t.Errorf("it ended after %s, before the rule's time", took)
			}
			for _, node := range agents {
				status, err := over(t, node.Client)
				if err != nil || status.State != agent.Stopped || status.StopCause != agent.StopRule ||
					!strings.HasSuffix(status.StopReason, " (stop-if: "+tc.rule+")") {
					t.Errorf("node %d: %s (%s), %v; want it stopped by the rule", node.Config.Node, status.State, status.StopReason, err)
				}
			}
		})
	}
}

// Some GPUs do not report their use: it is not 0.
func TestUnmeasuredUse(t *testing.T) {
	training, _, agents := newRestartable(t, 0, "exit 0")
	withoutFaults(agents, func(facts *agent.Facts) {
		for i := range facts.GPUs {
			facts.GPUs[i].Unmeasured = true
		}
	})
	if use, complete := training.gpuUse(t.Context()); use.gpus != 0 || !complete {
		t.Errorf("got %+v, complete %t; want no GPU with a known use", use, complete)
	}
	if got := training.gpuText(t.Context()); got != "" {
		t.Errorf("got %q for the log, want nothing", got)
	}
}

// Ranks that a rule stops have the job's time to save, and the error names what they saved, unless the rule doubts the model.
func TestRuleLetsRanksSave(t *testing.T) {
	script := `[ $NODE_RANK = 0 ] && printf '%s\n' '{"step":1,"loss":NaN}' >> "$MLENV_METRICS_FILE"
` + savesFor("0", "7")
	for rule, want := range map[string]bool{"no checkpoint for 10s": true, "loss is nan": false} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			training, out, _ := withRules(t, 0, 90, []string{rule}, nil, script)
			training.Spec.Grace = timeToSave
			_, err := training.attempts(t.Context())
			if fail.ReasonOf(err) != fail.StopCondition || strings.Contains(err.Error(), "its ranks saved step-7 before they ended") != want ||
				strings.Contains(out.String(), "SIGKILL") {
				t.Errorf("got %v, want StopCondition, and what was saved in it: %t\n%s", err, want, out)
			}
		})
	}
}

// A training that meets no rule succeeds, and the log names the rules that nothing was written for.
func TestRulesThatAreNotMet(t *testing.T) {
	all := []string{"loss is nan", "loss > 20 after 100 steps", "step_time > 2x median for 10m", "no checkpoint for 2h",
		"gpu_use < 5% for 20m"}
	training, out, _ := withRules(t, 0, 90, all, nil, `[ $NODE_RANK = 0 ] && echo '{"step":1,"loss":900}' >> "$MLENV_METRICS_FILE"; exit 0`)
	if _, err := training.attempts(t.Context()); err != nil || strings.Contains(out.String(), "Rule ") {
		t.Errorf("%v; output %q, want nothing about rules", err, out)
	}
	training, out, _ = withRules(t, 0, 90, all, nil, "exit 0")
	_, err := training.attempts(t.Context())
	for _, want := range []string{
		`Rule "loss is nan" of stop-if was not judged: the training has written no loss to its metrics.`,
		`Rule "loss > 20 after 100 steps" of stop-if was not judged: the training has written no loss to its metrics.`,
		`Rule "step_time > 2x median for 10m" of stop-if was not judged: the training has written no step to its metrics.`,
	} {
		if err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v; output %q, want %q", err, out, want)
		}
	}
}

// TestRestartedBeforeTheTrouble: a checkpoint that was written after the last good loss is as bad as the loss. The next attempts resume
// from the one before, also one that follows another failure.
func TestRestartedBeforeTheTrouble(t *testing.T) {
	training, out, agents := withRules(t, 3, 90, nil, []string{"loss is nan"},
		`echo "attempt $MLENV_ATTEMPT from ${MLENV_LAST_CHECKPOINT-nothing}"
[ $MLENV_ATTEMPT = 3 ] && exit 0
cd "$SAVED"
save() { at=$NODE_RANK/workspace/checkpoints/run/step-$1; mkdir -p $at; echo x >$at/mp_rank_00_model_states.pt
  touch -d @$2 $at/* $at; }
line() { [ $NODE_RANK = 1 ] || echo "{\"step\":$1,\"loss\":$2,\"time\":$3}" >> "$MLENV_METRICS_FILE"; }
now=$(date +%s)
if [ $MLENV_ATTEMPT = 2 ]; then
  # At once: the other rank's end may stop this one at any time.
  [ $NODE_RANK = 1 ] || printf '{"step":%s,"loss":2,"time":%s}\n' 11 $now 13 $now >>"$MLENV_METRICS_FILE"
  exit 3
fi
save 5 $((now - 1000))
save 10 $((now + 3600)) # the clock of the storage is ahead
touch done-$NODE_RANK
until [ -e done-0 ] && [ -e done-1 ]; do sleep 0.02; done
line 9 2.5 $now
line 11 NaN $((now + 2))
exec sleep 1000`)
	saved := t.TempDir()
	training.Spec.Env = map[string]string{"SAVED": saved}
	for i, node := range agents {
		if err := os.Symlink(filepath.Dir(node.Config.Paths.Workspace), filepath.Join(saved, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := training.attempts(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, node := range agents {
		want := fmt.Sprintf("[%d -] attempt 3 from %s/checkpoints/run/step-5\n", i, node.Config.Paths.Workspace)
		if !strings.Contains(out.String(), want) {
			t.Errorf("output %q, want %q in it", out, want)
		}
	}
	if got := strings.Count(out.String(), "Passing over checkpoint step-10, written at "); got != 2 {
		t.Errorf("output %q, want step-10 passed over in both attempts, got %d", out, got)
	}
	var got []string
	for _, a := range training.Spec.Attempts {
		got = append(got, fmt.Sprintf("from %q: %s %s", a.Checkpoint, a.Reason, a.Symptom))
	}
	want := []string{`from "": StopCondition loss is nan`, `from "step-5": RankFailed exited with 3, want exit code 0`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
}

// If all checkpoints are in doubt, the script must not choose one of them by itself.
func TestNoSoundCheckpoint(t *testing.T) {
	training, out, agents := newRestartable(t, 1, "")
	training.Spec.Attempts = []agent.Attempt{{Attempt: 1, Started: begin, Doubt: begin}}
	for _, node := range agents {
		at := filepath.Join(node.Config.Paths.Workspace, "checkpoints/run/step-2")
		if err := errors.Join(os.MkdirAll(at, 0o755), os.WriteFile(filepath.Join(at, "mp_rank_00_model_states.pt"), []byte("x"),
			0o644)); err != nil {
			t.Fatal(err)
		}
	}
	training.findCheckpoint(t.Context())
	if c := training.Spec.Checkpoint; c == nil || *c != "" || !strings.Contains(out.String(),
		"/workspace/checkpoints/run has no complete checkpoint from before the loss went wrong: attempt 2 starts from the beginning.") {
		t.Errorf("checkpoint %v, output %q; want a start from the beginning", c, out)
	}
}

// The same trouble at the same step again is no trouble that a restart helps against.
func TestSameTroubleTwice(t *testing.T) {
	training, out, _ := withRules(t, 5, 90, nil, []string{"loss is nan"},
		`[ $NODE_RANK = 0 ] && echo '{"step":7,"loss":NaN}' >> "$MLENV_METRICS_FILE"; exec sleep 1000`)
	_, err := training.attempts(t.Context())
	if want := "(restart-if: loss is nan); not restarted: attempt 1 ended with the same error at step 7"; fail.ReasonOf(err) !=
		fail.StopCondition || !strings.Contains(err.Error(), want) {
		t.Errorf("got %s: %v; want StopCondition with %q\n%s", fail.ReasonOf(err), err, want, out)
	}
	if training.Spec.Attempt() != 2 {
		t.Errorf("it ended in attempt %d, want 2", training.Spec.Attempt())
	}
}

// A rule of stop-if is final, whatever max-restarts allows.
func TestStopIfIsFinal(t *testing.T) {
	training, out, _ := withRules(t, 5, 90, []string{"loss is nan"}, nil,
		`[ $NODE_RANK = 0 ] && echo '{"step":7,"loss":NaN}' >> "$MLENV_METRICS_FILE"; exec sleep 1000`)
	_, err := training.attempts(t.Context())
	if fail.ReasonOf(err) != fail.StopCondition || strings.Contains(err.Error(), "not restarted") || training.Spec.Attempt() != 1 {
		t.Errorf("got %s: %v in attempt %d; want StopCondition in the first\n%s", fail.ReasonOf(err), err, training.Spec.Attempt(), out)
	}
}
