// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/locked"
)

// newRestartable returns newTraining with this number of restarts. Its pods stay, and its nodes have no faults.
func newRestartable(t *testing.T, restarts int, script string) (*Training, *locked.Buffer, []*agenttest.Node) {
	t.Helper()
	training, out, agents := newTraining(t, script)
	withoutFaults(agents, func(*agent.Facts) {})
	training.MaxRestarts, training.Network.Mode = restarts, agent.TCP
	training.Spec.Deadline = time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	return training, out, agents
}

func TestRankThatFailsOnce(t *testing.T) {
	training, out, agents := newRestartable(t, 2, `
echo "attempt $MLENV_ATTEMPT of $MLENV_RUN"
[ $NODE_RANK = 0 ] && echo '{"step":4,"steps":9}' >> "$MLENV_METRICS_FILE"
[ $MLENV_ATTEMPT = 1 ] || exit 0
[ $NODE_RANK = 0 ] && exec sleep 1000
until grep -qs . "$OTHER"; do sleep 0.02; done
exit 3`)
	record := filepath.Join(agents[0].Config.Paths.Workspace, ".mlenv", "runs", "job")
	training.Spec.Env = map[string]string{"OTHER": filepath.Join(record, "metrics.jsonl")}
	var events []string
	training.Notify = func(e notify.Event) { events = append(events, fmt.Sprintf("%s %d %s", e.Kind, e.Attempt, e.Reason)) }
	const newPort = 29411
	training.NewPort = func() (int, error) { return newPort, nil }
	if _, err := training.attempts(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if diff := cmp.Diff([]string{"start 1 ", "restart 1 RankFailed"}, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	for _, want := range []string{
		"[1 -] attempt 1 of run\n", "[0 -] attempt 2 of run\n", "[1 -] attempt 2 of run\n",
		"Attempt 1 failed at step 4: training: rank 1 on node 1 exited with 3, want exit code 0; its last line: attempt 1 of run. " +
			"Attempt 2 starts when all nodes answer; 1 restart left after it.",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output %q, want %q in it", out, want)
		}
	}
	status, err := agents[0].Client.Job(t.Context(), "job")
	if err != nil || status.Spec.Attempt() != 2 || status.Record != filepath.Join(record, "attempt-2") {
		t.Fatalf("status %+v, %v; want that of attempt 2", status, err)
	}
	if status.Spec.MasterPort != newPort {
		t.Errorf("the ranks of attempt 2 meet at port %d, want a new one", status.Spec.MasterPort)
	}
	got := status.Spec.Attempts[0]
	if got.Started.IsZero() || got.Ended.Before(got.Started) {
		t.Errorf("attempt 1 took from %s to %s", got.Started, got.Ended)
	}
	got.Started, got.Ended = time.Time{}, time.Time{}
	want := agent.Attempt{Attempt: 1, Reason: "RankFailed",
		Message: "training: rank 1 on node 1 exited with 3, want exit code 0; its last line: attempt 1 of run",
		Symptom: "exited with 3, want exit code 0", Rank: new(1), Node: new(1), First: new(4.0), Last: new(4.0),
		StepTimes: &metrics.Curve{Lines: 1, First: 4, Points: []metrics.Point{{Step: 4}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("attempt 1 (-want +got):\n%s", diff)
	}
	// The first attempt's record survives when a container restarts and reads the records.
	agents[0].End()
	agents[0].Restart()
	if content, err := os.ReadFile(filepath.Join(record, "rank-0.log")); err != nil || string(content) != "attempt 1 of run\n" {
		t.Errorf("the log of attempt 1 is %q, %v", content, err)
	}
	if status, err := agents[0].Client.Job(t.Context(), "job"); err != nil || status.Spec.Attempt() != 2 || status.State != agent.Exited ||
		status.ID != "job" {
		t.Errorf("after the agent's restart: %+v, %v; want attempt 2", status, err)
	}
}

func TestSameErrorTwice(t *testing.T) {
	training, out, _ := newRestartable(t, 5, `[ $NODE_RANK = 1 ] && exit 3; exec sleep 1000`)
	_, err := training.attempts(t.Context())
	if want := "rank 1 on node 1 exited with 3, want exit code 0; not restarted: attempt 1 ended with the same error"; fail.ReasonOf(
		err) != fail.RankFailed || !strings.Contains(err.Error(), want) || fail.NextOf(err) == "" {
		t.Errorf("got %s: %v; want RankFailed with %q\n%s", fail.ReasonOf(err), err, want, out)
	}
	if training.Spec.Attempt() != 2 {
		t.Errorf("it ended in attempt %d, want 2", training.Spec.Attempt())
	}
}

// TestFullDisk: only a disk that is certainly full makes another attempt useless.
func TestFullDisk(t *testing.T) {
	for words, again := range map[string]bool{
		"RuntimeError: [enforce fail at inline_container.cc:659] . unexpected pos 2387758464 vs 2387758376": true,
		"OSError: [Errno 28] No space left on device":                                                       false,
	} {
		training, out, _ := newRestartable(t, 1,
			`[ $MLENV_ATTEMPT = 2 ] && exit 0; [ $NODE_RANK = 0 ] && exec sleep 1000; echo '`+words+`'; exit 1`)
		_, err := training.attempts(t.Context())
		if again && err != nil || !again && (fail.ReasonOf(err) != fail.DiskFull || !strings.Contains(err.Error(), "would not help")) {
			t.Errorf("%s: got %v, want another attempt: %t\n%s", words, err, again, out)
		}
	}
}

func TestWhyFinal(t *testing.T) {
	ended := func(reason fail.Reason, message string, step float64) agent.Attempt {
		a := agent.Attempt{Reason: reason, Symptom: message}
		if step > 0 {
			a.Last = &step
		}
		return a
	}
	byRank := func(rank int, step float64) agent.Attempt {
		a := ended(fail.RankFailed, "exited with 1, want exit code 0", step)
		a.Rank, a.Node = &rank, new(0)
		return a
	}
	for _, tc := range []struct {
		name    string
		earlier []agent.Attempt
		now     agent.Attempt
		want    string // "" if another attempt starts
	}{
		{"a rank failed", nil, byRank(0, 0), ""},
		{"a node is lost", nil, ended(fail.NodeLost, "", 0), ""},
		{"the script is missing", nil, ended(fail.ScriptNotFound, "", 0), "another attempt would not help against ScriptNotFound"},
		{"its time is over", nil, ended(fail.TrainingTimeout, "", 0), "another attempt would not help against TrainingTimeout"},
		{"the same error of another rank", []agent.Attempt{byRank(0, 0)}, byRank(1, 0), "ended with the same error"},
		{"the same error at the same step", []agent.Attempt{byRank(0, 7)}, byRank(0, 7), "ended with the same error at step 7"},
		{"the same error, further on", []agent.Attempt{byRank(0, 7)}, byRank(0, 8), ""},
		{"another error, no further on", []agent.Attempt{ended(fail.OutOfMemory, "", 7)}, byRank(0, 7), "had already reached step 7"},
		{"a container that was killed, no further on", []agent.Attempt{byRank(0, 7)}, ended(fail.ContainerRestarted, "killed", 6), ""},
		{"a container that was killed twice", []agent.Attempt{ended(fail.ContainerRestarted, "", 7)}, ended(fail.ContainerRestarted, "", 6),
			"ended with the same error at step 7"},
		{"another error without metrics", []agent.Attempt{ended(fail.ContainerRestarted, "", 0)}, byRank(0, 0), ""},
		{"two lost nodes", []agent.Attempt{ended(fail.NodeLost, "", 7)}, ended(fail.NodeLost, "", 5), ""},
		{"none is left", []agent.Attempt{ended(fail.NodeLost, "", 1), ended(fail.NodeLost, "", 2), ended(fail.NodeLost, "", 3)}, byRank(0, 9),
			"max-restarts allows 3 restarts"},
	} {
		training := &Training{Options: Options{MaxRestarts: 3}, Spec: agent.JobSpec{Attempts: tc.earlier, Deadline: time.Now().Add(time.Hour)}}
		if got := training.whyFinal(tc.now, false); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
	late := &Training{Options: Options{MaxRestarts: 3}, Spec: agent.JobSpec{Deadline: time.Now().Add(-time.Second)}}
	if got := late.whyFinal(byRank(0, 0), false); got != "the time of the training is over" {
		t.Errorf("after the deadline: got %q", got)
	}
}

// TestSymptomOfAStoppedRank: the rank for which the others waited in vain was only stopped, which is no error that could
// recur.
func TestSymptomOfAStoppedRank(t *testing.T) {
	symptom := func(silent int) string {
		status := agent.JobStatus{}
		for rank := range 3 {
			r := agent.RankStatus{Rank: rank, Started: time.Unix(0, 0), Ended: time.Unix(100, 0), Exit: agent.Exit{Code: 1},
				Tail: []string{"RuntimeError: timed out waiting for a peer"}}
			if rank == silent {
				r.Exit, r.Stopped, r.Tail = agent.Exit{Signal: "SIGTERM"}, true, nil
			}
			status.Ranks = append(status.Ranks, r)
		}
		statuses := []agent.JobStatus{status}
		found, ok := cause.Find(statuses)
		if !ok || found.Waiting == nil || found.Rank.Rank != silent {
			t.Fatalf("found %+v, want a finding that others waited for rank %d", found, silent)
		}
		return (&Training{}).failed(Result{Statuses: statuses}, found.Err(cause.Job{})).Symptom
	}
	if first, second := symptom(0), symptom(2); first == second || !strings.Contains(second, "waited for rank 2") {
		t.Errorf("symptoms %q and %q, want one that names the rank", first, second)
	}
}

func TestCancelledBetweenAttempts(t *testing.T) {
	training, out, agents := newRestartable(t, 2, `[ $NODE_RANK = 1 ] && exit 3; exec sleep 1000`)
	ctx, cancel := context.WithCancel(t.Context())
	training.Notify = func(e notify.Event) {
		if e.Kind == notify.Restart {
			cancel()
		}
	}
	if _, err := training.attempts(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled\n%s", err, out)
	}
	for _, node := range agents {
		if status, err := node.Client.Job(t.Context(), "job"); err != nil || status.Spec.Attempt() != 1 || status.State == agent.Running {
			t.Errorf("node %d: attempt %d is %s, %v; want the first, over", node.Config.Node, status.Spec.Attempt(), status.State, err)
		}
	}
}

func TestNodesThatStayAway(t *testing.T) {
	training, _, agents := newRestartable(t, 2, `[ $NODE_RANK = 1 ] && exit 3; exec sleep 1000`)
	away := readyPod(agents[1], "1", "")
	away.Status.Conditions = nil
	environment := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env"}}
	training.Notify = func(e notify.Event) {
		if e.Kind == notify.Restart { // the failed attempt is over, and the nodes are asked next
			training.Clients.Kube = fake.NewClientset(readyPod(agents[0], "0", ""), away, environment)
			training.Spec.Deadline = time.Now().Add(time.Second)
		}
	}
	_, err := training.attempts(t.Context())
	if fail.ReasonOf(err) != fail.RankFailed {
		t.Errorf("got %v, want the error of the rank", err)
	}
	for _, want := range []string{"exited with 3, want exit code 0; not restarted: ", "the nodes were not back after "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// TestStepComesBackInSecondAttempt: a retried step knows nothing about the attempts.
func TestStepComesBackInSecondAttempt(t *testing.T) {
	training, out, agents := newRestartable(t, 2, `echo $MLENV_ATTEMPT >> starts; echo "attempt $MLENV_ATTEMPT"
[ $MLENV_ATTEMPT = 2 ] || exit 3
while [ ! -e go ]; do sleep 0.02; done`)
	deadline, read := training.Spec.Deadline, journalOf(t, training)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := training.attempts(ctx); ended <- err }()
	for !strings.Contains(out.String(), "[0 -] attempt 2\n") || !strings.Contains(out.String(), "[1 -] attempt 2\n") {
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
	if failed := read().Entries[0].Failed; failed == nil || failed.Attempt != 1 || failed.Reason != fail.RankFailed {
		t.Errorf("the journal has attempt %+v, want the first, RankFailed", failed)
	}
	for _, node := range agents {
		if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "go"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	again := &locked.Buffer{}
	training.Out, training.Log, training.Spec.Attempts, training.Spec.Deadline = again, command.TextLog(again), nil, deadline.Add(time.Hour)
	if _, err := training.attempts(t.Context()); err != nil || !strings.Contains(again.String(), "Attached to job job") {
		t.Errorf("%v; output %q, want it attached", err, again)
	}
	if !training.Spec.Deadline.Equal(deadline) || training.Spec.Attempt() != 2 {
		t.Errorf("attempt %d until %s, want 2 until %s", training.Spec.Attempt(), training.Spec.Deadline, deadline)
	}
	for _, node := range agents {
		if starts, err := os.ReadFile(filepath.Join(node.Config.Paths.Workspace, "starts")); err != nil ||
			strings.Count(string(starts), "2\n") != 1 {
			t.Errorf("node %d started attempts %q, %v; want the second once", node.Config.Node, starts, err)
		}
	}
}

// The kubelet stops a drained node's container and its ranks. The ranks may exit as if they had succeeded.
func TestContainerToldToEnd(t *testing.T) {
	training, out, agents := newRestartable(t, 1,
		`[ $MLENV_ATTEMPT = 1 ] || exit 0; trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done`)
	ended := make(chan error, 1)
	go func() { _, err := training.attempts(t.Context()); ended <- err }()
	for !strings.Contains(out.String(), "[1 -] up\n") || !strings.Contains(out.String(), "[0 -] up\n") {
		select {
		case err := <-ended:
			t.Fatalf("it ended early: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	agents[1].End()
	agents[1].Restart()
	if err := <-ended; err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(training.Spec.Attempts) == 0 {
		t.Fatal(out)
	}
	first := training.Spec.Attempts[0]
	if first.Reason != fail.NodeLost || first.Node == nil || *first.Node != 1 ||
		!strings.Contains(first.Message, "its container was stopped") {
		t.Errorf("attempt 1 ended with %+v, want NodeLost for node 1", first)
	}
}

// withoutFaults makes agents resolve the name of node 0, although a test has no DNS, and report healthy GPUs. change may
// report faults.
func withoutFaults(agents []*agenttest.Node, change func(*agent.Facts)) {
	for _, node := range agents {
		node.Wrap(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/v1/resolve":
					_ = json.NewEncoder(w).Encode(agent.Resolution{Addresses: map[string][]string{"env-0.env-headless.ns.svc": {agents[0].Config.PodIP}}})
				case "/v1/facts":
					real := httptest.NewRecorder()
					next.ServeHTTP(real, r)
					var facts agent.Facts
					_ = json.Unmarshal(real.Body.Bytes(), &facts)
					facts.GPUs, facts.GPUProblem = make([]agent.GPU, facts.GPUsExpected), ""
					change(&facts)
					_ = json.NewEncoder(w).Encode(facts)
				default:
					next.ServeHTTP(w, r)
				}
			})
		})
	}
}

func readyPod(node *agenttest.Node, uid, host string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: node.Config.Pod, UID: types.UID(uid),
		Labels: objects.Labels("env")}, Spec: corev1.PodSpec{NodeName: host},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: node.Config.PodIP,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{
				{LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1}}}}}}
}

// TestGather: the environment's second pod goes away, and returns without the settings of its network.
func TestGather(t *testing.T) {
	training, _, agents := newTraining(t, "exit 0")
	withoutFaults(agents, func(*agent.Facts) {})
	pod := func(node int) *corev1.Pod { return readyPod(agents[node], fmt.Sprint("new-", node), "") }
	client := fake.NewClientset(pod(0), &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env"}})
	client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		events := watch.NewFakeWithChanSize(1, false)
		if err := client.Tracker().Add(pod(1)); err != nil {
			return true, nil, err
		}
		events.Add(pod(1))
		return true, events, nil
	})
	training.Clients.Kube = client
	training.Spec.Deadline = time.Now().Add(time.Hour)
	training.Network = network.Network{Settings: network.Settings{Mode: agent.TCP, Forced: map[string]string{"NCCL_ALGO": "Ring"}}}
	if err := training.gather(t.Context(), &agent.Attempt{}); err != nil {
		t.Fatal(err)
	}
	if got := training.uids; !cmp.Equal(got, map[int]types.UID{0: "new-0", 1: "new-1"}) {
		t.Errorf("pods %v, want the new ones", got)
	}
	for _, node := range agents {
		facts, err := node.Client.Facts(t.Context())
		if err != nil || facts.Network == nil || facts.Network.Forced["NCCL_ALGO"] != "Ring" {
			t.Errorf("node %d has network %+v, %v; want that of the first attempt", node.Config.Node, facts.Network, err)
		}
	}
	// A deleted environment does not return.
	training.Clients.Kube = fake.NewClientset()
	if err := training.waitAllReady(t.Context()); fail.ReasonOf(err) != fail.EnvironmentMissing {
		t.Errorf("without an environment: got %v, want EnvironmentMissing", err)
	}
}

// An attempt that hung knows for how long, because nobody gets those minutes back.
func TestAttemptKnowsItsHang(t *testing.T) {
	training := &Training{}
	err := training.hangFailure([]agent.JobStatus{{}}, 7*time.Minute, 5*time.Minute, hangError{culprit: "rank 1 is in step (train.py:9)"})
	a := training.failed(Result{}, err)
	if a.Reason != fail.Hang || a.Hang == nil || a.Hang.Named.Sub(a.Hang.Since) != 7*time.Minute || a.Ended.Before(a.Hang.Named) {
		t.Errorf("got %+v with %+v, want a hang of 7 minutes", a, a.Hang)
	}
	if a := training.failed(Result{}, fail.Becausef(fail.RankFailed, "training: rank 1 exited with 3")); a.Hang != nil {
		t.Errorf("a rank that failed: %+v, want no hang", a.Hang)
	}
}
