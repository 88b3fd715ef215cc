package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/agenttest"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// podsAlive is a cluster whose pods never go away.
type podsAlive struct{}

func (podsAlive) Lost(context.Context, *agent.Client) error { return nil }
func (podsAlive) Restarted(_ context.Context, client *agent.Client) error {
	return fail.Becausef(fail.ContainerRestarted, "node %d restarted", client.Node())
}

// buffer may be written and read at once.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}

// newTraining runs a shell script once on each of two nodes.
func newTraining(t *testing.T, script string) (*Training, *buffer, []*agenttest.Node) {
	t.Helper()
	agents := agenttest.Start(t, 2)
	var set nodes.Set
	for _, node := range agents {
		if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "train.sh"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		set = append(set, node.Client)
	}
	out := &buffer{}
	return &Training{
		Nodes: set, ID: "job", Pods: podsAlive{}, Log: step.TextLog(out), Out: out, Every: time.Hour,
		Spec: agent.JobSpec{Run: "run", Launcher: agent.Command, Script: "train.sh", Nodes: 2, RanksPerNode: 2},
	}, out, agents
}

func TestTrainingSucceeds(t *testing.T) {
	training, out, _ := newTraining(t, `echo "hello from $NODE_RANK"; printf 'no newline'; [ $NODE_RANK = 0 ] && echo '{"step":1,"steps":2,"loss":3.5}' >> $MLENV_METRICS_FILE; exit 0`)
	result, err := training.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"[0 -] hello from 0\n", "[1 -] hello from 1\n", "[0 -] no newline\n", "The first rank started", "step 1 of 2, loss 3.5"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output %q, want %q in it", out, want)
		}
	}
	if want := `{"step":1,"steps":2,"loss":3.5}`; result.Metrics != want {
		t.Errorf("metrics %q, want %q", result.Metrics, want)
	}
	// Again with the same id: the same end, and nothing runs.
	out.Reset()
	if _, err := training.Run(t.Context()); err != nil || strings.Count(out.String(), "hello from") != 2 {
		t.Errorf("attached to a job that has ended: %v; output %q, want all of it", err, out.String())
	}
	// What an earlier attempt has told is not told again. A launcher ends after its ranks.
	for _, client := range training.Nodes {
		if err := client.WatchJob(t.Context(), training.ID, func(agent.JobStatus) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	out.Reset()
	training.Told = true
	if result, err := training.Run(t.Context()); err != nil || strings.Contains(out.String(), "hello from") || result.Metrics == "" {
		t.Errorf("told already: %v; output %q, want none; metrics %q, want some", err, out.String(), result.Metrics)
	}
}

func TestTrainingNamesTheCause(t *testing.T) {
	// Node 1 loses its peer and exits at once; node 0, whose error it is, is slow to end.
	training, _, _ := newTraining(t, `
if [ $NODE_RANK = 1 ]; then
  sleep 0.3
  printf 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nRuntimeError: Connection closed by peer [10.0.0.1]\n'
  exit 1
fi
printf 'Traceback (most recent call last):\n  File "train.py", line 9, in step\nZeroDivisionError: division by zero\n'
sleep 1
exit 5`)
	_, err := training.Run(t.Context())
	if got := fail.ReasonOf(err); got != fail.RankFailed {
		t.Fatalf("got %s: %v, want RankFailed", got, err)
	}
	for _, want := range []string{"rank 0 on node 0", "exited with 5", "ZeroDivisionError: division by zero (train.py:9)"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want %q in it", err, want)
		}
	}
}

func TestTrainingStopsTheRest(t *testing.T) {
	training, _, _ := newTraining(t, `[ $NODE_RANK = 1 ] && exit 3; exec sleep 1000`)
	began := time.Now()
	_, err := training.Run(t.Context())
	if fail.ReasonOf(err) != fail.RankFailed || !strings.Contains(err.Error(), "rank 1 on node 1 exited with 3") {
		t.Errorf("got %v, want rank 1 with 3", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the rest was stopped after %s, want within 10 s", took)
	}
	for _, client := range training.Nodes {
		if status, err := client.Job(t.Context(), "job"); err != nil || status.State == agent.Running {
			t.Errorf("node %d: %s, %v; want it over", client.Node(), status.State, err)
		}
	}
}

func TestTrainingThatNoNodeCanStart(t *testing.T) {
	training, _, agents := newTraining(t, `exec sleep 1000`)
	if err := os.Remove(filepath.Join(agents[1].Config.Paths.Workspace, "train.sh")); err != nil {
		t.Fatal(err)
	}
	_, err := training.Run(t.Context())
	if got := fail.ReasonOf(err); got != fail.ScriptNotFound {
		t.Errorf("got %s: %v, want ScriptNotFound", got, err)
	}
	// The part of the other node may have started before it was told to stop.
	if err := agents[0].Client.WatchJob(t.Context(), "job", func(agent.JobStatus) error { return nil }); err != nil && !agent.IsNotFound(err) {
		t.Error(err)
	}
}

func TestTrainingTimeout(t *testing.T) {
	training, _, _ := newTraining(t, `exec sleep 1000`)
	training.Spec.Deadline = time.Now().Add(500 * time.Millisecond)
	_, err := training.Run(t.Context())
	if got := fail.ReasonOf(err); got != fail.TrainingTimeout {
		t.Errorf("got %s: %v, want TrainingTimeout", got, err)
	}
}

func TestInterruptedTrainingGoesOn(t *testing.T) {
	training, out, agents := newTraining(t, `for i in $(seq 1 50); do echo line $i; done; while [ ! -e go ]; do sleep 0.05; done; for i in $(seq 51 100); do echo line $i; done`)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := training.Run(ctx); ended <- err }()
	for !strings.Contains(out.String(), "[1 -] line 50\n") {
		select {
		case err := <-ended:
			t.Fatalf("it ended early: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the interrupted step returned %v, want Canceled", err)
	}
	for _, node := range agents {
		if status, err := node.Client.Job(t.Context(), "job"); err != nil || status.State != agent.Running {
			t.Errorf("node %d: %s, %v; want it running", node.Config.Node, status.State, err)
		}
		if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "go"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The step that comes after it sees every line once, in order.
	again := &buffer{}
	training.Out, training.Log = again, step.TextLog(again)
	if _, err := training.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for node := range 2 {
		var want, got strings.Builder
		for i := 1; i <= 100; i++ {
			fmt.Fprintf(&want, "[%d -] line %d\n", node, i)
		}
		for line := range strings.Lines(again.String()) {
			if strings.HasPrefix(line, fmt.Sprintf("[%d -] ", node)) {
				got.WriteString(line)
			}
		}
		if got.String() != want.String() {
			t.Errorf("node %d: %q, want lines 1 to 100", node, got.String())
		}
	}
}

func TestContainerRestartEndsTheTraining(t *testing.T) {
	training, out, agents := newTraining(t, `echo up; exec sleep 1000`)
	ended := make(chan error, 1)
	go func() { _, err := training.Run(t.Context()); ended <- err }()
	for !strings.Contains(out.String(), "[1 -] up\n") {
		select {
		case err := <-ended:
			t.Fatalf("it ended early: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	agents[1].Crash("job")
	if err := <-ended; fail.ReasonOf(err) != fail.ContainerRestarted || !strings.Contains(err.Error(), "node 1") {
		t.Errorf("got %s: %v; want ContainerRestarted of node 1", fail.ReasonOf(err), err)
	}
	if status, err := agents[0].Client.Job(t.Context(), "job"); err != nil || status.State == agent.Running {
		t.Errorf("node 0: %s, %v; want it stopped", status.State, err)
	}
}
