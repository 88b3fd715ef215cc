// SPDX-License-Identifier: Apache-2.0

package action

import (
	"context"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sethvargo/go-githubactions"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// started returns a step of a workflow that uses fakes. The fakes run no controller.
func started(t *testing.T) (*action, *tektonfake.Clientset, *strings.Builder) {
	t.Helper()
	dir := t.TempDir()
	getenv := func(name string) string { return map[string]string{"RUNNER_TEMP": dir}[name] }
	var out strings.Builder
	gh := githubactions.New(githubactions.WithWriter(&out), githubactions.WithGetenv(getenv))
	client := tektonfake.NewSimpleClientset(&tekton.Pipeline{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: launch.Pipeline}})
	return &action{
		page: page{gh: gh, getenv: getenv}, log: newGroups(gh),
		clients: &kube.Clients{Kube: fake.NewClientset(), Tekton: client, Namespace: "ns"},
	}, client, &out
}

// A runner may kill a cancelled step at any point; the step after it cancels the run.
func TestNameIsStoredBeforeTheRunExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, client, _ := started(t)
		name := ""
		client.PrependReactor("create", "pipelineruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
			var created bool
			var err error
			if name, created, err = a.stored(); err != nil {
				t.Error(err)
			}
			made := action.(clienttesting.CreateAction).GetObject().(*tekton.PipelineRun)
			if name == "" || name != made.Name || created {
				t.Errorf("%q is stored for run %q, created: %v", name, made.Name, created)
			}
			return true, nil, apierrors.NewInternalError(os.ErrDeadlineExceeded)
		})
		if err := a.run(t.Context(), settings{namespace: "ns"}); err == nil || name == "" {
			t.Fatalf("got %v, %q; want the API server's error", err, name)
		}
		// The API server's answer was lost, and the run does not exist.
		if err := a.cancelLeftRun(t.Context()); err != nil {
			t.Error(err)
		}
		forgotten(t, a)
	})
}

func forgotten(t *testing.T, a *action) {
	t.Helper()
	if _, err := os.Stat(a.stateFile()); !os.IsNotExist(err) {
		t.Errorf("the name is still stored: %v, want %v", err, fs.ErrNotExist)
	}
}

// lost fails as a connection does that ends before the answer.
var lost = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}

// ends makes the fake end a run that is cancelled, as the teardown's end does.
func ends(client *tektonfake.Clientset) {
	client.PrependReactor("patch", "pipelineruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		kind := schema.GroupVersionResource{Group: "tekton.dev", Version: "v1", Resource: "pipelineruns"}
		found, err := client.Tracker().Get(kind, patch.GetNamespace(), patch.GetName())
		if err != nil {
			return true, nil, err
		}
		of := found.(*tekton.PipelineRun).DeepCopy()
		of.Spec.Status = tekton.PipelineRunSpecStatusCancelledRunFinally
		of.Status.MarkFailed("Cancelled", "it was cancelled")
		of.Status.CompletionTime = &metav1.Time{Time: time.Now()}
		return true, of, client.Tracker().Update(kind, of, patch.GetNamespace())
	})
}

// The creation is committed late, and the step never hears of it.
func TestEndFindsARunWhoseCreationWasNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, client, _ := started(t)
		ends(client)
		var wanted *tekton.PipelineRun
		client.PrependReactor("create", "pipelineruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
			wanted = action.(clienttesting.CreateAction).GetObject().(*tekton.PipelineRun)
			return true, nil, lost
		})
		if err := a.run(t.Context(), settings{namespace: "ns"}); err == nil {
			t.Fatal("got no error")
		}
		time.AfterFunc(commitTime/2, func() {
			if err := client.Tracker().Add(wanted); err != nil {
				t.Error(err)
			}
		})
		if err := a.cancelLeftRun(t.Context()); err != nil {
			t.Error(err)
		}
		found, err := client.TektonV1().PipelineRuns("ns").Get(t.Context(), wanted.Name, metav1.GetOptions{})
		if err != nil || !found.IsGracefullyCancelled() {
			t.Errorf("the run is %v, %v; want it cancelled", found.Spec.Status, err)
		}
		forgotten(t, a)
	})
}

// The run cannot be followed, and cancelling fails too: the next step cancels it.
func TestEndCancelsARunThatWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, client, _ := started(t)
		ends(client)
		broken := true
		for _, verb := range []string{"patch", "get"} {
			client.PrependReactor(verb, "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return broken && action.GetResource().Resource != "pipelines", nil, lost
			})
		}
		// A transient error would be waited for.
		client.PrependReactor("list", "taskruns", func(clienttesting.Action) (bool, runtime.Object, error) {
			return broken, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "taskruns"}, "", nil)
		})
		if err := a.run(t.Context(), settings{namespace: "ns"}); err == nil {
			t.Fatal("got no error")
		}
		time.AfterFunc(cancelTime/2, func() { broken = false })
		if err := a.cancelLeftRun(t.Context()); err != nil {
			t.Error(err)
		}
		list, err := client.TektonV1().PipelineRuns("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || !list.Items[0].IsGracefullyCancelled() {
			t.Errorf("the runs are %v, %v; want one that is cancelled", list.Items, err)
		}
		forgotten(t, a)
	})
}

// GitHub may stop the step as soon as it begins: it still cancels the run.
func TestEndCancelsWithoutTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, client, _ := started(t)
		// The runner kills the first step before it can cancel.
		client.PrependReactor("patch", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pipelineruns"}, "", nil)
		})
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if err := a.run(ctx, settings{namespace: "ns"}); err == nil {
			t.Fatal("got no error")
		}
		ends(client)
		if err := a.cancelLeftRun(ctx); err == nil {
			t.Error("got no error of the stopped step")
		}
		list, err := client.TektonV1().PipelineRuns("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || !list.Items[0].IsGracefullyCancelled() {
			t.Errorf("the runs are %v, %v; want one that is cancelled", list.Items, err)
		}
		for _, action := range client.Actions() {
			if patch, ok := action.(clienttesting.PatchAction); ok && strings.Contains(string(patch.GetPatch()), run.CancelAnnotation) {
				t.Errorf("it sent %s, which leaves the ranks no time to save", patch.GetPatch())
			}
		}
	})
}

// A run counts for a branch only if it trains the branch's own commit.
func TestOrigin(t *testing.T) {
	env := map[string]string{"GITHUB_RUN_ID": "1", "GITHUB_REF_TYPE": "branch", "GITHUB_REF_NAME": "main", "GITHUB_SHA": "c0ffee"}
	a := action{page: page{getenv: func(name string) string { return env[name] }}}
	for revision, want := range map[string]string{"c0ffee": "main", "main": "main", "decaf": ""} {
		s := settings{checkout: true, params: map[string]string{"revision": revision}}
		if got := a.origin(s)[branchAnnotation]; got != want {
			t.Errorf("revision %s: branch %q, want %q", revision, got, want)
		}
	}
	if got := a.origin(settings{params: map[string]string{"revision": "v1"}})[branchAnnotation]; got != "main" {
		t.Errorf("another repository: branch %q, want main", got)
	}
}

// A run that was refused does not keep the next step waiting.
func TestARefusedRunIsForgotten(t *testing.T) {
	a, client, _ := started(t)
	client.PrependReactor("create", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pipelineruns"}, "", nil)
	})
	if err := a.run(t.Context(), settings{namespace: "ns"}); fail.ReasonOf(err) != fail.PermissionDenied {
		t.Errorf("got %v, want PermissionDenied", err)
	}
	forgotten(t, a)
}

// TestTheLogTellsOfAWait: the step waits up to half a minute before the run exists.
func TestTheLogTellsOfAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, client, out := started(t)
		a.clients.Kube = fake.NewClientset(
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: launch.ServiceAccount}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "default"},
				ImagePullSecrets: []corev1.LocalObjectReference{{Name: "default-dockercfg-1"}}})
		client.PrependReactor("create", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pipelineruns"}, "", nil)
		})
		if err := a.run(t.Context(), settings{namespace: "ns"}); fail.ReasonOf(err) != fail.PermissionDenied {
			t.Errorf("got %v, want PermissionDenied", err)
		}
		if want := "Waiting until service account mlenv-pipeline has its pull secrets."; !strings.Contains(out.String(), want) {
			t.Errorf("the log is %q, want %q", out, want)
		}
	})
}

func TestARunThatCannotBeFollowedIsCancelled(t *testing.T) {
	a, client, _ := started(t)
	client.PrependReactor("list", "taskruns", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "taskruns"}, "", nil)
	})
	if err := a.run(t.Context(), settings{namespace: "ns"}); fail.ReasonOf(err) != fail.PermissionDenied {
		t.Errorf("got %v, want PermissionDenied", err)
	}
	list, err := client.TektonV1().PipelineRuns("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || !list.Items[0].IsGracefullyCancelled() {
		t.Errorf("the runs are %v, %v; want one that is cancelled with its finally tasks", list.Items, err)
	}
}

func TestNoMessageIsACommand(t *testing.T) {
	a, _, out := started(t)
	of := &tekton.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine"}}
	outcome := launch.Outcome{Run: of, Verdict: receipt.Failed, Reason: fail.RankFailed, Message: "ValueError: a\n::add-mask::b"}
	err := a.report(t.Context(), outcome)
	if !command.Printed(err) {
		t.Fatal(err)
	}
	obeyed := true
	for line := range strings.Lines(out.String()) {
		switch {
		case strings.HasPrefix(line, "::stop-commands::"):
			obeyed = false
		case strings.HasPrefix(line, "::"+a.log.token+"::"):
			obeyed = true
		case obeyed && strings.HasPrefix(line, "::add-mask::"):
			t.Errorf("the runner obeys %q of\n%s", line, out.String())
		}
	}
}
