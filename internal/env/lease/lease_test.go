// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

const minute = time.Minute

func ours() Holder   { return Holder{ID: "uid-1", Display: "train-1", Run: true} }
func theirs() Holder { return Holder{ID: "uid-2", Display: "train-2", Run: true} }
func person() Holder { return Holder{ID: "h-kim", Display: "H. Kim"} }

func request() Request {
	owner := run.OwnerReference("train-1", "uid-1")
	return Request{Holder: ours(), Owner: &owner, Duration: 2 * minute}
}

// leaseOf returns a Lease that was taken ago, as this package takes it.
func leaseOf(h Holder, ago time.Duration) *coordinationv1.Lease {
	c := Client{namespace: "ns", name: "env", Now: func() time.Time { return time.Now().Add(-ago) }}
	lease := c.fill(&coordinationv1.Lease{}, Request{Holder: h, Duration: 2 * minute})
	lease.UID = types.UID("lease-of-" + h.ID)
	return lease
}

func pipelineRun(h Holder, done bool) *v1.PipelineRun {
	r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: h.Display, UID: types.UID(h.ID)}}
	if done {
		r.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionFalse, Reason: "Failed"})
	}
	return r
}

func conflict() error {
	return apierrors.NewConflict(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "env", errors.New("changed"))
}

// clientOf returns a client with fakes. The fakes check neither UIDs nor resource versions, collect no garbage, and assign
// no UIDs; clientOf makes them assign a UID to each Lease that is created.
func clientOf(known []runtime.Object, runs ...runtime.Object) (Client, *fake.Clientset, *bytes.Buffer) {
	kube := fake.NewClientset(known...)
	made := 0
	kube.PrependReactor("create", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		made++
		lease := action.(clienttesting.CreateAction).GetObject().(*coordinationv1.Lease)
		lease.UID = types.UID(fmt.Sprintf("lease-made-%d", made))
		return false, nil, nil
	})
	var log bytes.Buffer
	return Client{
		kube: kube, tekton: tektonfake.NewSimpleClientset(runs...), namespace: "ns", name: "env", Now: time.Now,
		log: slog.New(slog.NewTextHandler(&log, nil)),
	}, kube, &log
}

func TestAcquire(t *testing.T) {
	for _, tc := range []struct {
		name string
		// lease exists before the call. It is created by the test's clock, which starts in the year 2000.
		lease func() *coordinationv1.Lease
		runs  []runtime.Object
		// uid is the UID of the Lease that is held afterwards. If the environment is busy, uid is "" and busy is part of
		// the error.
		uid  string
		busy string
	}{
		{"none", nil, nil, "lease-made-1", ""},
		{"free", func() *coordinationv1.Lease {
			lease := leaseOf(theirs(), 0)
			lease.Spec.HolderIdentity = nil
			return lease
		}, nil, "lease-of-uid-2", ""},
		{"ours", takenBy(ours(), minute), nil, "lease-of-uid-1", ""},
		{"another run's", takenBy(theirs(), minute), []runtime.Object{pipelineRun(theirs(), false)},
			"", "held by pipelinerun train-2 since 1999-12-31T23:59:00Z, which is still running"},
		{"another run's that was not renewed", takenBy(theirs(), time.Hour), []runtime.Object{pipelineRun(theirs(), false)},
			"", "which is still running"},
		{"a run's that is done, not ended", takenBy(theirs(), minute), []runtime.Object{pipelineRun(theirs(), true)},
			"", "which has ended; it becomes free at 2000-01-01T00:01:00Z"},
		{"a run's that is gone, not ended", takenBy(theirs(), minute), nil,
			"", "which does not exist any more; it becomes free at 2000-01-01T00:01:00Z"},
		{"a run's that is done, ended", takenBy(theirs(), time.Hour), []runtime.Object{pipelineRun(theirs(), true)}, "lease-made-1", ""},
		{"a run's that is gone, ended", takenBy(theirs(), time.Hour), nil, "lease-made-1", ""},
		{"a run's whose name another has, ended", takenBy(theirs(), time.Hour),
			[]runtime.Object{pipelineRun(Holder{ID: "uid-3", Display: "train-2"}, false)}, "lease-made-1", ""},
		{"a person's", takenBy(person(), minute), nil, "", "held by H. Kim since"},
		{"a person's, ended", takenBy(person(), time.Hour), nil, "lease-made-1", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var known []runtime.Object
				if tc.lease != nil {
					known = append(known, tc.lease())
				}
				client, _, _ := clientOf(known, tc.runs...)
				held, err := client.Acquire(t.Context(), request())
				if tc.busy != "" {
					var busy *Busy
					if !errors.As(err, &busy) || fail.ReasonOf(err) != fail.EnvironmentBusy || !strings.Contains(err.Error(), tc.busy) ||
						fail.NextOf(err) == "" {
						t.Errorf("got %v, want Busy with %q and advice", err, tc.busy)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := string(held.UID()); got != tc.uid {
					t.Errorf("held: got %s, want %s", got, tc.uid)
				}
				again, err := client.StillHeld(t.Context(), "uid-1")
				if err != nil || again.UID() != held.UID() {
					t.Errorf("StillHeld: got %v, %v", again, err)
				}
			})
		})
	}
}

// checkPreconditions makes the fake refuse deletions as the API server does.
func checkPreconditions(kube *fake.Clientset) {
	kube.PrependReactor("delete", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		found, err := kube.Tracker().Get(action.GetResource(), "ns", "env")
		if err != nil {
			return true, nil, err
		}
		live, want := found.(*coordinationv1.Lease), action.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions
		if *want.UID != live.UID || want.ResourceVersion != nil && *want.ResourceVersion != live.ResourceVersion {
			return true, nil, conflict()
		}
		return false, nil, nil
	})
}

// A caller does not take an expired Lease if its holder, a person, renews it at the last moment.
func TestAcquireLeavesWhatIsRenewedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := leaseOf(person(), time.Hour)
		expired.ResourceVersion = "1"
		client, kube, _ := clientOf([]runtime.Object{expired})
		checkPreconditions(kube)
		var once sync.Once
		kube.PrependReactor("delete", "leases", func(action clienttesting.Action) (renewed bool, _ runtime.Object, err error) {
			once.Do(func() {
				renewed := leaseOf(person(), 0)
				renewed.ResourceVersion = "2"
				err = kube.Tracker().Update(action.GetResource(), renewed, "ns")
			})
			return err != nil, nil, err
		})
		_, err := client.Acquire(t.Context(), request())
		if fail.ReasonOf(err) != fail.EnvironmentBusy {
			t.Errorf("got %v, want EnvironmentBusy", err)
		}
		if live, err := client.Find(t.Context()); err != nil || HolderOf(live) != person() {
			t.Errorf("the lease is %v, %v; want the person to hold it", live, err)
		}
	})
}

// A run whose state cannot be read keeps its expired Lease.
func TestAcquireLeavesWhatIsUnknown(t *testing.T) {
	client, _, _ := clientOf([]runtime.Object{leaseOf(theirs(), time.Hour)})
	client.tekton.(*tektonfake.Clientset).PrependReactor("get", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("starting")
	})
	if _, err := client.Acquire(t.Context(), request()); fail.ReasonOf(err) != fail.EnvironmentBusy {
		t.Errorf("got %v, want EnvironmentBusy", err)
	}
}

// A Lease that is being deleted takes its objects with it, so even its holder waits for a new Lease.
func TestAcquireWaitsForADeletedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		going := leaseOf(ours(), 0)
		going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: time.Now()}, []string{"foregroundDeletion"}
		client, kube, _ := clientOf([]runtime.Object{going})
		taken := make(chan *Hold, 1)
		go func() {
			hold, err := client.Acquire(t.Context(), request())
			if err != nil {
				t.Error(err)
			}
			taken <- hold
		}()
		synctest.Wait()
		if err := kube.Tracker().Delete(coordinationv1.SchemeGroupVersion.WithResource("leases"), "ns", "env"); err != nil {
			t.Fatal(err)
		}
		if hold := <-taken; hold == nil || hold.UID() != "lease-made-1" {
			t.Errorf("got %+v, want the new lease", hold)
		}
	})
}

// The garbage collector is about to delete the Lease of a deleted run. Acquire waits for that, for example in a run with the
// same name.
func TestAcquireWaitsForTheLeaseOfADeletedRun(t *testing.T) {
	for _, collected := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			theirs := takenBy(theirs(), 0)()
			theirs.OwnerReferences = []metav1.OwnerReference{run.OwnerReference("train-2", "uid-2")}
			c, kube, log := clientOf([]runtime.Object{theirs})
			if collected {
				go func() {
					time.Sleep(10 * time.Second)
					if err := kube.CoordinationV1().Leases("ns").Delete(t.Context(), "env", metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				}()
			}
			began := time.Now()
			hold, err := c.Acquire(t.Context(), request())
			if collected && (err != nil || hold.UID() != "lease-made-1" || !strings.Contains(log.String(), "was deleted")) {
				t.Errorf("got %v, want it taken once the Lease is collected; log %s", err, log)
			}
			if !collected && (fail.ReasonOf(err) != fail.EnvironmentBusy || time.Since(began) != collection) {
				t.Errorf("got %v after %s; want EnvironmentBusy after %s", err, time.Since(began), collection)
			}
		})
	}
}

func TestPerson(t *testing.T) {
	for _, tc := range []struct {
		name, user string
		err        error
		want       fail.Reason
	}{
		{"a user", "h-kim", nil, ""},
		{"a Task's account", "system:serviceaccount:ns:mlenv-pipeline", nil, ""},
		{"no name", "", nil, fail.PermissionDenied},
		{"not allowed", "", apierrors.NewForbidden(schema.GroupResource{Resource: "selfsubjectreviews"}, "", errors.New("no")),
			fail.PermissionDenied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, kube, _ := clientOf(nil)
			kube.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true,
					&authenticationv1.SelfSubjectReview{
						Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: tc.user}}}, tc.err
			})
			got, err := Person(t.Context(), kube)
			if want := (Holder{ID: tc.user, Display: tc.user}); tc.want == "" && (err != nil || got != want) || tc.want != "" &&
				fail.ReasonOf(err) != tc.want {
				t.Errorf("got %+v, %v; want %+v, %q", got, err, want, tc.want)
			}
		})
	}
}

// A Lease lasts to the second: neither the reaper nor another caller takes it before it expires.
func TestExpired(t *testing.T) {
	renewed, now := metav1.NewMicroTime(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)), time.Date(2026, 7, 1, 12, 10, 0, 0, time.UTC)
	lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &renewed, LeaseDurationSeconds: new(int32(600))}}
	for _, tc := range []struct {
		at   time.Time
		want bool
	}{{now.Add(-time.Second), false}, {now, false}, {now.Add(time.Second), true}} {
		if got := Expired(lease, tc.at); got != tc.want {
			t.Errorf("Expired at %s = %t, want %t", tc.at, got, tc.want)
		}
	}
	if Expired(&coordinationv1.Lease{}, now) {
		t.Error("a lease without times has expired; want it kept")
	}
	// The holder's clock is ten minutes behind the API server's.
	changed, before := metav1.NewTime(renewed.Add(10*time.Minute)), metav1.NewTime(renewed.Add(time.Minute))
	lease.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &before}, {Time: &changed}, {}}
	if got := Ends(lease).Sub(renewed.Time); got != 20*time.Minute {
		t.Errorf("it ends %s after its renewal by the holder's clock, want 20m", got)
	}
}

// Reading a Lease is harmless, whatever others wrote to it, and what this package writes is the same when it is read.
func FuzzHolderOf(f *testing.F) {
	f.Add("uid-1", "train-1", "PipelineRun", int32(600), int64(0))
	f.Add("h-kim", "", "Person", int32(-1), int64(-62135596800))
	f.Add("", "../../x", "", int32(0), int64(1<<40))
	f.Fuzz(func(t *testing.T, id, name, kind string, seconds int32, renewed int64) {
		at := metav1.NewMicroTime(time.Unix(renewed, 0))
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env", Annotations: map[string]string{HolderName: name, HolderKind: kind}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &id, LeaseDurationSeconds: &seconds, RenewTime: &at},
		}
		client, _, _ := clientOf(nil)
		busy := client.ReadHolder(t.Context(), lease)
		if busy.Holder.ID != id || busy.Holder.Run != (kind == "PipelineRun") || !strings.Contains(busy.Error(), busy.Holder.String()) {
			t.Errorf("%+v is read as %q", busy.Holder, busy)
		}
		if got := Ends(lease).Sub(at.Time); got != time.Duration(seconds)*time.Second {
			t.Errorf("it ends %s after its renewal, want %d s", got, seconds)
		}
		if id == "" {
			return
		}
		want := Holder{ID: id, Display: stdcmp.Or(name, id), Run: kind == "PipelineRun"}
		if got := HolderOf(client.fill(&coordinationv1.Lease{}, Request{Holder: want})); got != want {
			t.Errorf("written %+v, read %+v", want, got)
		}
	})
}

func TestNobodyHoldsNothing(t *testing.T) {
	nobodys := leaseOf(ours(), 0)
	nobodys.Spec.HolderIdentity = nil
	client, _, _ := clientOf([]runtime.Object{nobodys})
	r := request()
	r.Holder = Holder{Display: "somebody without an ID"}
	if _, err := client.Acquire(t.Context(), r); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("Acquire: got %v, want InvalidInput", err)
	}
	if _, err := client.StillHeld(t.Context(), ""); fail.ReasonOf(err) != fail.EnvironmentMissing {
		t.Errorf("StillHeld: got %v, want EnvironmentMissing", err)
	}
}

func takenBy(h Holder, ago time.Duration) func() *coordinationv1.Lease {
	return func() *coordinationv1.Lease { return leaseOf(h, ago) }
}

func TestAcquireWritesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _, _ := clientOf(nil)
		first, err := client.Acquire(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		started := metav1.NewMicroTime(time.Now())
		id, seconds := "uid-1", int32(120)
		owner := run.OwnerReference("train-1", "uid-1")
		want := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "env", UID: first.UID(),
				Labels: map[string]string{
					"app.kubernetes.io/managed-by": "ml-dev-env", "app.kubernetes.io/name": "ml-dev-env", "ml-dev-env.github.io/environment": "env",
				},
				Annotations:     map[string]string{HolderName: "train-1", HolderKind: "PipelineRun"},
				OwnerReferences: []metav1.OwnerReference{owner},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &id, LeaseDurationSeconds: &seconds, AcquireTime: &started, RenewTime: &started},
		}
		check := func() {
			t.Helper()
			got, err := client.Find(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got.ManagedFields, got.TypeMeta = nil, metav1.TypeMeta{}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("lease (-want +got):\n%s", diff)
			}
		}
		check()

		// The same holder takes it again, to keep it after its run.
		time.Sleep(minute)
		kept := request()
		kept.Owner, kept.Duration = nil, time.Hour
		if _, err := client.Acquire(t.Context(), kept); err != nil {
			t.Fatal(err)
		}
		renewed := metav1.NewMicroTime(time.Now())
		hour := int32(3600)
		want.OwnerReferences, want.Spec.RenewTime, want.Spec.LeaseDurationSeconds = nil, &renewed, &hour
		check()
	})
}

// Each answer simulates another writer that was faster.
func TestAcquireTriesAgain(t *testing.T) {
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "leases"}, "env")
	for _, tc := range []struct {
		name, verb string
		lease      []runtime.Object
		answer     error
		times      int
		want       bool
	}{
		{"created by another", "create", nil, exists, 1, true},
		{"changed by another", "update", []runtime.Object{leaseOf(ours(), 0)}, conflict(), 3, true},
		{"always changed by another", "update", []runtime.Object{leaseOf(ours(), 0)}, conflict(), 1000, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client, kube, _ := clientOf(tc.lease)
			kube.PrependReactor(tc.verb, "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				tc.times--
				return tc.times >= 0, nil, tc.answer
			})
			_, err := client.Acquire(t.Context(), request())
			if (err == nil) != tc.want {
				t.Errorf("got %v, want success %v", err, tc.want)
			}
		})
	}
}

// The test deletes the pod, as the garbage collector would after the old Lease.
func TestAcquireWaitsForTheRestOfEarlierEnvironments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-0", Labels: objects.Labels("env")}}
		other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other-0", Labels: objects.Labels("other")}}
		client, kube, log := clientOf([]runtime.Object{left, other})
		taken := make(chan error, 1)
		go func() {
			_, err := client.Acquire(t.Context(), request())
			taken <- err
		}()
		synctest.Wait()
		select {
		case err := <-taken:
			t.Fatalf("taken before the pod was gone: %v", err)
		default:
		}
		if err := kube.CoreV1().Pods("ns").Delete(t.Context(), "env-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-taken; err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "Waiting until the pods of an earlier environment are gone: env-0.") {
			t.Errorf("log: %s", log)
		}
	})
}

func TestAcquireWhenFree(t *testing.T) {
	for _, tc := range []struct {
		name string
		runs []runtime.Object
		// change is called after a minute.
		change func(context.Context, Client) error
		// want is the time until Acquire returns, 0 if the environment is still busy at the deadline of an hour.
		want time.Duration
	}{
		{"released", []runtime.Object{pipelineRun(theirs(), false)},
			func(ctx context.Context, c Client) error { return c.Delete(ctx, "lease-of-uid-2") }, minute},
		{"the run is done, the lease ends by itself", []runtime.Object{pipelineRun(theirs(), true)},
			func(context.Context, Client) error { return nil }, 2*minute + 10*time.Second},
		{"held all the time", []runtime.Object{pipelineRun(theirs(), false)},
			func(context.Context, Client) error { return nil }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _, log := clientOf([]runtime.Object{leaseOf(theirs(), 0)}, tc.runs...)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				started := time.Now()
				time.AfterFunc(minute, func() {
					if err := tc.change(ctx, client); err != nil {
						t.Error(err)
					}
				})
				held, err := client.AcquireWhenFree(ctx, request())
				if tc.want == 0 {
					var busy *Busy
					if !errors.As(err, &busy) || fail.ReasonOf(err) != fail.EnvironmentBusy {
						t.Errorf("got %v, %v, want Busy", held, err)
					}
				} else if took := time.Since(started); err != nil || took != tc.want {
					t.Errorf("took %s (%v), want %s", took, err, tc.want)
				}
				if !strings.Contains(log.String(), "Waiting for environment env: it is held by pipelinerun train-2") {
					t.Errorf("log: %s", log)
				}
			})
		})
	}
}

func TestDelete(t *testing.T) {
	client, kube, _ := clientOf([]runtime.Object{leaseOf(ours(), 0)})
	var asked *metav1.Preconditions
	kube.PrependReactor("delete", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		asked = action.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions
		if *asked.UID != "lease-of-uid-1" {
			return true, nil, conflict()
		}
		return false, nil, nil
	})
	for _, uid := range []types.UID{"of-another", "lease-of-uid-1", "lease-of-uid-1"} {
		if err := client.Delete(t.Context(), uid); err != nil {
			t.Errorf("deleting %s: %v", uid, err)
		}
		if *asked.UID != uid {
			t.Errorf("precondition: got %s, want %s", *asked.UID, uid)
		}
	}
	if _, err := client.Find(t.Context()); fail.ReasonOf(err) != fail.EnvironmentMissing {
		t.Errorf("Find after Delete: got %v", err)
	}
}

func TestLost(t *testing.T) {
	remade := leaseOf(ours(), 0)
	remade.UID = "another"
	deleted := leaseOf(ours(), 0)
	deleted.DeletionTimestamp, deleted.Finalizers = &metav1.Time{Time: time.Now()}, []string{"x"}
	nobodys := leaseOf(ours(), 0)
	nobodys.Spec.HolderIdentity = nil
	for name, known := range map[string][]runtime.Object{
		"gone":             nil,
		"somebody else's":  {leaseOf(theirs(), 0)},
		"nobody's":         {nobodys},
		"being deleted":    {deleted},
		"deleted and made": {remade},
	} {
		t.Run(name, func(t *testing.T) {
			client, _, _ := clientOf(known)
			hold := client.newHold(leaseOf(ours(), 0))
			if err := hold.KeepRenewed(t.Context(), minute); fail.ReasonOf(err) != fail.EnvironmentMissing {
				t.Errorf("KeepRenewed: got %v, want EnvironmentMissing", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), minute)
			defer cancel()
			if err := hold.WaitLost(ctx); fail.ReasonOf(err) != fail.EnvironmentMissing {
				t.Errorf("Lost: got %v, want EnvironmentMissing", err)
			}
			if name == "deleted and made" {
				return // the holder is the same, so a later step cannot and need not notice
			}
			if _, err := client.StillHeld(t.Context(), "uid-1"); fail.ReasonOf(err) != fail.EnvironmentMissing {
				t.Errorf("StillHeld: got %v, want EnvironmentMissing", err)
			}
		})
	}
}

// Waiting does not restore a missing right, so KeepRenewed reports it.
func TestRenewalWithoutTheRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, kube, _ := clientOf([]runtime.Object{leaseOf(ours(), 0)})
		kube.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "env", errors.New("no"))
		})
		ctx, cancel := context.WithTimeout(t.Context(), minute)
		defer cancel()
		if err := client.newHold(leaseOf(ours(), 0)).KeepRenewed(ctx, minute); fail.ReasonOf(err) != fail.PermissionDenied {
			t.Errorf("got %v, want PermissionDenied", err)
		}
	})
}

func TestKeepRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, kube, log := clientOf([]runtime.Object{leaseOf(ours(), 0)})
		held, err := client.StillHeld(t.Context(), "uid-1")
		if err != nil {
			t.Fatal(err)
		}
		away := 2
		kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			away--
			return away >= 0, nil, apierrors.NewServiceUnavailable("starting")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 95*time.Second)
		defer cancel()
		started := time.Now()
		if err := held.KeepRenewed(ctx, 30*time.Second); err != nil {
			t.Errorf("after the end of its context: got %v", err)
		}
		lease, err := client.Find(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := lease.Spec.RenewTime.Sub(started); got != 70*time.Second {
			t.Errorf("last renewed after %s, want 1m10s: two failures, 5 s apart, and then every 30 s", got)
		}
		if got := strings.Count(log.String(), "could not be renewed"); got != 1 {
			t.Errorf("warned %d times, want once: %s", got, log)
		}
	})
}

// The Lease of an environment that is kept for a minute does not expire while a command works in it.
func TestRenewsShortLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _, _ := clientOf(nil)
		short := request()
		short.Duration = minute
		held, err := client.Acquire(t.Context(), short)
		if err != nil {
			t.Fatal(err)
		}
		stop := held.Renewing(t.Context())
		defer stop()
		for range 20 {
			time.Sleep(10 * time.Second)
			lease, err := client.Find(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if age := time.Since(lease.Spec.RenewTime.Time); age >= minute/2 {
				t.Fatalf("the lease was renewed %s ago", age)
			}
		}
	})
}
