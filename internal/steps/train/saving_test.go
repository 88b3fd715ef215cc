// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// timeToSave is the grace of ranks that save in less.
const timeToSave = time.Minute

// savesFor returns a script whose rank on the given node saves for a while when it is stopped, and then exits with 0. The other rank
// saves at once, and exits with an error.
func savesFor(node, seconds string) string {
	return `save() {
  [ $NODE_RANK = ` + node + ` ] && sleep ` + seconds + `
  mkdir -p checkpoints/run/step-7
  echo x > checkpoints/run/step-7/mp_rank_00_model_states.pt
  printf step-7 > checkpoints/run/latest
  [ $NODE_RANK = ` + node + ` ]; exit
}
trap save TERM; touch up; while :; do sleep 0.02; done`
}

// awaitUp waits until every rank has made the file up.
func awaitUp(t *testing.T, agents []*agenttest.Node) {
	t.Helper()
	const timeForRanksToStart = time.Minute
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		have := 0
		for _, node := range agents {
			if _, err := os.Stat(filepath.Join(node.Config.Paths.Workspace, "up")); err == nil {
				have++
			}
		}
		if have == len(agents) {
			return
		}
		if time.Since(began) > timeForRanksToStart {
			t.Fatalf("%d of %d ranks are up", have, len(agents))
		}
	}
}

// timeOut makes an attempt whose time is over when every rank has made the file up, and until, unless it is nil, has returned. A time from
// the start would depend on how fast the machine is.
func timeOut(t *testing.T, training *Training, agents []*agenttest.Node, until func()) (result Result, err error) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		result, err = training.Attempt(t.Context())
	}()
	awaitUp(t, agents)
	if until != nil {
		until()
	}
	training.stop(t.Context(), agent.Stop{Cause: agent.StopDeadline, Reason: "deadline"})
	<-ended
	return result, err
}

// wantSaved checks that the rank of a node saved and exited with 0.
func wantSaved(t *testing.T, node *agenttest.Node) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(node.Config.Paths.Workspace, "checkpoints/run/latest")); err != nil {
		t.Errorf("the rank on node %d did not come to the end of its save: %v", node.Config.Node, err)
	}
}

// The ranks of a node save after the time is over, longer than it takes to give a node up whose peers have failed.
func TestSaveAtTheTimeout(t *testing.T) {
	t.Parallel() // it waits
	training, out, agents := newTraining(t, savesFor("1", "12"))
	training.Spec.Grace = timeToSave
	result, err := timeOut(t, training, agents, nil)
	if fail.ReasonOf(err) != fail.TrainingTimeout {
		t.Errorf("got %v, want TrainingTimeout\n%s", err, out)
	}
	if status := result.Statuses[1]; status.State != agent.Stopped || len(status.Ranks) != 1 || status.Ranks[0].Exit != (agent.Exit{}) {
		t.Errorf("got %+v, want the rank on node 1 to have ended with 0", status)
	}
	wantSaved(t, agents[1])
}

// All ranks save and exit with 0 when the time is over. Their work is not done.
func TestSavedAtTheTimeout(t *testing.T) {
	for _, handler := range []string{`trap 'exit 0' TERM; `, ""} {
		training, out, agents := newTraining(t, handler+`touch up; while :; do sleep 0.02; done`)
		_, err := timeOut(t, training, agents, nil)
		if fail.ReasonOf(err) != fail.TrainingTimeout || strings.Contains(err.Error(), "no rank handled SIGTERM") != (handler == "") {
			t.Errorf("handler %q: got %v, want TrainingTimeout, and whether the program saves\n%s", handler, err, out)
		}
	}
}

// A rank saves for longer after a cancellation than ranks may run after another one has failed.
func TestSaveWhenCancelled(t *testing.T) {
	t.Parallel() // it waits
	training, out, agents := newTraining(t, savesFor("0", "6"))
	training.Spec.Grace = timeToSave
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _, _ = training.Attempt(ctx); close(ended) }()
	awaitUp(t, agents)
	cancel()
	<-ended
	err := training.interrupted(ctx)
	if fail.ReasonOf(err) != fail.Cancelled || !strings.Contains(err.Error(), "saved step-7") {
		t.Errorf("got %v, want Cancelled and the checkpoint\n%s", err, out)
	}
	wantSaved(t, agents[0])
}

// The container of node 1 ends, as when Kubernetes drains its node. The rank of node 0 saves too, and has the same time.
func TestSaveWhenANodeIsDrained(t *testing.T) {
	t.Parallel() // it waits
	training, out, agents := newTraining(t, savesFor("0", "6"))
	ended := make(chan error, 1)
	go func() { _, err := training.Attempt(t.Context()); ended <- err }()
	awaitUp(t, agents)
	agents[1].End()
	if err := <-ended; fail.ReasonOf(err) != fail.NodeLost {
		t.Errorf("got %v, want NodeLost\n%s", err, out)
	}
	wantSaved(t, agents[0])
}

// Two interrupts end the step of a user soon, even if no node answers.
func TestInterruptedTwiceWithoutNodes(t *testing.T) {
	training, out, agents := newTraining(t, "exit 0")
	for _, node := range agents {
		node.End()
	}
	signals := make(chan os.Signal, 1) // else a signal at the wrong moment would end the test's process
	signal.Notify(signals, os.Interrupt)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- training.interrupted(ctx) }()
	for !strings.Contains(out.String(), "Waiting until its ranks have ended") {
		time.Sleep(10 * time.Millisecond)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	const timeUntilTheStepEnds = time.Minute
	select {
	case err := <-ended:
		if fail.ReasonOf(err) != fail.Cancelled || !strings.Contains(out.String(), "Ranks may still run") {
			t.Errorf("got %v, log %s; want Cancelled, and that ranks may still run", err, out)
		}
	case <-time.After(timeUntilTheStepEnds):
		t.Errorf("it still waits after %s, log %s", timeUntilTheStepEnds, out)
	}
}

// The pod of the step ends soon after SIGTERM. What the ranks of a cancelled run still have to save is left to the teardown, unless the
// user does not want to wait.
func TestHandOver(t *testing.T) {
	t.Parallel() // it waits
	for _, now := range []bool{false, true} {
		training, out, agents := newTraining(t, `trap 'sleep 1000' TERM; touch up; while :; do sleep 0.02; done`)
		training.Spec.Grace = timeToSave
		of := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "run", UID: "uid"}}
		of.Spec.Status = v1.PipelineRunSpecStatusCancelledRunFinally
		want, state := "The teardown waits for the ranks", agent.Running
		if now {
			of.Annotations = map[string]string{run.CancelAnnotation: run.CancelNow}
			want, state = "", agent.Stopped
		}
		held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env"}}
		held.Spec.HolderIdentity = new("uid")
		training.Clients.Kube, training.Clients.Tekton = fake.NewClientset(held), tektonfake.NewSimpleClientset(of)
		training.Run = run.Flags{Name: "run", UID: "uid", Task: "train"}
		if _, err := training.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		awaitUp(t, agents)
		began := time.Now()
		err := training.interrupted(t.Context())
		const timeOfAPod = 30 * time.Second
		if took := time.Since(began); took > timeOfAPod || fail.ReasonOf(err) != fail.Cancelled || !strings.Contains(out.String(), want) {
			t.Errorf("now %t: got %v after %s, log %s; want Cancelled within %s, and %q", now, err, took, out, timeOfAPod, want)
		}
		if strings.Contains(out.String(), "Still saving") {
			t.Errorf("log %s, want no countdown beside teardown's", out)
		}
		for _, node := range agents {
			if status, err := node.Client.Job(t.Context(), "job"); err != nil || status.State != state {
				t.Errorf("now %t: node %d is %s, %v; want %s", now, node.Config.Node, status.State, err, state)
			}
		}
		training.stop(t.Context(), agent.Stop{Grace: time.Millisecond, Hasten: true}) // the test is over
	}
}
