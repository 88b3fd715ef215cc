// SPDX-License-Identifier: Apache-2.0

//go:build linux

package live

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// nvidiaSMI adds an nvidia-smi to PATH that reports two GPUs.
func nvidiaSMI(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	const program = `#!/bin/sh
IFS=,
for gpu in 0 1; do
	row=
	for field in ${1#--query-gpu=}; do
		case $field in
		index) value=$gpu ;;
		uuid) value=GPU-$gpu ;;
		name) value="NVIDIA H100 80GB HBM3" ;;
		memory.total) value=81559 ;;
		memory.used) value=40000 ;;
		utilization.gpu) value=$((97 - 85 * gpu)) ;;
		*) value="[N/A]" ;;
		esac
		row="$row${row:+, }$value"
	done
	echo "$row"
done
`
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// Two real agents; one runs a rank that writes metrics.
func TestTopAsks(t *testing.T) {
	nvidiaSMI(t)
	agents := agenttest.Start(t, 2)
	const lines = `{"step": 10, "steps": 100, "loss": 3.5, "tokens": 1000, "time": 1790000000}
{"step": 20, "steps": 100, "loss": 3.25, "tokens": 2000, "time": 1790000005, "rank_seconds": [0.5, 0.25]}
`
	spec := agent.JobSpec{Run: "first", Launcher: agent.Command, Script: "sh", Nodes: 2, RanksPerNode: 1,
		Args: []string{"-c", `test "$NODE_RANK" = 1 || printf '` + strings.ReplaceAll(lines, "\n", `\n`) +
			`' >> "$MLENV_METRICS_FILE"; exec sleep 600`}}
	asked := &source{environment: "env", jobs: map[string]*training{}}
	for _, a := range agents {
		asked.nodes = append(asked.nodes, a.Client)
		if _, err := a.Client.StartJob(t.Context(), "job-1", spec); err != nil {
			t.Fatal(err)
		}
	}
	log, err := agents[0].Client.Log(t.Context(), "job-1", agent.MetricsLog, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for written := bufio.NewScanner(log); written.Scan() && !strings.Contains(written.Text(), "rank_seconds"); {
	}
	for _, a := range agents {
		started := errors.New("started")
		err := a.Client.WatchJob(t.Context(), "job-1", func(s agent.JobStatus) error {
			if len(s.Ranks) == 1 {
				return started
			}
			return nil
		})
		if !errors.Is(err, started) {
			t.Fatal(err)
		}
	}
	// The second report has nothing new.
	for range 2 {
		report, err := asked.askNodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := []Job{{ID: "job-1", Ranks: []Rank{{0, 0, "running"}, {1, 1, "running"}}, Run: "first", Step: 20, Steps: 100, Loss: 3.25,
			StepsPerSecond: 2, PerSecond: 200, Rate: "tokens", SecondsLeft: 40}}
		if len(report.Jobs) != 1 {
			t.Fatalf("got %+v, want one job", report)
		}
		if c := report.Jobs[0].Curve; c == nil || c.Lines != 2 {
			t.Errorf("the curve is %+v", c)
		}
		report.Jobs[0].Curve = nil
		if diff := cmp.Diff(want, report.Jobs); diff != "" {
			t.Errorf("jobs (-want +got):\n%s", diff)
		}
		for i, ownStep := range []float64{0.5, 0.25} {
			n := report.Nodes[i]
			if n.Node != i || len(n.GPUs) != 2 || n.GPUs[1].Utilization != 12 || n.OwnStep != ownStep || n.MemoryUsed <= 0 {
				t.Errorf("node %d: got %+v", i, n)
			}
		}
	}
	agents[1].End()
	report, err := asked.askNodes(t.Context())
	if err != nil || report.Nodes[1].Problem == "" || report.Nodes[0].Problem != "" {
		t.Errorf("with one node that answers: %v, %+v", err, report.Nodes)
	}
	agents[0].End()
	if _, err := asked.askNodes(t.Context()); err == nil {
		t.Error("want an error if no node answers")
	}
}

func TestTopPrints(t *testing.T) {
	gpus := []agent.GPU{{Index: 0, Memory: 80e9, MemoryUsed: 40e9, Utilization: 97, Temperature: 61},
		{Index: 1, Memory: 80e9, MemoryUsed: 41e9, Utilization: 5, Temperature: 88, Throttled: []string{"hardware thermal slowdown"}}}
	report := State{Environment: "env",
		Jobs: []Job{
			{ID: "1", Run: "first", Step: 40, Steps: 150, Loss: 3.033, StepsPerSecond: 2.71, PerSecond: 3012, Rate: "tokens", SecondsLeft: 40.6},
			{ID: "2", Run: "second", Step: 3, Loss: "NaN"},
			{ID: "3", Run: "third"},
		},
		Nodes: []Node{
			{Node: 0, KubernetesNode: "node-a", GPUs: gpus, MemoryUsed: 12e9, MemoryLimit: 256e9, Ranks: 2, All: 2, Quiet: 0.5, OwnStep: 0.31},
			{Node: 1, Problem: "talking to the agent of node 1: nobody\nlistens"},
			{Node: 2, KubernetesNode: "cpu-only", MemoryUsed: 1e9},
		}}
	const want = `first: step 40 of 150, loss 3.033, 2.71 steps/s, 3012 tokens/s, about 40.6 s left
second: step 3, loss NaN
third: no metrics yet
NODE  ON        GPUS BUSY  GPU MEMORY           HOTTEST  MEMORY               RANKS   SILENT FOR  OWN STEP
0     node-a    97% 5%     81.0 GB of 160.0 GB  88 °C    12.0 GB of 256.0 GB  2 of 2  0.5 s       310ms
1     -         -          -                    -        -                    -       -           -
2     cpu-only  -          -                    -        1.0 GB               -       -           -
node 0: GPU 1: hardware thermal slowdown
node 1: talking to the agent of node 1: nobody listens
`
	var out bytes.Buffer
	if err := report.print(&out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	out.Reset()
	if err := (State{Environment: "env"}).print(&out); err != nil ||
		!strings.HasPrefix(out.String(), "No training runs on environment env.\n") {
		t.Errorf("without a job: %q, %v", out.String(), err)
	}
}

// TestTopIsPlain: what agents answer neither steers the terminal nor forges a line.
func TestTopIsPlain(t *testing.T) {
	const hostile = "\x1b]0;title\x07\x1b[2J\x9b31m\nnode 0: forged"
	state := State{Environment: "env", Jobs: []Job{{Run: hostile, Step: 1, Loss: hostile}}, Nodes: []Node{
		{KubernetesNode: hostile, Problem: hostile, GPUs: []agent.GPU{{Fault: hostile, Throttled: []string{hostile}}}},
	}}
	ctx, cancel := context.WithCancel(t.Context())
	const timeUntilTheUserInterrupts = 10 * time.Millisecond
	asked := false
	var out bytes.Buffer
	err := redraw(ctx, &out, func() (int, int) { return 200, 24 }, nil, func() (State, error) {
		if asked {
			return state, errors.New("over")
		}
		asked = true
		time.AfterFunc(timeUntilTheUserInterrupts, cancel)
		return state, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("\x1b[H", "", "\x1b[K", "", "\x1b[J", "", "\r\n", "\n").Replace(strings.TrimPrefix(out.String(), "\x1b[2J"))
	if strings.ContainsAny(text, "\x1b\x07") || strings.Contains(text, "\x9b") || strings.Contains(text, "\nnode 0: forged") {
		t.Errorf("got %q", text)
	}
}

// top prints the table at once and at every tick. Ctrl-C ends it without an error, and the end of the environment ends it
// with one.
func TestTopRedraws(t *testing.T) {
	size := func() (int, int) { return 80, 24 }
	ticks := make(chan time.Time, 2)
	ticks <- time.Time{}
	ticks <- time.Time{}
	ctx, interrupt := context.WithCancel(t.Context())
	asked := 0
	var out bytes.Buffer
	err := redraw(ctx, &out, size, ticks, func() (State, error) {
		if asked++; asked == 3 {
			interrupt()
			return State{}, ctx.Err()
		}
		return State{Environment: fmt.Sprintf("env-%d", asked)}, nil
	})
	first, second := strings.Index(out.String(), "environment env-1."), strings.Index(out.String(), "environment env-2.")
	if err != nil || first < 0 || second < first || strings.Contains(out.String(), "env-3") {
		t.Errorf("got %q, %v", out.String(), err)
	}
	gone := errors.New("gone")
	if err := redraw(t.Context(), &out, size, nil, func() (State, error) { return State{}, gone }); !errors.Is(err, gone) {
		t.Errorf("got %v, want the reason that the environment is gone", err)
	}
}

// The text never scrolls or wraps, and overwrites all of the previous text.
func TestTopScreen(t *testing.T) {
	want := "\x1b[Haé\x1b[K\r\nb\x1b[K\r\n\x1b[J"
	if got := screen("aéc\nb\nd\n", 2, 3); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
