// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// leaseOf returns a Lease of ten minutes that was renewed some time ago.
func leaseOf(name, holder string, renewed time.Duration) *coordinationv1.Lease {
	kind := "Person"
	if holder == "run" {
		kind = "PipelineRun"
	}
	at := metav1.NewMicroTime(time.Now().Add(-renewed))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("lease-" + name), Labels: objects.Labels(name),
			Annotations: map[string]string{lease.HolderName: "name-of-" + holder, lease.HolderKind: kind}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &at, LeaseDurationSeconds: new(int32(600))},
	}
}

func pipelineRun(uid string, change ...func(*v1.PipelineRun)) *v1.PipelineRun {
	r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "name-of-run", UID: types.UID(uid)}}
	r.Status.StartTime = &metav1.Time{Time: time.Now().Add(-time.Hour)}
	for _, c := range change {
		c(r)
	}
	return r
}

func done(r *v1.PipelineRun) {
	r.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionFalse, Reason: "Cancelled"})
}

func spec(status v1.PipelineRunSpecStatus) func(*v1.PipelineRun) {
	return func(r *v1.PipelineRun) { r.Spec.Status = status }
}

// podOf returns a step's pod.
func podOf(runName string, phase corev1.PodPhase, going bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: runName + "-train-pod",
		Labels: map[string]string{run.Label: runName, "tekton.dev/taskRun": runName + "-train"}}, Status: corev1.PodStatus{Phase: phase}}
	if going {
		p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Now()}, []string{"test"}
	}
	return p
}

// assistantOf returns the pod that Tekton keeps for a workspace of the run, as its controller labels it (affinity_assistant.go of v1.15.0).
func assistantOf(runName string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "affinity-assistant-12345678-0", Labels: map[string]string{
		run.Label: runName, "app.kubernetes.io/component": "affinity-assistant"}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

// newReaper returns a reaper with fakes. The fakes collect no garbage and check no preconditions; a reactor checks them
// here.
func newReaper(known, tekton []runtime.Object) (*reaper, *fake.Clientset, *bytes.Buffer) {
	client := fake.NewClientset(known...)
	client.PrependReactor("delete", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		deletion := action.(clienttesting.DeleteActionImpl)
		found, err := client.Tracker().Get(action.GetResource(), "ns", deletion.Name)
		if err != nil {
			return true, nil, err
		}
		live := found.(*coordinationv1.Lease)
		if want := deletion.DeleteOptions.Preconditions; want == nil || *want.UID != live.UID || want.ResourceVersion != nil &&
			*want.ResourceVersion != live.ResourceVersion {
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), deletion.Name, errors.New("another UID or version"))
		}
		return false, nil, nil
	})
	var log bytes.Buffer
	clients := &kube.Clients{Kube: client, Tekton: tektonfake.NewSimpleClientset(tekton...), Namespace: "ns", InCluster: true}
	return &reaper{clients: clients, log: command.TextLog(&log), now: time.Now}, client, &log
}

func leases(t *testing.T, client *fake.Clientset) (names []string) {
	t.Helper()
	found, err := client.CoordinationV1().Leases("ns").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range found.Items {
		names = append(names, l.Name)
	}
	return names
}

func TestReleases(t *testing.T) {
	const ended, fresh = 11 * time.Minute, time.Minute
	const notRenewed = "no step of pipelinerun name-of-run has renewed the lease until 1999-12-31T23:59:00Z, and none is left"
	going := func(r *v1.PipelineRun) {
		r.DeletionTimestamp, r.Finalizers = &metav1.Time{Time: time.Now()}, []string{"chains.tekton.dev"}
	}
	for _, tc := range []struct {
		name    string
		holder  string
		renewed time.Duration
		run     *v1.PipelineRun
		pod     *corev1.Pod
		why     string // the reason that the reaper logs
	}{
		{"the run is in progress", "run", fresh, pipelineRun("run"), nil, ""},
		{"the run has ended", "run", fresh, pipelineRun("run", done), nil, "pipelinerun name-of-run has ended"},
		{"cancelled, finally tasks in progress", "run", fresh, pipelineRun("run", spec(v1.PipelineRunSpecStatusCancelledRunFinally)), nil, ""},
		{"cancelled outright", "run", fresh, pipelineRun("run", spec(v1.PipelineRunSpecStatusCancelled)), nil,
			"pipelinerun name-of-run was cancelled without its finally tasks"},
		{"the run is gone", "run", fresh, nil, nil, "pipelinerun name-of-run does not exist any more"},
		{"another run has its name", "run", fresh, pipelineRun("another"), nil, "pipelinerun name-of-run does not exist any more"},
		{"the run is being deleted", "run", fresh, pipelineRun("run", going), nil, "pipelinerun name-of-run is being deleted"},
		{"not renewed, but a step works", "run", ended, pipelineRun("run"), podOf("name-of-run", corev1.PodRunning, false), ""},
		{"not renewed, but a step is to start", "run", ended, pipelineRun("run"), podOf("name-of-run", corev1.PodPending, false), ""},
		{"not renewed, and its steps are over", "run", ended, pipelineRun("run"), podOf("name-of-run", corev1.PodSucceeded, false), notRenewed},
		{"not renewed, and its step is going", "run", ended, pipelineRun("run"), podOf("name-of-run", corev1.PodRunning, true), notRenewed},
		{"not renewed, and only another run has steps", "run", ended, pipelineRun("run"), podOf("another", corev1.PodRunning, false), notRenewed},
		{"not renewed, and only Tekton's assistant is left", "run", ended, pipelineRun("run"), assistantOf("name-of-run"), notRenewed},
		{"a person's", "h-kim", fresh, nil, nil, ""},
		{"a person's, in its last second", "h-kim", 10*time.Minute - time.Second, nil, nil, ""},
		{"not renewed, in its last second", "run", 10*time.Minute - time.Second, pipelineRun("run"), nil, ""},
		{"a person's, over", "h-kim", ended, nil, nil, "the lease of name-of-h-kim expired at 1999-12-31T23:59:00Z"},
		{"nobody's", "", fresh, nil, nil, "it has no holder"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				known, tekton := []runtime.Object{leaseOf("env", tc.holder, tc.renewed)}, []runtime.Object{}
				if tc.pod != nil {
					known = append(known, tc.pod)
				}
				if tc.run != nil {
					tekton = append(tekton, tc.run)
				}
				r, client, log := newReaper(known, tekton)
				r.dryRun = true
				if err := r.pass(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := leases(t, client); !slices.Equal(got, []string{"env"}) {
					t.Errorf("after a dry run there are leases %v", got)
				}
				r.dryRun = false
				if err := r.pass(t.Context()); err != nil {
					t.Fatal(err)
				}
				want := []string{"env"}
				if tc.why != "" {
					want = nil
					for _, line := range []string{"Environment ns/env would be released, because " + tc.why + ".\n",
						"Environment ns/env is released, because " + tc.why + ".\n"} {
						if !strings.Contains(log.String(), line) {
							t.Errorf("the log has no %q:\n%s", line, log)
						}
					}
				}
				if got := leases(t, client); !slices.Equal(got, want) {
					t.Errorf("leases %v, want %v; log:\n%s", got, want, log)
				}
			})
		})
	}
}

// If a Lease expired while the API server was unavailable, its holder renews it as soon as the server is back.
func TestHolderThatComesBackKeepsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, client, log := newReaper([]runtime.Object{leaseOf("env", "h-kim", 11*time.Minute)}, nil)
		go func() {
			time.Sleep(lease.RetryEvery)
			if _, err := client.CoordinationV1().Leases("ns").Update(t.Context(), leaseOf("env", "h-kim", 0), metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		}()
		if err := r.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := leases(t, client); len(got) != 1 {
			t.Errorf("it was released:\n%s", log)
		}
	})
}

// A caller who takes a Lease without a holder updates it.
func TestTakenMeanwhile(t *testing.T) {
	for _, tc := range []struct {
		name, holder string
		ago          time.Duration
		kept         bool
	}{{"a person took it", "alice", 0, true}, {"a person took it who may still renew it", "alice", time.Hour, true},
		{"still nobody's", "", 0, false}} {
		t.Run(tc.name, func(t *testing.T) {
			nobodys := leaseOf("env", "", time.Minute)
			nobodys.ResourceVersion = "1"
			r, client, log := newReaper([]runtime.Object{nobodys}, nil)
			deletions := 0
			client.PrependReactor("delete", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				if deletions++; deletions > 1 {
					return false, nil, nil
				}
				now := leaseOf("env", tc.holder, tc.ago)
				now.ResourceVersion = "2"
				return false, nil, client.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), now, "ns")
			})
			if err := r.pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if kept := len(leases(t, client)) > 0; kept != tc.kept {
				t.Errorf("kept: %t, want %t\n%s", kept, tc.kept, log)
			}
		})
	}
}

// If the state of a holder cannot be read, it keeps its environment, and the reaper releases the others all the same.
func TestUnknownHolderKeepsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := leaseOf("other", "run", time.Minute)
		other.Annotations[lease.HolderName] = "away"
		r, client, _ := newReaper([]runtime.Object{leaseOf("env", "run", time.Minute), other}, nil)
		tekton := r.clients.Tekton.(*tektonfake.Clientset)
		tekton.PrependReactor("get", "pipelineruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.(clienttesting.GetAction).GetName() == "away" {
				return true, nil, apierrors.NewServiceUnavailable("starting")
			}
			return false, nil, nil
		})
		if err := r.pass(t.Context()); err == nil || !strings.Contains(err.Error(), "looking up the holder of environment ns/other") {
			t.Errorf("got %v, want an error about ns/other", err)
		}
		if got := leases(t, client); !slices.Equal(got, []string{"other"}) {
			t.Errorf("leases %v are left, want other", got)
		}
	})
}

func TestReceiptAndEvent(t *testing.T) {
	for _, tc := range []struct {
		name    string
		earlier *receipt.Receipt
		run     *v1.PipelineRun
		want    *receipt.Receipt
	}{
		{"a run without a receipt", nil, pipelineRun("run", done, spec(v1.PipelineRunSpecStatusCancelled)), &receipt.Receipt{
			RunUID: "run", Verdict: receipt.Failed, Reason: "Cancelled", Message: "the run was cancelled",
			Teardown: "all pods and GPUs were released by the reaper, because pipelinerun name-of-run was cancelled without its finally tasks"}},
		{"a run with one", &receipt.Receipt{RunUID: "run", Verdict: receipt.Failed, Reason: "RankFailed", Message: "rank 3", Teardown: "not yet"},
			pipelineRun("run", done), &receipt.Receipt{
				RunUID: "run", Verdict: receipt.Failed, Reason: "RankFailed", Message: "rank 3",
				Teardown: "all pods and GPUs were released by the reaper, because pipelinerun name-of-run has ended"}},
		{"a run that is gone", nil, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tekton []runtime.Object
				if tc.run != nil {
					tekton = append(tekton, tc.run)
				}
				r, client, _ := newReaper([]runtime.Object{leaseOf("env", "run", time.Minute)}, tekton)
				if tc.earlier != nil {
					tc.earlier.Run, tc.earlier.Namespace, tc.earlier.Environment = "name-of-run", "ns", "env"
					if err := receipt.Write(t.Context(), client, *tc.earlier); err != nil {
						t.Fatal(err)
					}
				}
				if err := r.pass(t.Context()); err != nil {
					t.Fatal(err)
				}
				got, err := receipt.Read(t.Context(), client, "ns", "name-of-run")
				switch {
				case tc.want == nil && !apierrors.IsNotFound(err):
					t.Errorf("got the receipt %v, %v; want none", got, err)
				case tc.want != nil && err != nil:
					t.Error(err)
				case tc.want != nil:
					short := receipt.Receipt{RunUID: got.RunUID, Verdict: got.Verdict, Reason: got.Reason, Message: got.Message, Teardown: got.Teardown}
					if diff := cmp.Diff(*tc.want, short); diff != "" {
						t.Errorf("the receipt (-want +got):\n%s", diff)
					}
				}
				events, err := client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
				if err != nil || len(events.Items) != 1 {
					t.Fatalf("events %v, %v: want one", events, err)
				}
				if e := events.Items[0]; e.Reason != eventReason || e.Type != corev1.EventTypeNormal || e.InvolvedObject.UID != "lease-env" {
					t.Errorf("the event is %+v", e)
				}
			})
		})
	}
}

// A run that has ended without a receipt, and holds nothing any more, gets one: from its tasks, or from what its steps have noted.
func TestFinishesReceipts(t *testing.T) {
	being := func(r *v1.PipelineRun) {
		r.DeletionTimestamp, r.Finalizers = &metav1.Time{Time: time.Now()}, []string{"chains.tekton.dev"}
	}
	for _, tc := range []struct {
		name string
		run  *v1.PipelineRun
		held string // the holder of the environment, "" for none
		want string // the receipt's message, "" for no receipt
		kept bool   // mlenv train began it
	}{
		{"deleted", nil, "", "the run was deleted", false},
		{"deleted, and another run has its name", pipelineRun("another"), "", "the run was deleted", false},
		{"being deleted", pipelineRun("run", being), "", "the run was deleted", false},
		{"cancelled outright", pipelineRun("run", done, spec(v1.PipelineRunSpecStatusCancelled)), "", "the run was cancelled", false},
		{"cancelled outright, its steps end", pipelineRun("run", spec(v1.PipelineRunSpecStatusCancelled)), "", "", false},
		{"in progress", pipelineRun("run"), "", "", false},
		{"in progress, with its environment", pipelineRun("run"), "run", "", false},
		{"deleted, with its environment", nil, "run", "the run was deleted", false},
		{"a user's, in an environment that is kept", nil, "somebody", "", true},
		{"a user's, whose environment is released", nil, "", "mlenv train was killed, or its environment released, before it wrote the receipt",
			true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tekton, known []runtime.Object
				if tc.run != nil {
					tekton = append(tekton, tc.run)
				}
				if tc.held != "" {
					known = append(known, leaseOf("env", tc.held, time.Minute))
				}
				r, client, log := newReaper(known, tekton)
				begun := receipt.Start{Run: "name-of-run", Namespace: "ns", RunUID: "run", Environment: "env", Kept: tc.kept}
				part := receipt.Entry{Task: "train", Status: run.Running, Started: time.Now(),
					Record: &receipt.Record{Folder: "/workspace/.mlenv/runs/run", Claims: []string{"env-workspace"}}}
				if err := receipt.Note(t.Context(), client, begun, part); err != nil {
					t.Fatal(err)
				}
				if err := r.pass(t.Context()); err != nil {
					t.Fatal(err)
				}
				got, err := receipt.Read(t.Context(), client, "ns", "name-of-run")
				if tc.want == "" {
					if !apierrors.IsNotFound(err) {
						t.Errorf("got the receipt %+v, %v; want none", got, err)
					}
					return
				}
				if err != nil || got.Verdict != receipt.Failed || got.Reason != "Cancelled" || got.Message != tc.want || got.Record == nil ||
					len(got.Record.Claims) != 1 {
					t.Errorf("got %+v, %v; want Cancelled: %s with the claim\n%s", got, err, tc.want, log)
				}
				before := log.Len()
				if err := r.pass(t.Context()); err != nil || strings.Contains(log.String()[before:], "receipt") {
					t.Errorf("the second pass: %v, log %s; want nothing to do", err, log.String()[before:])
				}
			})
		})
	}
}

// Without Tekton no task follows one that has failed for good, however recently the failed one renewed the Lease.
func TestReleasesAfterAVerdict(t *testing.T) {
	endedPod := func(ago time.Duration) *corev1.Pod {
		pod := podOf("name-of-run", corev1.PodFailed, false)
		// The clock of the synctest bubble starts there.
		at := metav1.NewTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(-ago))
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{
			{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at}}}}
		return pod
	}
	for _, tc := range []struct {
		name  string
		since time.Duration // time since the failure
		pod   *corev1.Pod
		// created is the creation time of the pod, relative to the failure.
		created  time.Duration
		released bool
	}{
		{"Tekton may still start the next task", 15 * time.Second, nil, 0, false},
		{"Tekton has not", 16 * time.Second, nil, 0, true},
		{"the step's own pod is on a lost node", 16 * time.Second, podOf("name-of-run", corev1.PodRunning, false), -time.Minute, true},
		{"teardown starts", 16 * time.Second, podOf("name-of-run", corev1.PodPending, false), time.Second, false},
		{"a retry has ended", 40 * time.Second, endedPod(16 * time.Second), time.Second, true},
		{"a retry has just ended", 40 * time.Second, endedPod(14 * time.Second), time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				known, ended := []runtime.Object{leaseOf("env", "run", 0)}, time.Now().Add(-tc.since)
				if tc.pod != nil {
					tc.pod.CreationTimestamp = metav1.NewTime(ended.Add(tc.created))
					known = append(known, tc.pod)
				}
				held := pipelineRun("run")
				r, client, log := newReaper(known, []runtime.Object{held, taskOf(held, "")})
				begun := receipt.Start{Run: "name-of-run", Namespace: "ns", RunUID: "run", Environment: "env"}
				failure := receipt.Entry{Task: "train", Status: run.Failed, Final: true, Reason: fail.NodeLost, Message: "node 1 is gone",
					Started: ended.Add(-9 * time.Minute), Ended: ended}
				if err := receipt.Note(t.Context(), client, begun, failure); err != nil {
					t.Fatal(err)
				}
				if err := r.pass(t.Context()); err != nil {
					t.Fatal(err)
				}
				if released := len(leases(t, client)) == 0; released != tc.released {
					t.Fatalf("released: %t, want %t\n%s", released, tc.released, log)
				}
				if !tc.released {
					return
				}
				got, err := receipt.Read(t.Context(), client, "ns", "name-of-run")
				if err != nil {
					t.Fatal(err)
				}
				if got.Verdict != receipt.Failed || got.Reason != "NodeLost" || got.Message != "node 1 is gone" ||
					got.Teardown != "all pods and GPUs were released by the reaper, because "+
						fmt.Sprintf("task train of pipelinerun name-of-run failed at %s (NodeLost), and no task has followed",
							ended.UTC().Format(time.RFC3339)) ||
					len(got.Phases) != 1 || got.Phases[0].Seconds != (9*time.Minute).Seconds() || got.Phases[0].Reason != "NodeLost" {
					t.Errorf("the receipt is %+v", got)
				}
			})
		})
	}
}
