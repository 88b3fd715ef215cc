// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/webhook"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// kept is an environment of two nodes that a person keeps, with real agents, whose clock the test sets.
type kept struct {
	*reaper
	client *fake.Clientset
	nodes  []*agenttest.Node
	log    *bytes.Buffer
	passed *atomic.Int64
}

// newKept starts one with an idle-timeout, "" for none.
func newKept(t *testing.T, timeout string) kept {
	t.Helper()
	dir := t.TempDir() // for unused GPUs
	smi := "#!/bin/sh\ncase $1 in --query-gpu*) echo '0, GPU-0, H100, 570.1, 81559, 0, 0, 30, 0x0, None, 0, 00000000:10:00.0, Disabled, " +
		"9.0';; esac"
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(smi), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	passed, began := &atomic.Int64{}, time.Now()
	nodes := agenttest.StartWith(t, 2, agenttest.Options{Now: func() time.Time { return began.Add(time.Duration(passed.Load())) }})
	held := leaseOf("env", "h-kim", 0)
	if timeout != "" {
		held.Annotations[lease.IdleAnnotation] = timeout
	}
	made := nodes[0].Certificates()
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: objects.Labels("env")}
	}
	known := []runtime.Object{
		held, &appsv1.StatefulSet{ObjectMeta: meta("env"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2))}},
		&corev1.ConfigMap{ObjectMeta: meta("env-agent-use"),
			Data: map[string]string{"ca.crt": string(made.CA), "tls.crt": string(made.ReaperCert),
				"tls.key": string(made.ReaperKey)}},
	}
	for _, node := range nodes {
		known = append(known, &corev1.Pod{ObjectMeta: meta(node.Config.Pod),
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: node.Config.PodIP}})
	}
	r, client, log := newReaper(known, nil)
	// It stands in for the garbage collector.
	client.PrependReactor("delete", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		err := client.Tracker().Delete(appsv1.SchemeGroupVersion.WithResource("statefulsets"), "ns", "env")
		for _, node := range nodes {
			err = errors.Join(err, client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", node.Config.Pod))
		}
		return err != nil, nil, err
	})
	return kept{r, client, nodes, log, passed}
}

// after lets time pass, and then the reaper look. It reports whether the environment is left.
func (k kept) after(t *testing.T, pass time.Duration) (left bool) {
	t.Helper()
	k.passed.Add(int64(pass))
	if err := k.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	return len(leases(t, k.client)) > 0
}

// An environment that is not used goes away, and one in use does not.
func TestIdleEnvironments(t *testing.T) {
	for _, tc := range []struct {
		name, timeout string
		use           func(*testing.T, *agent.Client) error
		idle          time.Duration
		want          bool
	}{
		{"idle", "2h0m0s", nil, 2 * time.Hour, true},
		{"not for long", "2h0m0s", nil, 2*time.Hour - time.Second, false},
		{"without a bound", "", nil, 100 * time.Hour, false},
		{"a bound that is none", "soon", nil, 100 * time.Hour, false},
		{"a job runs on one node", "2h0m0s", func(t *testing.T, node *agent.Client) error {
			_, err := node.StartJob(t.Context(), "job-1", agent.JobSpec{Run: "run", Launcher: agent.Command, Script: "sleep",
				Args: []string{"1000"}, Nodes: 2, RanksPerNode: 1})
			return err
		}, 3 * time.Hour, false},
		{"a shell is open on one node", "2h0m0s", func(t *testing.T, node *agent.Client) error {
			return node.KeepShell(t.Context(), "one")
		}, 3 * time.Hour, false},
		{"requested again", "2h0m0s", func(t *testing.T, node *agent.Client) error {
			return node.BeginUse(t.Context())
		}, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := newKept(t, tc.timeout)
			if tc.use != nil {
				k.passed.Add(int64(3 * time.Hour))
				if err := tc.use(t, k.nodes[1].Client); err != nil {
					t.Fatal(err)
				}
			}
			left := k.after(t, tc.idle)
			if left == tc.want {
				t.Fatalf("released: %t, want %t\n%s", !left, tc.want, k.log)
			}
			if why := "Environment ns/env is released, because name-of-h-kim has not used it for 2h0m (last: its start), and its idle-timeout is " +
				"2h0m."; tc.want && !strings.Contains(k.log.String(), why) {
				t.Errorf("the log has no %q:\n%s", why, k.log)
			}
		})
	}
}

// The holder is warned once, ten minutes before the release, and again after the next use.
func TestWarnsOfRelease(t *testing.T) {
	k := newKept(t, "2h0m0s")
	posted := webhook.Receive(t, &k.notify)
	for i, tc := range []struct {
		pass time.Duration
		use  bool
		want string // the warning
	}{
		{109 * time.Minute, false, ""},
		{2 * time.Minute, false, "Environment ns/env of name-of-h-kim has not been used for 1h51m (last: its start). " +
			"It is released in 9m0s unless it is used; claims stay."},
		{time.Minute, false, ""},
		{time.Minute, true, ""},
		{114 * time.Minute, false, "Environment ns/env of name-of-h-kim has not been used for 1h55m (last: a shell). " +
			"It is released in 5m0s unless it is used; claims stay."},
	} {
		if tc.use {
			if err := errors.Join(k.nodes[0].Client.KeepShell(t.Context(), "one"), k.nodes[0].Client.EndShell(t.Context(), "one")); err != nil {
				t.Fatal(err)
			}
		}
		if !k.after(t, tc.pass) {
			t.Fatalf("pass %d: released\n%s", i, k.log)
		}
		var got notify.Event
		select {
		case got = <-posted: // the reaper waits until it has arrived
		default:
		}
		if got.Text != tc.want || tc.want != "" && (got.Kind != notify.Idle || got.Environment != "env" || got.Run != "") {
			t.Errorf("pass %d: posted %+v, want %q\n%s", i, got, tc.want, k.log)
		}
	}
	events, err := k.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) != 2 || events.Items[0].Reason != idleReason || events.Items[0].Type != corev1.EventTypeWarning {
		t.Errorf("events %+v, %v; want two warnings", events, err)
	}
	if k.after(t, 5*time.Minute) {
		t.Errorf("it is left\n%s", k.log)
	}
}

// An environment stays if a node does not answer, or if the environment has no certificate for the question.
func TestUnknownUseKeepsIt(t *testing.T) {
	for name, hide := range map[string]func(*testing.T, kept) error{
		"a node without an address": func(t *testing.T, k kept) error {
			pod, err := k.client.CoreV1().Pods("ns").Get(t.Context(), "env-1", metav1.GetOptions{})
			pod.Status.PodIP = ""
			_, failed := k.client.CoreV1().Pods("ns").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
			return errors.Join(err, failed)
		},
		"it is being created": func(t *testing.T, k kept) error {
			return k.client.CoreV1().ConfigMaps("ns").Delete(t.Context(), "env-agent-use", metav1.DeleteOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKept(t, "2h0m0s")
			if err := hide(t, k); err != nil {
				t.Fatal(err)
			}
			if !k.after(t, 3*time.Hour) || !strings.Contains(k.log.String(), "Environment ns/env stays: ") {
				t.Errorf("want it to stay, with the reason in the log:\n%s", k.log)
			}
		})
	}
}

// A user who comes back in the moment of the release keeps the environment.
func TestUsedMeanwhile(t *testing.T) {
	k := newKept(t, "2h0m0s")
	deletions := 0
	k.client.PrependReactor("delete", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		deletions++
		return true, nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "env", errors.New("mlenv has renewed it"))
	})
	if !k.after(t, 3*time.Hour) || deletions != 1 {
		t.Errorf("%d deletions, want one and the environment left\n%s", deletions, k.log)
	}
}

// A training by hand whose mlenv train was killed gets its receipt while its environment is kept, but not while its ranks run.
func TestKilledTrainingByHand(t *testing.T) {
	k := newKept(t, "")
	start := receipt.Start{Run: "by-hand-1", Namespace: "ns", RunUID: "by-hand-1", Environment: "env", Kept: true}
	entry := receipt.Entry{Task: "train", Status: run.Running, Started: time.Now()}
	if err := receipt.Note(t.Context(), k.client, start, entry); err != nil {
		t.Fatal(err)
	}
	spec := agent.JobSpec{Run: "by-hand-1", Launcher: agent.Command, Script: "sleep", Args: []string{"1000"}, Nodes: 2, RanksPerNode: 1}
	if _, err := k.nodes[1].Client.StartJob(t.Context(), "by-hand-1", spec); err != nil {
		t.Fatal(err)
	}
	for _, running := range []bool{true, false} {
		if !running {
			stop := agent.Stop{Cause: agent.StopCancelled, Grace: time.Millisecond}
			job := jobs.Job{ID: "by-hand-1", Members: nodes.Set{k.nodes[1].Client}}
			if err := job.StopAndWait(t.Context(), stop); err != nil {
				t.Fatal(err)
			}
		}
		if !k.after(t, notedTime+time.Second) {
			t.Fatal("the environment is released")
		}
		got, err := receipt.Read(t.Context(), k.client, "ns", "by-hand-1")
		if running && !apierrors.IsNotFound(err) || !running && (err != nil || !strings.Contains(got.Message, "mlenv train was killed")) {
			t.Errorf("running %t: got %+v, %v\n%s", running, got, err, k.log)
		}
	}
}
