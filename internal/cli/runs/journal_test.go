// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// noted returns clients of a namespace in which the steps of run train-1, which trains on two nodes with two ranks each, have noted
// what they know.
func noted(t *testing.T, runs ...runtime.Object) *kube.Clients {
	t.Helper()
	clients := &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tektonfake.NewSimpleClientset(runs...), Namespace: "ns"}
	begun := receipt.Start{Run: "train-1", Namespace: "ns", RunUID: "uid-1", Environment: "env", Started: time.Now().Add(-time.Hour)}
	err := errors.Join(
		receipt.Note(t.Context(), clients.Kube, begun, receipt.Entry{Task: "sync-repo", Status: run.Succeeded, Started: time.Now(),
			Ended: time.Now(), Commit: "abc"}),
		receipt.Note(t.Context(), clients.Kube, begun, receipt.Entry{
			Task: "train", Status: run.Running, Started: time.Now(), Attempt: 2, Order: []int{1, 0},
			Training: &receipt.Training{Launcher: agent.Torchrun, Script: "train.py", Nodes: 2, RanksPerNode: 2},
			Record:   &receipt.Record{Folder: "/workspace/.mlenv/runs/uid-1", Claims: []string{"env-workspace-env-0", "env-workspace-env-1"}},
		}),
		receipt.NoteProgress(t.Context(), clients.Kube, begun, receipt.Progress{At: time.Now(), Step: 190, Steps: 1000, SecondsLeft: 90}),
	)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

func pipelineRun(change func(*v1.PipelineRun)) *v1.PipelineRun {
	r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-1", UID: "uid-1",
		Labels: map[string]string{"tekton.dev/pipeline": "train-multi-node"}}}
	change(r)
	return r
}

// A run that was deleted, or cancelled outright, is known by what its steps have noted, before anyone has written its receipt.
func TestRunsWithoutAReceipt(t *testing.T) {
	outright := pipelineRun(func(r *v1.PipelineRun) {
		r.Spec.Status = v1.PipelineRunSpecStatusCancelled
		r.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionFalse, Reason: "Cancelled"})
	})
	for _, tc := range []struct {
		name   string
		runs   []runtime.Object
		hidden bool // the user may read ConfigMaps alone
		state  string
		writer string
		says   string
	}{
		{"deleted", nil, false, cancelling, "the reaper writes it", "the run was deleted"},
		{"cancelled outright", []runtime.Object{outright}, false, cancelled, "the reaper writes it", ""},
		{"in progress", []runtime.Object{pipelineRun(func(*v1.PipelineRun) {})}, false, running, "teardown writes it",
			"step 190 of 1000, about 1m30s left"},
		{"in progress, for a colleague", []runtime.Object{pipelineRun(func(*v1.PipelineRun) {})}, true, running, "teardown writes it",
			"step 190 of 1000, about 1m30s left"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clients := noted(t, tc.runs...)
			if tc.hidden {
				clients.Tekton.(*tektonfake.Clientset).PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("no"))
				})
			}
			r, err := findRun(t.Context(), clients, "train-1")
			if err != nil {
				t.Fatal(err)
			}
			if r.state() != tc.state || !strings.Contains(r.at.writer(r), tc.writer) || r.uid() != "uid-1" || tc.runs == nil &&
				r.environment() != "env" {
				t.Errorf("got state %s, writer %q, uid %s, environment %s; want %s, %q", r.state(), r.at.writer(r), r.uid(), r.environment(), tc.state,
					tc.writer)
			}
			claims, err := r.at.claims(t.Context(), r)
			if err != nil || fmt.Sprint(claims) != "[claim env-workspace-env-0 claim env-workspace-env-1]" {
				t.Errorf("claims %v, %v; want those that train has noted", claims, err)
			}
			for rank, want := range []int{1, 1, 0, 0, -1} { // the ranks start on node 1
				if node, _ := r.nodeOf(rank); node != want {
					t.Errorf("rank %d is on node %d, want %d", rank, node, want)
				}
			}
			if r.attempt() != 2 {
				t.Errorf("attempt %d, want the second", r.attempt())
			}
			var out bytes.Buffer
			s := r.status(t.Context(), clients)
			if err := s.print(&out, time.Now()); err != nil || !strings.Contains(out.String(), tc.says) {
				t.Errorf("mlenv status prints %s, %v; want %q in it", out.String(), err, tc.says)
			}
			all, err := summaries(t.Context(), clients, 0)
			if err != nil || len(all) != 1 || all[0].State != tc.state {
				t.Errorf("mlenv runs lists %+v, %v; want one run, %s", all, err, tc.state)
			}
		})
	}
}

// A run is cancelled although its tasks and its receipt cannot be read.
func TestCancelNeedsOnlyTheRun(t *testing.T) {
	clients := noted(t, pipelineRun(func(*v1.PipelineRun) {}))
	var broken clienttesting.ReactionFunc = func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("etcd is away"))
	}
	clients.Tekton.(*tektonfake.Clientset).PrependReactor("*", "taskruns", broken)
	for _, of := range []string{"its tasks", "its receipt, too,"} {
		if r, err := toCancel(t.Context(), clients, []string{"train-1"}); err != nil || r.run == nil || r.state() != running {
			t.Errorf("%s cannot be read: got %v, %v; want the run", of, r.run, err)
		}
		clients.Kube.(*kubefake.Clientset).PrependReactor("*", "configmaps", broken)
	}
}

// A colleague who may get and list ConfigMaps, and nothing else, sees how far a run is, and how it ended.
func TestConfigMapsAloneSuffice(t *testing.T) {
	clients := noted(t, pipelineRun(func(*v1.PipelineRun) {}))
	refused := map[string]bool{}
	var refuse clienttesting.ReactionFunc = func(action clienttesting.Action) (bool, runtime.Object, error) {
		resource, verb := action.GetResource().Resource, action.GetVerb()
		if resource == "configmaps" && (verb == "get" || verb == "list") {
			return false, nil, nil
		}
		refused[verb+" "+resource] = true
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("no"))
	}
	allowed := kubefake.NewClientset()
	begun := receipt.Start{Run: "train-1", Namespace: "ns", RunUID: "uid-1", Environment: "env", Started: time.Now().Add(-time.Hour)}
	loss := 2.5
	parts := []receipt.Entry{
		{Task: "provision", Status: run.Succeeded, Started: time.Now(), Ended: time.Now(), Image: "registry.test/train@sha256:1", Mode: "tcp",
			ModeReason: "no RDMA", Nodes: 2},
		{Task: "sync-repo", Status: run.Succeeded, Started: time.Now(), Ended: time.Now(), Commit: "abc"},
		{Task: "train", Status: run.Running, Started: time.Now(), Attempt: 2, Training: &receipt.Training{Nodes: 2, RanksPerNode: 2}},
	}
	err := errors.Join(receipt.NoteProgress(t.Context(), allowed, begun, receipt.Progress{At: time.Now(), Step: 190, Steps: 1000, Loss: &loss,
		NotFinite: new(185.0), TokensPerSecond: 1200, SecondsLeft: 90}))
	for _, part := range parts {
		err = errors.Join(err, receipt.Note(t.Context(), allowed, begun, part))
	}
	if err != nil {
		t.Fatal(err)
	}
	clients.Kube = allowed
	shows := func(when string, state string, phases string, want ...string) {
		t.Helper()
		r, err := findRun(t.Context(), clients, "train-1")
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		var out bytes.Buffer
		s := r.status(t.Context(), clients)
		if err := s.print(&out, time.Now()); err != nil {
			t.Fatal(err)
		}
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("%s: mlenv status prints\n%s\nwant %q", when, &out, text)
			}
		}
		all, err := summaries(t.Context(), clients, 0)
		if err != nil || len(all) != 1 || all[0].State != state || strings.Join(all[0].Phases, ",") != phases || all[0].Nodes != 2 {
			t.Errorf("%s: mlenv runs lists %+v, %v; want %s in phase %s", when, all, err, state, phases)
		}
	}
	// What writes may not be refused; from here on the colleague reads.
	allowed.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if verb := action.GetVerb(); verb == "patch" || verb == "create" {
			return false, nil, nil
		}
		return refuse(action)
	})
	clients.Tekton.(*tektonfake.Clientset).PrependReactor("*", "*", refuse)
	shows("in progress", running, "train", "commit", "abc", "registry.test/train@sha256:1", "tcp", "no RDMA",
		"step 190 of 1000, loss 2.5, 1200 tokens/s, about 1m30s left", "the loss was NaN or infinite, first at step 185", "provision", "attempt")
	failed := parts[2]
	failed.Status, failed.Reason, failed.Message, failed.Final, failed.Ended = run.Failed, fail.RankFailed, "rank 3 on node 1 "+
		"exited with 1", true, time.Now()
	if err := receipt.Note(t.Context(), allowed, begun, failed); err != nil {
		t.Fatal(err)
	}
	shows("failed, while teardown releases", running, "", "rank 3 on node 1 exited with 1", "RankFailed")
	m, err := receipt.ReadJournal(t.Context(), allowed, "ns", "train-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := receipt.Write(t.Context(), allowed, m.ToReceipt(m.Verdict(receipt.Seen{Over: true}), time.Now())); err != nil {
		t.Fatal(err)
	}
	shows("at the end", string(receipt.Failed), "train", "RankFailed", "rank 3 on node 1 exited with 1", "abc")
	if !refused["get pipelineruns"] || !refused["list pipelineruns"] {
		t.Errorf("refused %v, want that PipelineRuns were", refused)
	}
}

// The receipt of a large training leaves out healthy ranks, which have logs too.
func TestLogsOfHealthyRanks(t *testing.T) {
	r := runInfo{name: "train-1", at: onCluster{}, receipt: &receipt.Receipt{
		Training: &receipt.Training{Nodes: 2, RanksPerNode: 2}, Ranks: []receipt.Rank{{Rank: 1, Node: 0}}, LeftOut: []string{"3 healthy ranks"},
	}}
	for rank, want := range []int{0, 0, 1, 1, -1} {
		if node, _ := r.nodeOf(rank); node != want {
			t.Errorf("rank %d is on node %d, want %d", rank, node, want)
		}
	}
}

// Where runs may not be listed, none counts as deleted.
func TestNothingHiddenIsPruned(t *testing.T) {
	clients := noted(t)
	clients.Tekton.(*tektonfake.Clientset).PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("no"))
	})
	all, err := listRuns(t.Context(), clients)
	if err != nil {
		t.Fatal(err)
	}
	if doomed, err := withReceipt(clients, all, nil); err != nil || len(doomed) != 0 {
		t.Errorf("got %v, %v; want none", doomed, err)
	}
	if _, err := withReceipt(clients, all, []string{"train-1"}); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("a run in progress: %v, want InvalidInput", err)
	}
}

// TestKeptTraining: a training of mlenv train is a run in progress until its receipt is there, and no PipelineRun judges it.
func TestKeptTraining(t *testing.T) {
	clients := &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tektonfake.NewSimpleClientset(), Namespace: "ns"}
	start := receipt.Start{Run: "by-hand-x", Namespace: "ns", RunUID: "by-hand-x", Environment: "env", Started: time.Now(), Kept: true}
	journal := start.Writer(clients, slog.New(slog.DiscardHandler), "train")
	journal.End(t.Context(), errors.New("there is no environment"), nil)
	if _, err := findRun(t.Context(), clients, "by-hand-x"); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("a training that was not launched leaves something: %v", err)
	}
	journal.Update(t.Context(), func(e *receipt.Entry) {
		e.Record = &receipt.Record{Folder: ".mlenv/runs/by-hand-x", Claims: []string{"env-workspace"}}
	})
	look := func() runInfo {
		r, err := findRun(t.Context(), clients, "by-hand-x")
		all, notListed := listRuns(t.Context(), clients)
		if err = errors.Join(err, notListed); err != nil || len(all) != 1 || all[0].state() != r.state() {
			t.Fatalf("got %+v, list %+v, %v", r, all, err)
		}
		return r
	}
	r := look()
	if r.state() != running || !r.at.inProgress(r) || !strings.Contains(r.at.stop(r), "mlenv down env") ||
		!strings.Contains(r.at.writer(r), "mlenv train") {
		t.Errorf("in progress: state %s, stop %q, writer %q", r.state(), r.at.stop(r), r.at.writer(r))
	}
	journal.End(t.Context(), nil, nil)
	m, err := receipt.ReadJournal(t.Context(), clients.Kube, "ns", "by-hand-x")
	if err == nil {
		err = receipt.Write(t.Context(), clients.Kube, m.ToReceipt(m.Verdict(receipt.Seen{Over: true}), time.Now()))
	}
	if err != nil {
		t.Fatal(err)
	}
	claims, err := r.at.claims(t.Context(), r)
	if doomed, err := withReceipt(clients, []runInfo{look()}, nil); err != nil || len(doomed) != 1 {
		t.Errorf("mlenv prune finds %v, %v; want the training that has ended", doomed, err)
	}
	if r = look(); r.state() != string(receipt.Succeeded) || r.at.inProgress(r) || fmt.Sprint(claims) != "[claim env-workspace]" {
		t.Errorf("ended: state %s, in progress %t, claims %v, %v", r.state(), r.at.inProgress(r), claims, err)
	}
}

// mlenv logs --rank --follow waits for a rank of a training of mlenv train, which has no PipelineRun, until the training has ended.
func TestLogOfARankThatHasNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tektonfake.NewSimpleClientset(), Namespace: "ns"}
		start := receipt.Start{Run: "by-hand-x", Namespace: "ns", RunUID: "by-hand-x", Environment: "env", Started: time.Now(), Kept: true}
		start.Writer(clients, slog.New(slog.DiscardHandler), "train").Update(t.Context(), func(*receipt.Entry) {})
		r, err := findRun(t.Context(), clients, "by-hand-x")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute-rankEvery/2, func() {
			ended := receipt.Receipt{Run: "by-hand-x", RunUID: "by-hand-x", Namespace: "ns", Environment: "env", Verdict: receipt.Failed}
			if err := receipt.Write(t.Context(), clients.Kube, ended); err != nil {
				t.Error(err)
			}
		})
		o, began := logsOptions{rank: 1, follow: true}, time.Now()
		found, err := o.liveLog(t.Context(), io.Discard, t.Output(), clients, r, "rank-1")
		if waited := time.Since(began); found || err != nil || waited != time.Minute {
			t.Errorf("got %t, %v after %s; want no rank until the training has ended, after a minute", found, err, waited)
		}
	})
}

// TestStateOfReceipt: a run that was cancelled stays cancelled when only its receipt is left, on a cluster as on this machine.
func TestStateOfReceipt(t *testing.T) {
	for _, at := range []provider{onCluster{&kube.Clients{}}, onMachine{}} {
		r := runInfo{name: "mine", at: at, receipt: &receipt.Receipt{Verdict: receipt.Failed, Reason: fail.Cancelled}}
		if got := r.state(); got != cancelled {
			t.Errorf("%T: got %s, want %s", at, got, cancelled)
		}
	}
}
