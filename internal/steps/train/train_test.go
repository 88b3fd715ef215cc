// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/script"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/locked"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// newTraining runs a shell script once on each of two nodes.
func newTraining(t *testing.T, script string) (*Training, *locked.Buffer, []*agenttest.Node) {
	t.Helper()
	agents := agenttest.Start(t, 2)
	var set nodes.Set
	for _, node := range agents {
		if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "train.sh"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		set = append(set, node.Client)
	}
	out := &locked.Buffer{}
	pods := fake.NewClientset(readyPod(agents[0], "0", ""), readyPod(agents[1], "1", ""))
	return &Training{
		Deps:    Deps{Clients: &kube.Clients{Kube: pods, Namespace: "ns"}, Log: command.TextLog(out), Out: out, Notify: func(notify.Event) {}},
		Options: Options{Name: "env", ProgressEvery: time.Hour},
		Nodes:   set, ID: "job", uids: map[int]types.UID{0: "0", 1: "1"},
		Spec: agent.JobSpec{Run: "run", Launcher: agent.Command, Script: "train.sh", Nodes: 2, RanksPerNode: 2},
	}, out, agents
}

func TestTrainingSucceeds(t *testing.T) {
	training, out, _ := newTraining(t,
		`echo "hello from $NODE_RANK"; printf 'no newline'; [ $NODE_RANK = 0 ] && echo '{"step":1,"steps":2,"loss":3.5}' >> `+
			`"$MLENV_METRICS_FILE"; exit 0`)
	result, err := training.Attempt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"[0 -] hello from 0\n", "[1 -] hello from 1\n", "[0 -] no newline\n",
		"step 1 of 2, loss 3.5"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output %q, want %q in it", out, want)
		}
	}
	if want := `{"step":1,"steps":2,"loss":3.5}`; result.Metrics != want {
		t.Errorf("metrics %q, want %q", result.Metrics, want)
	}
	// The second call with the same id has the same result, and runs nothing.
	out.Reset()
	if _, err := training.Attempt(t.Context()); err != nil || strings.Count(out.String(), "hello from") != 2 {
		t.Errorf("attached to a job that has ended: %v; output %q, want all of it", err, out.String())
	}
	// The nodes are free now: no launcher is left that would make the agents refuse the next training.
	for _, client := range training.Nodes {
		if facts, err := client.Facts(t.Context()); err != nil || len(facts.Running) > 0 {
			t.Errorf("node %d runs %v, %v; want nothing", client.Node(), facts.Running, err)
		}
	}
}

// The step decides while nothing reads what the ranks print.
func TestOutputThatNothingReads(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	ctx, end := context.WithCancel(t.Context())
	step := &cobra.Command{Use: "train", RunE: func(cmd *cobra.Command, _ []string) error {
		defer end()
		training, _, _ := newTraining(t, "yes | head -c 3000000; exit 3")
		training.Out, training.Log = command.Output(cmd), command.Log(cmd)
		_, err := training.Attempt(cmd.Context())
		return err
	}}
	if code := command.Run(ctx, step, nil, writer, io.Discard); code != command.Failed {
		t.Errorf("exit code %d, want %d", code, command.Failed)
	}
}

func TestTrainingNamesTheCause(t *testing.T) {
	// Node 1 loses its peer and exits at once. The error is node 0's, and node 0 is slow to end.
	printed := filepath.Join(t.TempDir(), "printed")
	training, _, _ := newTraining(t, `
if [ $NODE_RANK = 1 ]; then
  until [ -e '`+printed+`' ]; do sleep 0.02; done
  printf 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nRuntimeError: Connection closed by peer [10.0.0.1]\n'
  exit 1
fi
printf 'Traceback (most recent call last):\n  File "train.py", line 9, in step\nZeroDivisionError: division by zero\n'
touch '`+printed+`'
sleep 1
exit 5`)
	_, err := training.Attempt(t.Context())
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
	started := filepath.Join(t.TempDir(), "started")
	training, _, _ := newTraining(t, `[ $NODE_RANK = 0 ] && touch '`+started+`' && exec sleep 1000; until [ -e '`+started+
		`' ]; do sleep 0.02; done; exit 3`)
	_, err := training.Attempt(t.Context())
	if fail.ReasonOf(err) != fail.RankFailed || !strings.Contains(err.Error(), "rank 1 on node 1 exited with 3") {
		t.Errorf("got %v, want rank 1 with 3", err)
	}
	ended := make([]time.Time, 2)
	for node, client := range training.Nodes {
		status, err := over(t, client)
		if err != nil || status.State == agent.Running || len(status.Ranks) != 1 {
			t.Fatalf("node %d: %s with ranks %+v, %v; want it over, with one rank", node, status.State, status.Ranks, err)
		}
		ended[node] = status.Ranks[0].Ended
	}
	// The promise counts from the failure, not from the start of the ranks.
	const timeForTheRestToEnd = 10 * time.Second
	if took := ended[0].Sub(ended[1]); took > timeForTheRestToEnd {
		t.Errorf("the rest was stopped after %s, want within %s", took, timeForTheRestToEnd)
	}
}

// over waits until the node's part of the job has ended, and returns its status. A busy node is told to stop, and ends later
// than the step.
func over(t *testing.T, client *agent.Client) (last agent.JobStatus, err error) {
	t.Helper()
	err = client.WatchJob(t.Context(), "job", func(s agent.JobStatus) error { last = s; return nil })
	return last, err
}

func TestTrainingThatNoNodeCanStart(t *testing.T) {
	training, _, agents := newTraining(t, `exec sleep 1000`)
	if err := os.Remove(filepath.Join(agents[1].Config.Paths.Workspace, "train.sh")); err != nil {
		t.Fatal(err)
	}
	_, err := training.Attempt(t.Context())
	if got := fail.ReasonOf(err); got != fail.ScriptNotFound {
		t.Errorf("got %s: %v, want ScriptNotFound", got, err)
	}
	// The other node's part of the job may have started before the step told it to stop.
	if err := agents[0].Client.WatchJob(t.Context(), "job", func(agent.JobStatus) error { return nil }); err != nil && !agent.IsNotFound(err) {
		t.Error(err)
	}
}

func TestTrainingTimeout(t *testing.T) {
	training, _, agents := newTraining(t, `touch up; [ $NODE_RANK = 1 ] && exit 0; exec sleep 1000`)
	began := time.Now()
	_, err := timeOut(t, training, agents, func() {
		if _, err := over(t, agents[1].Client); err != nil {
			t.Error(err)
		}
		for {
			status, err := agents[0].Client.Job(t.Context(), "job")
			if err != nil || status.Quiet > time.Since(began)/2 {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	for _, want := range []string{"it had not ended after", "; no rank had printed or measured anything for ",
		"; rank 1 on node 1 exited with 0 after "} {
		if fail.ReasonOf(err) != fail.TrainingTimeout || !strings.Contains(err.Error(), want) {
			t.Errorf("got %s: %v, want TrainingTimeout with %q", fail.ReasonOf(err), err, want)
		}
	}
}

// A rank can fail and not end: its other threads, or the peers that it waits for at exit, hold its process.
func TestTimedOutAfterAnError(t *testing.T) {
	stopping := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const driver = "Found no NVIDIA driver on your system."
	noDriver := &agent.PythonError{Seen: stopping.Add(-24 * time.Second), Type: "RuntimeError", Message: driver, File: "train.py", Line: 14,
		Traceback: []string{"Traceback (most recent call last):", "RuntimeError: " + driver}}
	sample := &agent.PythonError{Seen: stopping.Add(-time.Minute), Type: "ValueError", Message: "bad sample",
		Traceback: []string{"ValueError: bad sample"}}
	late := &agent.PythonError{Seen: stopping.Add(time.Second), Type: "RuntimeError", Message: "stopped while saving"}
	wrapped := &agent.PythonError{Seen: stopping.Add(-time.Minute), Type: "ValueError", Message: "shapes differ:\n  (3, 4)\n  (4, 3)",
		Traceback: []string{"ValueError: shapes differ:", "  (3, 4)", "  (4, 3)"}}
	ended := func(rank int, p *agent.PythonError, tail ...string) agent.JobStatus {
		return agent.JobStatus{State: agent.Stopped, StopCause: agent.StopDeadline, Started: stopping.Add(-3 * time.Minute), Stopping: stopping,
			Ended: stopping.Add(7 * time.Second), Node: rank, Record: "/record", Ranks: []agent.RankStatus{{Rank: rank, Node: rank,
				Started: stopping.Add(-3 * time.Minute), Stopped: true, Ended: stopping.Add(5 * time.Second),
				Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Tail: tail, Python: p}}}
	}
	const timedOut = "training: it had not ended after 3m0s"
	for _, tc := range []struct {
		name   string
		node1  agent.JobStatus
		reason fail.Reason
		err    string
		next   string
	}{
		{"no GPU", ended(1, noDriver, noDriver.Traceback...), fail.RankFailed,
			"training: rank 1 on node 1 failed: RuntimeError: Found no NVIDIA driver on your system. (train.py:14); its process had not ended " +
				"when the training's time was over, 24s later", "torch sees no GPU"},
		{"a warning at exit", ended(1, noDriver, append(noDriver.Traceback,
			"[rank1]:[W102 03:04:00.000000000 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called")...),
			fail.RankFailed, "Found no NVIDIA driver on your system. (train.py:14); its process had not ended", "torch sees no GPU"},
		{"a message of several lines", ended(1, wrapped, wrapped.Traceback...), fail.RankFailed, "1m0s later", "rank-1.log"},
		{"an error that the script handled", ended(1, sample, "ValueError: bad sample", "step 7 loss 0.5"), fail.TrainingTimeout, timedOut,
			"give it more time"},
		{"an error of the end itself", ended(1, late, "RuntimeError: stopped while saving"), fail.TrainingTimeout, timedOut, "give it more time"},
		{"no error", ended(1, nil, "step 7 loss 0.5"), fail.TrainingTimeout, timedOut, "give it more time"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			training := &Training{Spec: agent.JobSpec{Nodes: 2, RanksPerNode: 1}, Deps: Deps{Clients: &kube.Clients{Namespace: "ns"}}}
			training.Timeout = 3 * time.Minute
			_, err := training.judge().verdict([]agent.JobStatus{ended(0, nil, "step 7 loss 0.5"), tc.node1})
			if fail.ReasonOf(err) != tc.reason || !strings.Contains(err.Error(), tc.err) || !strings.Contains(fail.NextOf(err), tc.next) {
				t.Errorf("got %s: %v (%s), want %s: %s (%s)", fail.ReasonOf(err), err, fail.NextOf(err), tc.reason, tc.err, tc.next)
			}
		})
	}
}

func TestTimedOut(t *testing.T) {
	stopped := func(quiet time.Duration) agent.JobStatus {
		return agent.JobStatus{State: agent.Stopped, StopCause: agent.StopDeadline, Quiet: quiet}
	}
	for _, tc := range []struct {
		name     string
		run      string
		took     time.Duration
		statuses []agent.JobStatus
		err      string
		next     string
	}{
		{"slow", "", 40 * time.Minute, []agent.JobStatus{stopped(9 * time.Minute), stopped(time.Second)},
			"training: it had not ended after 40m0s", "give it more time with --timeout"},
		{"slow, in a run", "nightly", 40*time.Minute + 10*time.Second, []agent.JobStatus{stopped(time.Second)},
			"training: it had not ended after 40m0s",
			"mlenv run --resume-from nightly --timeout=DURATION -n ns   # more time; tkn needs --pipeline-timeout too"},
		{"silent", "nightly", 24 * time.Hour, []agent.JobStatus{stopped(12 * time.Minute), stopped(11 * time.Minute)},
			"training: it had not ended after 24h0m0s; no rank had printed or measured anything for 11m0s",
			"start it again, and while it is silent look for the rank that the others wait for: mlenv doctor"},
		{"silent, and another node has ended", "", 4 * time.Minute, []agent.JobStatus{stopped(2 * time.Minute), {State: agent.Exited}},
			"training: it had not ended after 4m0s; no rank had printed or measured anything for 2m0s",
			"start it again, and while it is silent look for the rank that the others wait for: mlenv doctor"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			training := &Training{Spec: agent.JobSpec{Run: tc.run}, Deps: Deps{Clients: &kube.Clients{Namespace: "ns"}}}
			if tc.run != "" { // the time that the ranks had to save and end is in took
				training.Timeout = tc.took.Truncate(time.Minute)
			}
			err := training.judge().timedOut(tc.statuses, cause.Cause{}, tc.took)
			if fail.ReasonOf(err) != fail.TrainingTimeout || err.Error() != tc.err || fail.NextOf(err) != tc.next {
				t.Errorf("got %v (%s), want %s (%s)", err, fail.NextOf(err), tc.err, tc.next)
			}
		})
	}
}

// TestDoneMeansEnded: the step stops launchers that outlive their ranks. The training is done when they have ended,
// because until then the nodes refuse the next training.
func TestDoneMeansEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped := make(chan struct{})
		var once sync.Once
		told := func(context.Context, int) (net.Conn, error) {
			once.Do(func() { close(stopped) })
			return nil, errors.New("no agent")
		}
		deps := Deps{Clients: &kube.Clients{}, Log: slog.New(slog.DiscardHandler)}
		training := &Training{Deps: deps, Spec: agent.JobSpec{Launcher: agent.Command, Nodes: 2}, Nodes: nodes.Set{
			agent.NewClient(0, "", agent.Credentials{}, told), agent.NewClient(1, "", agent.Credentials{}, told),
		}}
		events, ended := make(chan event), make(chan error, 1)
		go func() {
			_, err := training.wait(t.Context(), training.course(time.Time{}), events)
			ended <- err
		}()
		report := func(state agent.JobState) {
			for node := range 2 {
				ranks := []agent.RankStatus{{Rank: node, Node: node, Ended: time.Now()}}
				events <- jobs.Event{Node: node, Status: agent.JobStatus{Node: node, State: state, Ranks: ranks}}
			}
		}
		report(agent.Running)
		<-stopped
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("it was done (%v) while the launchers ran", err)
		default:
		}
		report(agent.Stopped)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestInterruptedTrainingGoesOn(t *testing.T) {
	training, out, agents := newTraining(t,
		`for i in $(seq 1 50); do echo line $i; done; while [ ! -e go ]; do sleep 0.05; done; for i in $(seq 51 100); do echo line $i; done`)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := training.Attempt(ctx); ended <- err }()
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
	// A step that attaches afterwards sees every line once, in order.
	again := &locked.Buffer{}
	training.Out, training.Log = again, command.TextLog(again)
	if _, err := training.Attempt(t.Context()); err != nil {
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

// TestInterruptedMeansEnded: Ctrl-C waits for ranks that first save something, so that the user's next command finds the
// nodes free.
func TestInterruptedMeansEnded(t *testing.T) {
	training, out, _ := newTraining(t, `trap 'sleep 0.5; exit 3' TERM; echo up; while :; do sleep 0.05; done`)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := training.Attempt(ctx); ended <- err }()
	for !strings.Contains(out.String(), "[0 -] up\n") || !strings.Contains(out.String(), "[1 -] up\n") {
		select {
		case err := <-ended:
			t.Fatalf("it ended early: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	interrupt()
	<-ended
	if err := training.interrupted(ctx); fail.ReasonOf(err) != fail.Cancelled ||
		!strings.Contains(out.String(), "until its ranks have ended") {
		t.Errorf("got %v, output %q; want Cancelled, and what it waits for", err, out)
	}
	for _, client := range training.Nodes {
		if status, err := client.Job(t.Context(), "job"); err != nil || status.State != agent.Stopped {
			t.Errorf("node %d: %s, %v; want it stopped", client.Node(), status.State, err)
		}
	}
}

func TestLostNodeEndsTheTraining(t *testing.T) {
	for _, tc := range []struct {
		name    string
		deleted bool
		// answer is node 1's answer to a watch after the node is lost.
		answer func(http.ResponseWriter, *http.Request)
		want   string
	}{
		{"its pod is gone", true, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			"node 1 is gone: its pod was deleted"},
		{"its storage is new", false, http.NotFound, "node 1 is gone: its agent does not know the job any more"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			training, _, agents := newTraining(t, `exec sleep 1000`)
			started := &reports{message: "The first rank started", call: make(chan struct{})}
			late := &reports{message: "Not all output has arrived", call: make(chan struct{})}
			training.Log = slog.New(slog.NewMultiHandler(started, late))
			if tc.deleted {
				training.Clients.Kube = fake.NewClientset()
			}
			agents[1].Wrap(func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if strings.Contains(r.URL.Path, "/logs/") { // a lost node sends nothing, and ends no connection
						<-r.Context().Done()
						return
					}
					if !strings.HasSuffix(r.URL.Path, "/watch") {
						next.ServeHTTP(w, r)
						return
					}
					ctx, cancel := context.WithCancel(r.Context())
					defer cancel()
					select {
					case <-started.call:
						tc.answer(w, r)
						return
					default:
					}
					go func() {
						select {
						case <-started.call:
							cancel()
						case <-ctx.Done():
						}
					}()
					next.ServeHTTP(w, r.WithContext(ctx))
				})
			})
			_, err := training.Attempt(t.Context())
			if fail.ReasonOf(err) != fail.NodeLost || !strings.Contains(err.Error(), tc.want) || fail.NextOf(err) == "" {
				t.Errorf("got %s: %v; want NodeLost with %q", fail.ReasonOf(err), err, tc.want)
			}
			if status, err := over(t, agents[0].Client); err != nil || status.State == agent.Running {
				t.Errorf("node 0: %s, %v; want it stopped", status.State, err)
			}
			select {
			case <-late.call:
				t.Error("the step waited for the output of the lost node")
			default:
			}
		})
	}
}

// A lost node does not report, so the step stops waiting when all other nodes have reported.
func TestOverWithALostNode(t *testing.T) {
	gone, failed := fail.Becausef(fail.NodeLost, "gone"), fail.Becausef(fail.RankFailed, "failed")
	for name, tc := range map[string]struct {
		states  []agent.JobState
		lost    []int
		failure error
		want    bool
	}{
		"all have reported":                  {[]agent.JobState{agent.Stopped, agent.Exited}, nil, nil, true},
		"one has not":                        {[]agent.JobState{agent.Stopped, agent.Running}, nil, nil, false},
		"one is lost":                        {[]agent.JobState{agent.Stopped, agent.Running}, []int{1}, gone, true},
		"one is lost after another failure":  {[]agent.JobState{agent.Stopped, agent.Running}, []int{1}, failed, true},
		"one is lost before it said a thing": {[]agent.JobState{agent.Stopped, ""}, []int{1}, gone, true},
		"one is lost, another runs":          {[]agent.JobState{agent.Running, agent.Running}, []int{1}, gone, false},
		"both are lost":                      {[]agent.JobState{agent.Running, agent.Running}, []int{0, 1}, gone, true},
		"one runs after another failure":     {[]agent.JobState{agent.Stopped, agent.Running}, nil, failed, false},
	} {
		var statuses []agent.JobStatus
		for _, state := range tc.states {
			statuses = append(statuses, agent.JobStatus{State: state})
		}
		c := &course{statuses: statuses, failure: tc.failure, lost: map[int]bool{}}
		for _, node := range tc.lost {
			c.lost[node] = true
		}
		if got := c.over(); got != tc.want {
			t.Errorf("%s: over is %t, want %t", name, got, tc.want)
		}
	}
}

// A launcher that fails, for example because its port is in use, has no ranks. The step stops the other nodes after it.
func TestLauncherFails(t *testing.T) {
	refuse := func(context.Context, int) (net.Conn, error) { return nil, errors.New("no agent") }
	training := &Training{Deps: Deps{Clients: &kube.Clients{}}, Spec: agent.JobSpec{Launcher: agent.Torchrun, RanksPerNode: 2, Nodes: 2},
		Nodes: nodes.Set{
			agent.NewClient(0, "", agent.Credentials{}, refuse), agent.NewClient(1, "", agent.Credentials{}, refuse),
		}}
	q, err := training.judge().verdict([]agent.JobStatus{
		{Node: 0, State: agent.Exited, Launcher: agent.Exit{Code: 1}},
		{Node: 1, State: agent.Stopped, StopReason: "the launcher of node 0 ended"},
	})
	if q == nil {
		t.Fatalf("got %v, want a question about the launcher", err)
	}
	err = training.explain(t.Context(), *q)
	if fail.ReasonOf(err) != fail.RankFailed ||
		!strings.Contains(err.Error(), "launcher torchrun of node 0 exited with 1 and started 0 of 2 ranks") {
		t.Errorf("got %s: %v, want RankFailed for node 0's launcher", fail.ReasonOf(err), err)
	}
}

// reports is a log handler that closes call at the first message that begins with message.
type reports struct {
	message string
	call    chan struct{}
	once    sync.Once
}

func (r *reports) Enabled(context.Context, slog.Level) bool { return true }
func (r *reports) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *reports) WithGroup(string) slog.Handler            { return r }
func (r *reports) Handle(_ context.Context, record slog.Record) error {
	if strings.HasPrefix(record.Message, r.message) {
		r.once.Do(func() { close(r.call) })
	}
	return nil
}

// Package jobs decides how long a node may be silent.
func TestSilentNodeIsLost(t *testing.T) {
	training := &Training{hosts: map[int]string{1: "gpu-7"}}
	err := training.lost(1, fail.Becausef(fail.AgentUnreachable, "the agent of node 1 has not answered for 2m0s: no route to host"))
	const want = "node 1, on Kubernetes node gpu-7, is gone: its agent has not answered for 2m0s"
	if fail.ReasonOf(err) != fail.NodeLost || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want NodeLost with %q", err, want)
	}
}

func TestClusterPods(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-1", UID: "one"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		change(p)
		return p
	}
	for _, tc := range []struct {
		name   string
		change func(*corev1.Pod) // nil for no pod
		want   string            // "" if the node may return
	}{
		{"it runs", func(*corev1.Pod) {}, ""},
		{"deleted", nil, "its pod was deleted"},
		{"recreated", func(p *corev1.Pod) { p.UID = "two" }, "deleted and recreated"},
		{"being deleted", func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Now()}, []string{"x"} },
			"being deleted"},
		{"evicted", func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }, "its pod has ended: Evicted"},
		{"ended", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "its pod has ended"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset()
			if tc.change != nil {
				client = fake.NewClientset(pod(tc.change))
			}
			training := &Training{Deps: Deps{Clients: &kube.Clients{Kube: client, Namespace: "ns"}}, Options: Options{Name: "env"},
				uids: map[int]types.UID{1: "one"}, hosts: map[int]string{1: "gpu-7"}}
			err := training.podLost(t.Context(), 1)
			if tc.want == "" && err != nil || tc.want != "" &&
				(fail.ReasonOf(err) != fail.NodeLost || !strings.Contains(err.Error(), "node 1, on Kubernetes node gpu-7, is gone: ") ||
					!strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// The agent of a new container may answer before the kubelet reports how the old container ended.
func TestTerminationIsReportedLate(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-1", UID: "one"}}
	client := fake.NewClientset(pod)
	client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		events := watch.NewFakeWithChanSize(1, false)
		ended := pod.DeepCopy()
		ended.Status.ContainerStatuses = []corev1.ContainerStatus{{LastTerminationState: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137},
		}}}
		events.Modify(ended)
		return true, events, nil
	})
	training := &Training{Deps: Deps{Clients: &kube.Clients{Kube: client, Namespace: "ns"}}, Options: Options{Name: "env"}}
	err := training.restarted(t.Context(), 1)
	if fail.ReasonOf(err) != fail.OutOfMemory || !strings.Contains(err.Error(), "exit code 137") {
		t.Errorf("got %v, want %s with exit code 137", err, fail.OutOfMemory)
	}
}

// A rank can write the record that its agent reads.
func TestForgedStatus(t *testing.T) {
	training, _, agents := newTraining(t, `exec sleep 1000`)
	agents[1].Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/watch") {
				next.ServeHTTP(w, r)
				return
			}
			_ = json.NewEncoder(w).Encode(agent.JobStatus{Node: 99, State: agent.Exited, Spec: training.Spec, Ranks: []agent.RankStatus{
				{Rank: 0, Node: 0, Ended: time.Now(), Exit: agent.Exit{Code: 7}}, {Rank: 1, Node: 99, Ended: time.Now(), Exit: agent.Exit{Code: 3}},
			}})
		})
	})
	_, err := training.Attempt(t.Context())
	if fail.ReasonOf(err) != fail.RankFailed || !strings.Contains(err.Error(), "rank 1 on node 1 exited with 3") {
		t.Errorf("got %v, want rank 1 on node 1", err)
	}
}

// If a launcher ends before its ranks have started, the training fails, because the other nodes would wait for them.
func TestLauncherThatEndsEarly(t *testing.T) {
	training := judge{spec: agent.JobSpec{Launcher: agent.Torchrun, Nodes: 2, RanksPerNode: 2}}
	if why, certain := training.failing(agent.JobStatus{Node: 1, State: agent.Exited}); !certain ||
		!strings.Contains(why, "node 1 ended before") {
		t.Errorf("got %q, %t; want a certain failure", why, certain)
	}
}

func FuzzStatuses(f *testing.F) {
	f.Add([]byte(`{"node":99,"state":"exited","ranks":[{"rank":1,"node":99,"ended":"2026-01-02T03:04:05Z","exit":{"code":3}}]}`), 2, 1)
	f.Add([]byte(`{"state":"stopped","stopCause":"deadline","ranks":[{"rank":-1}]}`), 0, 0)
	f.Add([]byte(`{"state":"exited","nccl":{},"ranks":[{"exit":{"signal":"SIGKILL","outOfMemory":true}}]}`), 1, 1)
	f.Fuzz(func(t *testing.T, record []byte, perNode, node int) {
		var status agent.JobStatus
		if json.Unmarshal(record, &status) != nil {
			return
		}
		node, perNode = node&1, 1+perNode&7
		training := judge{spec: agent.JobSpec{Launcher: agent.Torchrun, RanksPerNode: perNode, Nodes: 2}}
		statuses := make([]agent.JobStatus, 2)
		status.Spec = training.spec
		if status.Confine("job", node) != nil {
			return
		}
		statuses[node] = status
		for _, rank := range statuses[node].Ranks {
			if rank.Node != node || rank.Rank/perNode != node {
				t.Errorf("node %d of %d ranks has rank %d of node %d", node, perNode, rank.Rank, rank.Node)
			}
		}
		training.failing(statuses[node])
		if q, err := training.verdict(statuses); (q == nil && err == nil) != training.succeeded(statuses) {
			t.Errorf("the question is %v, the error is %v", q, err)
		}
	})
}

// retried returns the step in a retry by Tekton, with the receipt that a first attempt of the step, or whoever ended the run, has left.
func retried(t *testing.T, write func(kubernetes.Interface) error) (*Training, *locked.Buffer) {
	t.Helper()
	out, clients := &locked.Buffer{}, &kube.Clients{Kube: fake.NewClientset(), Tekton: tektonfake.NewSimpleClientset(), Namespace: "ns"}
	if err := write(clients.Kube); err != nil {
		t.Fatal(err)
	}
	return &Training{Deps: Deps{Clients: clients, Log: command.TextLog(out)},
		Options: Options{Name: "env", Run: run.Flags{Name: "run", UID: "uid", Task: "train"}}}, out
}

// A failure is final: the retried step reports it without contacting the nodes, by what the first attempt noted in the receipt.
func TestEarlierVerdict(t *testing.T) {
	verdicts := map[fail.Reason]fail.Reason{fail.Cancelled: "", fail.AgentUnreachable: "", fail.EnvironmentMissing: ""}
	for _, reason := range []fail.Reason{
		fail.RankFailed, fail.OutOfMemory, fail.TrainingTimeout, fail.TransportWrong, fail.NodeLost, fail.ContainerRestarted,
		fail.ContainerFailed, fail.ScriptNotFound, fail.InvalidInput, fail.NoRendezvous, fail.StopCondition,
	} {
		verdicts[reason] = reason
	}
	for reason, want := range verdicts {
		a, out := retried(t, func(client kubernetes.Interface) error {
			first := &kube.Clients{Kube: client, Tekton: tektonfake.NewSimpleClientset(), Namespace: "ns"}
			t1 := &Training{journal: receipt.NewWriter(t.Context(), first, slog.New(slog.DiscardHandler),
				run.Flags{Name: "run", UID: "uid", Task: "train"}, "env")}
			active := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "run", UID: "uid"}}
			_, err := first.Tekton.TektonV1().PipelineRuns("ns").Create(t.Context(), active, metav1.CreateOptions{})
			t1.noteEnd(t.Context(), Result{Metrics: `{"step":7}`}, fail.Becausef(reason, "training: rank 3"))
			return err
		})
		result, err := a.earlier(t.Context())
		if want != "" &&
			(!command.Printed(err) ||
				!strings.HasSuffix(out.String(), fmt.Sprintf("the failure of the first attempt is final, %s: training: rank 3\n", want))) {
			t.Errorf("after %q: %q and %v, want one line that repeats the failure", reason, out, err)
		}
		if want == "" && err != nil || want != "" && (fail.ReasonOf(err) != want || err.Error() != "training: rank 3" ||
			result.Metrics != `{"step":7}`) {
			t.Errorf("after %q: got %v, metrics %q; want %q", reason, err, result.Metrics, want)
		}
	}
}

// The reaper may have written the receipt meanwhile. The step of another task or run finds no failure, nor does one whose receipt was
// deleted.
func TestVerdictOutlivesThePod(t *testing.T) {
	gone := fail.Becausef(fail.NodeLost, "training: node 1 is gone")
	begun := receipt.Start{Run: "run", Namespace: "ns", RunUID: "uid", Environment: "env"}
	note := func(s receipt.Start, task string, final bool) func(kubernetes.Interface) error {
		return func(client kubernetes.Interface) error {
			return receipt.Note(t.Context(), client, s, receipt.Entry{Task: task, Status: run.Failed, Reason: fail.NodeLost, Message: gone.Error(),
				Final: final, Metrics: json.RawMessage(`{"step":7}`)})
		}
	}
	write := func(uid string) func(kubernetes.Interface) error {
		return func(client kubernetes.Interface) error {
			return receipt.Write(t.Context(), client, receipt.Receipt{Run: "run", RunUID: uid, Namespace: "ns", Verdict: receipt.Failed,
				Reason: fail.NodeLost, Message: gone.Error(), Metrics: json.RawMessage(`{"step":7}`)})
		}
	}
	other := begun
	other.RunUID = "another"
	for name, tc := range map[string]struct {
		write func(kubernetes.Interface) error
		want  fail.Reason
	}{
		"noted by the first attempt": {note(begun, "train", true), fail.NodeLost},
		"not final":                  {note(begun, "train", false), ""},
		"another task":               {note(begun, "train-again", true), ""},
		"another run of the name":    {note(other, "train", true), ""},
		"a receipt alone":            {write("uid"), fail.NodeLost},
		"another run's receipt":      {write("another"), ""},
		"the receipt was deleted":    {func(kubernetes.Interface) error { return nil }, ""},
		"the first attempt was evicted": {func(client kubernetes.Interface) error {
			return receipt.BeginJournal(t.Context(), client, begun)
		}, ""},
	} {
		a, _ := retried(t, tc.write)
		again, err := a.earlier(t.Context())
		if tc.want == "" && err != nil || tc.want != "" && (fail.ReasonOf(err) != tc.want || err.Error() != gone.Error() ||
			again.Metrics != `{"step":7}`) {
			t.Errorf("%s: got %v, metrics %q; want %q", name, err, again.Metrics, tc.want)
		}
	}
}

// If another holder takes the environment, the step stops the training and reports the reason.
func TestLostEnvironment(t *testing.T) {
	training, out, agents := newTraining(t, `trap 'exit 143' TERM; echo holds; while :; do sleep 0.05; done`)
	held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("uid")}}
	active := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "run", UID: "uid"}}
	clients := &kube.Clients{Kube: fake.NewClientset(held), Tekton: tektonfake.NewSimpleClientset(active), Namespace: "ns"}
	training.Clients, training.Run = clients, run.Flags{Name: "run", UID: "uid", Task: "train"}
	ctx, lose := context.WithCancelCause(t.Context())
	defer lose(nil)
	go training.watchLease(ctx, lose)
	ended := make(chan error, 1)
	go func() { _, err := training.Attempt(ctx); ended <- err }()
	for !strings.Contains(out.String(), "[0 -] holds\n") || !strings.Contains(out.String(), "[1 -] holds\n") {
		select {
		case err := <-ended:
			t.Fatalf("it ended early: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	stolen := held.DeepCopy()
	stolen.Spec.HolderIdentity = new("thief")
	if _, err := clients.Kube.CoordinationV1().Leases("ns").Update(t.Context(), stolen, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	<-ended
	if err := training.interrupted(ctx); fail.ReasonOf(err) != fail.EnvironmentMissing || !strings.Contains(err.Error(), "thief") {
		t.Errorf("got %v, want EnvironmentMissing with the thief's name", err)
	}
	for _, node := range agents {
		err := node.Client.WatchJob(t.Context(), "job", func(status agent.JobStatus) error {
			if status.State == agent.Running {
				return nil
			}
			return errStopped
		})
		if !errors.Is(err, errStopped) {
			t.Errorf("node %d: %v, want its ranks stopped", node.Config.Node, err)
		}
	}
}

var errStopped = errors.New("stopped")

// The environment of a run that is deleted goes with it, perhaps before the step gets SIGTERM. What ended is the run.
func TestDeletedRun(t *testing.T) {
	deleted := fail.Becausef(fail.EnvironmentMissing, "looking for environment ns/env: its lease was deleted")
	run1 := func(uid types.UID) *v1.PipelineRun {
		return &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "run", UID: uid}}
	}
	cancelled := run1("uid")
	cancelled.Spec.Status = v1.PipelineRunSpecStatusCancelled
	for _, tc := range []struct {
		name   string
		lost   error
		tekton []runtime.Object
		reason fail.Reason
		says   string
	}{
		{"the lease goes first", deleted, nil, fail.Cancelled, "training: the run was deleted"},
		{"SIGTERM comes first", nil, nil, fail.Cancelled, "training: the run was deleted"},
		{"a later run has its name", deleted, []runtime.Object{run1("later")}, fail.Cancelled, "training: the run was deleted"},
		{"it was cancelled", deleted, []runtime.Object{cancelled}, fail.Cancelled, "training: pipelinerun run was cancelled"},
		{"the environment alone was deleted", deleted, []runtime.Object{run1("uid")}, fail.EnvironmentMissing, "its lease was deleted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := &locked.Buffer{}
			clients := &kube.Clients{Kube: fake.NewClientset(), Tekton: tektonfake.NewSimpleClientset(tc.tekton...), Namespace: "ns"}
			training := &Training{Deps: Deps{Clients: clients, Log: command.TextLog(out)},
				Options: Options{Name: "env", Run: run.Flags{Name: "run", UID: "uid", Task: "train"}}}
			ctx, lose := context.WithCancelCause(t.Context())
			lose(tc.lost)
			err := training.interrupted(ctx)
			if fail.ReasonOf(err) != tc.reason || !strings.Contains(err.Error(), tc.says) || strings.Contains(out.String(), "Ranks may still run") {
				t.Errorf("got %s: %v, log %s; want %s with %q", fail.ReasonOf(err), err, out, tc.reason, tc.says)
			}
		})
	}
}

// A configuration has the form that the script's parser takes.
func TestDeepSpeedArguments(t *testing.T) {
	const place = "train.py:1"
	for _, tc := range []struct {
		takes      script.Arguments
		args, want string
	}{
		{script.Arguments{}, "", "--deepspeed --deepspeed_config ds.json"},
		{script.Arguments{}, "--steps 5", "--deepspeed --deepspeed_config ds.json --steps 5"},
		{script.Arguments{Added: place}, "--steps 5 --deepspeed", "--deepspeed_config ds.json --steps 5 --deepspeed"},
		{script.Arguments{Added: place}, "--deepspeed=true", "--deepspeed_config ds.json --deepspeed=true"},
		{script.Arguments{Added: place, Trainer: place}, "--deepspeed_mpi", "--deepspeed --deepspeed_config ds.json --deepspeed_mpi"},
		{script.Arguments{Config: place}, "--lr 1", "--deepspeed_config ds.json --lr 1"},
		{script.Arguments{Config: place, Switch: place}, "", "--deepspeed --deepspeed_config ds.json"},
		{script.Arguments{DashConfig: place}, "--lr 1", "--deepspeed-config ds.json --lr 1"},
		{script.Arguments{DashConfig: place, Switch: place}, "", "--deepspeed --deepspeed-config ds.json"},
		{script.Arguments{DashConfig: place, Added: place}, "", "--deepspeed --deepspeed_config ds.json"},
		{script.Arguments{DashConfig: place, Config: place}, "", "--deepspeed_config ds.json"},
		{script.Arguments{Trainer: place}, "--lr 1", "--deepspeed ds.json --lr 1"},
		{script.Arguments{Trainer: place}, "--deepspeed my.json", "--deepspeed my.json"},
		{script.Arguments{Switch: place}, "", "--deepspeed ds.json"},
	} {
		if got := strings.Join(withDeepSpeed("ds.json", strings.Fields(tc.args), tc.takes), " "); got != tc.want {
			t.Errorf("%+v, arguments %q: got %q, want %q", tc.takes, tc.args, got, tc.want)
		}
	}
}

// TestLauncherAuto: the nodes read the script, and only one that takes --local_rank gets it.
func TestLauncherAuto(t *testing.T) {
	for _, tc := range []struct {
		name, text, config string
		want               agent.Launcher
		says               string
		localRank          bool
	}{
		{"an ordinary script", "parser.add_argument('--lr')", "", agent.Torchrun, "train.py declares no --local_rank", false},
		{"an old one", "parser.add_argument('--local_rank')", "", agent.DeepSpeed, "train.py:1 declares --local_rank", true},
		{"DeepSpeed's", "deepspeed.add_config_arguments(parser)", "", agent.DeepSpeed, "train.py:1 adds DeepSpeed's arguments", false},
		{"with a configuration", "", "ds.json", agent.DeepSpeed, "a DeepSpeed configuration is given", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			training, out, agents := newTraining(t, "")
			training.Spec = agent.JobSpec{Launcher: agent.AutoLauncher, Script: "train.py",
				Tree: agents[0].Sync(map[string]string{"train.py": tc.text})}
			training.DeepSpeedConfig = tc.config
			if err := training.suit(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := training.Spec
			if got.Launcher != tc.want || !strings.HasPrefix(got.LauncherWhy, tc.says) || got.NoLocalRank == tc.localRank ||
				!strings.Contains(out.String(), "Launcher auto is "+string(tc.want)+": "+tc.says) {
				t.Errorf("got %s, %q, without --local_rank %t, and printed %q", got.Launcher, got.LauncherWhy, got.NoLocalRank, out)
			}
		})
	}
}

// Tasks pass variables after a -- of their own, so that no variable is read as a flag.
func TestArguments(t *testing.T) {
	for _, tc := range []struct {
		args, want string // variables | rules | rules after which it is started again | arguments, or the error
	}{
		{"--script=x A=1 -- --steps 5", "A=1 |  |  | --steps 5"},
		{"--script=x -- A=1 -- --steps 5 -- 6", "A=1 |  |  | --steps 5 -- 6"},
		{"--script=x -- -- ", " |  |  | "},
		{"--script=x -- --steps 5", " |  |  | --steps 5"},
		{"--script=x -- --env-secret-dir=/var/run/secrets -- --steps 5", "want KEY=VALUE"},
		{"--script=x RANK=3", "the launcher sets it"},
		{"--script=x --launcher=command --require-rendezvous=fail -- -- -- -- ",
			"--require-rendezvous=fail: the programs of launcher command are not checked"},
		// The Task.
		{"--script=x -- -- -- -- ", " |  |  | "},
		{"--script=x -- A=1 B=2 -- -- -- --steps 5 -- 6", "A=1 B=2 |  |  | --steps 5 -- 6"},
		{"--script=x -- -- loss_is_nan -- no_checkpoint_for_2h -- -- --", "restart-if has rules and max-restarts is 0"},
		{"--script=x --max-restarts=1 -- A=1 -- loss_is_nan gpu_use_<_5%_for_20m -- no_checkpoint_for_2h -- -- --",
			"A=1 | loss is nan, gpu_use < 5% for 20m | no checkpoint for 2h | -- --"},
		{"--script=x -- -- loss_is_inf no_checkpoint -- --stop-if -- ", `--restart-if "--stop-if": want `},
		{"--script=x -- -- loss_is_inf no_checkpoint -- --stop-if -- ", `--stop-if "loss is inf": want `},
		// A user's.
		{"--script=x --stop-if=loss_is_nan --stop-if=no_checkpoint_for_2h A=1 -- --steps", "A=1 | loss is nan, no checkpoint for 2h |  | " +
			"--steps"},
	} {
		cmd := Command()
		words := strings.Fields(tc.args)
		for i := range words {
			words[i] = strings.ReplaceAll(strings.ReplaceAll(words[i], "_", " "), "gpu use", "gpu_use")
		}
		if err := cmd.ParseFlags(words); err != nil {
			t.Fatal(err)
		}
		env, _, _, args := taskArguments(cmd, cmd.Flags().Args())
		err := errors.Join(cmd.ValidateArgs(cmd.Flags().Args()), command.FlagMistakes(cmd.Flags()))
		got := strings.Join([]string{strings.Join(env, " "), cmd.Flag("stop-if").Value.String(), cmd.Flag("restart-if").Value.String(),
			strings.Join(args, " ")}, " | ")
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tc.want) || err == nil && got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.args, got, tc.want)
		}
	}
}

func TestContainerRestartEndsTheTraining(t *testing.T) {
	training, out, agents := newTraining(t, `echo up; exec sleep 1000`)
	ended := make(chan error, 1)
	go func() { _, err := training.Attempt(t.Context()); ended <- err }()
	for !strings.Contains(out.String(), "[1 -] up\n") {
		select {
		case err := <-ended:
			t.Fatalf("it ended early: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	agents[1].Crash("job")
	if err := <-ended; fail.ReasonOf(err) != fail.ContainerRestarted || !strings.Contains(err.Error(), "node 1") {
		t.Errorf("got %s: %v; want ContainerRestarted for node 1", fail.ReasonOf(err), err)
	}
	if status, err := over(t, agents[0].Client); err != nil || status.State == agent.Running {
		t.Errorf("node 0: %s, %v; want it stopped", status.State, err)
	}
}

func TestNotStarted(t *testing.T) {
	training, _, _ := newTraining(t, "exit 0")
	silent := fail.Because(fail.AgentUnreachable, errors.New("connection refused"))
	refused := fail.Because(fail.ScriptNotFound, errors.New("no train.py"))
	for _, tc := range []struct {
		name string
		errs []error
		want fail.Reason
		says string
	}{
		{"all have started", []error{nil, nil}, "", ""},
		{"a node refuses while another one is silent", []error{silent, refused}, fail.ScriptNotFound, "no train.py"},
		{"a node is silent", []error{nil, silent}, fail.NodeLost, "node 1 is gone: its agent has not answered for 2m0s"},
		{"a node is silent and the next one was not waited for", []error{silent, silent}, fail.NodeLost, "node 0 is gone"},
	} {
		err := training.notStarted(tc.errs)
		if err == nil != (tc.want == "") || err != nil && (fail.ReasonOf(err) != tc.want || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %v, want %s and %q", tc.name, err, tc.want, tc.says)
		}
		if on := (onNode{}); tc.want == fail.NodeLost && !errors.As(err, &on) {
			t.Errorf("%s: %T is not of one node, which a restart may leave out", tc.name, err)
		}
	}
}
