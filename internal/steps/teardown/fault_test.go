// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// onServer returns the environment of a run as objects that the API server's garbage collector deletes with the Lease.
func onServer(others ...runtime.Object) []runtime.Object {
	set := &appsv1.StatefulSet{ObjectMeta: about("env"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1))}}
	set.UID, set.OwnerReferences = "set", []metav1.OwnerReference{objects.LeaseReference("env", "uid-of-env")}
	pod := &corev1.Pod{ObjectMeta: about("env-0")}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "env", UID: "set"}}
	return append([]runtime.Object{held("uid-1"), set, pod, &corev1.PersistentVolumeClaim{ObjectMeta: about("env-workspace")}}, others...)
}

// Whichever request to the API server fails once, and however, the verdict, the receipt and what is left are the same.
func TestEveryRequestMayFail(t *testing.T) {
	for name, task := range map[string]*v1.TaskRun{"succeeded": task("train", "Succeeded", nil),
		"failed": task("train", "Failed", nil, "reason", "RankFailed", "message", "rank 3")} {
		t.Run(name, func(t *testing.T) {
			apitest.EachFault(t, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
				server := apitest.Start(t, onServer(pipelineRun(), task)...)
				clients := server.Clients(wrap)
				r, err := Run(t.Context(), Deps{Clients: clients, Log: slog.New(slog.DiscardHandler)}, Options{
					Name: "env", Timeout: timeForTheObjectsToGo, Run: run.Flags{Name: "train-1", UID: "uid-1", Task: "teardown"},
				})
				written, notRead := receipt.Read(t.Context(), server.Clients(nil).Kube, "ns", "train-1")
				return fmt.Sprint(err, notRead, " ", r.Verdict, r.Reason, r.Teardown, " ", written.Verdict, written.Reason, written.Teardown, "\n",
					strings.Join(server.Paths(), " "))
			})
		})
	}
}

// What steps have noted is in the receipt that the reaper writes for a run that was deleted.
func TestFinishOfADeletedRun(t *testing.T) {
	server := apitest.Start(t)
	clients := server.Clients(nil)
	began := receipt.Start{Run: "train-1", Namespace: "ns", RunUID: "uid-1", Environment: "env", Started: start()}
	for _, part := range []receipt.Entry{
		{Task: "sync-repo", Status: run.Succeeded, Started: start(), Ended: start().Add(5), Commit: "abc"},
		{Task: "train", Status: run.Running, Started: start().Add(10), Record: &receipt.Record{Folder: "/workspace/.mlenv/runs/uid-1",
			Claims: []string{"env-workspace"}}},
	} {
		if err := receipt.Note(t.Context(), clients.Kube, began, part); err != nil {
			t.Fatal(err)
		}
	}
	err := receipt.NoteProgress(t.Context(), clients.Kube, began,
		receipt.Progress{At: start(), Step: 190, Checkpoint: "/workspace/checkpoints/train-1/step-180"})
	if err != nil {
		t.Fatal(err)
	}
	open, err := receipt.Unfinished(t.Context(), clients.Kube, "ns")
	if err != nil || len(open) != 1 {
		t.Fatalf("unfinished: %v, %v; want one run", open, err)
	}
	if err := Finish(t.Context(), clients, slog.New(slog.DiscardHandler), start, open[0], receipt.Deleted); err != nil {
		t.Fatal(err)
	}
	got, err := receipt.Read(t.Context(), clients.Kube, "ns", "train-1")
	if err != nil || got.Verdict != receipt.Failed || got.Reason != fail.Cancelled || got.Message != receipt.Deleted {
		t.Errorf("got %+v, %v; want the run as deleted", got, err)
	}
	if got.Commit != "abc" || got.Record == nil || got.Checkpoint != "/workspace/checkpoints/train-1/step-180" || len(got.Phases) != 2 ||
		string(got.Metrics) == "" {
		t.Errorf("got %+v; want commit, record, checkpoint, metrics and both phases", got)
	}
	if open, err = receipt.Unfinished(t.Context(), clients.Kube, "ns"); err != nil || len(open) != 0 {
		t.Errorf("unfinished: %v, %v; want none", open, err)
	}
}
