package action

import (
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/sethvargo/go-githubactions"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
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
	a, client, _ := started(t)
	stored := ""
	client.PrependReactor("create", "pipelineruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
		var err error
		if stored, err = a.storedName(); err != nil {
			t.Error(err)
		}
		made := action.(clienttesting.CreateAction).GetObject().(*tekton.PipelineRun)
		if stored == "" || stored != made.Name {
			t.Errorf("%q is stored for run %q", stored, made.Name)
		}
		return true, nil, apierrors.NewInternalError(os.ErrDeadlineExceeded)
	})
	if err := a.run(t.Context(), settings{namespace: "ns"}); err == nil || stored == "" {
		t.Fatalf("got %v, %q; want the API server's error", err, stored)
	}
	// The API server's answer was lost, and the run does not exist.
	if err := a.end(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(a.stateFile()); !os.IsNotExist(err) {
		t.Errorf("the name is still stored: %v, want %v", err, fs.ErrNotExist)
	}
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
	err := a.report(launch.Outcome{Run: of, Verdict: receipt.Failed, Reason: fail.RankFailed, Message: "ValueError: a\n::add-mask::b"})
	if !step.Printed(err) {
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
