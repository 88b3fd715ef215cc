// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// aRun returns a run that started so long ago; it has ended if done.
func aRun(namespace, name string, age time.Duration, done bool) *v1.PipelineRun {
	r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid of " + name),
		Labels: map[string]string{"tekton.dev/pipeline": launch.Pipeline}}}
	r.Status.StartTime = &metav1.Time{Time: time.Now().Add(-age)}
	if done {
		r.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionTrue})
	}
	return r
}

// Runs of all namespaces are listed with theirs, even if two have the same name, and a limit keeps the newest.
func TestRunsOfAllNamespaces(t *testing.T) {
	client := kubefake.NewClientset()
	for _, left := range []receipt.Receipt{
		{Run: "same", Namespace: "a", RunUID: "gone", Environment: "env", Verdict: receipt.Failed, Reason: fail.Hang,
			Started: time.Now().Add(-3 * time.Hour)},
		{Run: "same", Namespace: "b", RunUID: "uid of same", Environment: "env", Verdict: receipt.Succeeded, Started: time.Now().Add(-time.Hour)},
	} {
		if err := receipt.Write(t.Context(), client, left); err != nil {
			t.Fatal(err)
		}
	}
	tekton := tektonfake.NewSimpleClientset(aRun("b", "same", time.Hour, true), aRun("c", "other", time.Minute, false))
	for limit, want := range map[int]string{0: "c/other Running, b/same Succeeded, a/same Failed", 2: "c/other Running, b/same Succeeded",
		9: "c/other Running, b/same Succeeded, a/same Failed"} {
		found, err := summaries(t.Context(), &kube.Clients{Kube: client, Tekton: tekton, Namespace: metav1.NamespaceAll}, limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range found {
			got = append(got, s.Namespace+"/"+s.Name+" "+s.State)
		}
		if diff := cmp.Diff(want, strings.Join(got, ", ")); diff != "" {
			t.Errorf("limit %d (-want +got):\n%s", limit, diff)
		}
		var out bytes.Buffer
		if err := printTable(&out, found, time.Now(), true); err != nil || !strings.HasPrefix(out.String(), "NAMESPACE  NAME") {
			t.Errorf("printed %q, %v", out.String(), err)
		}
	}
}

// writes passes on each write.
type writes chan string

func (l writes) Write(text []byte) (int, error) {
	l <- string(text)
	return len(text), nil
}

// A watch prints a run again only when it changes, and Ctrl-C ends it without an error.
func TestWatchRuns(t *testing.T) {
	tekton := tektonfake.NewSimpleClientset(aRun("ns", "first", time.Hour, true), aRun("ns", "second", time.Minute, false))
	clients := &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, ended := make(writes, 10), make(chan error, 1)
	go func() { ended <- watchRuns(ctx, clients, 0, out) }()
	if first := <-out; strings.Count(first, "\n") != 3 {
		t.Errorf("at first %q, want both runs", first)
	}
	if _, err := tekton.TektonV1().PipelineRuns("ns").Update(ctx, aRun("ns", "second", time.Minute, true),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if then := <-out; strings.Count(then, "\n") != 2 || !strings.Contains(then, "second  Succeeded") {
		t.Errorf("then %q, want the run that has ended", then)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// mlenv cancel without a name cancels the only run in progress, and never one of several.
func TestToCancel(t *testing.T) {
	for name, tc := range map[string]struct {
		runs []runtime.Object
		args []string
		want string
		err  string
	}{
		"the only one": {[]runtime.Object{aRun("ns", "old", time.Hour, true), aRun("ns", "now", time.Minute, false)}, nil, "now", ""},
		"one of two": {[]runtime.Object{aRun("ns", "a", time.Hour, false), aRun("ns", "b", time.Minute, false)}, nil, "",
			"in progress are b, a: want one of them"},
		"none in progress": {[]runtime.Object{aRun("ns", "old", time.Hour, true)}, nil, "", "none is in progress"},
		"named":            {[]runtime.Object{aRun("ns", "a", time.Hour, false), aRun("ns", "b", time.Minute, false)}, []string{"a"}, "a", ""},
	} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
		got, err := toCancel(t.Context(), &kube.Clients{Kube: kubefake.NewClientset(namespace), Tekton: tektonfake.NewSimpleClientset(tc.runs...),
			Namespace: "ns"}, tc.args)
		if got.name != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: got %q, %v; want %q %q", name, got.name, err, tc.want, tc.err)
		}
	}
}

// That the runs cannot be read does not mean that none is in progress.
func TestToCancelWithoutAnswer(t *testing.T) {
	tekton := tektonfake.NewSimpleClientset(aRun("ns", "now", time.Minute, false))
	tekton.PrependReactor("list", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewUnauthorized("expired")
	})
	_, err := toCancel(t.Context(), &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}, nil)
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("got %v, want the API server's answer", err)
	}
}

// A cancelled run is followed as long as its ranks may save.
func TestCleanupTime(t *testing.T) {
	of := aRun("ns", "now", time.Minute, false)
	if got := cleanupTime(of); got != run.TeardownTime+2*time.Minute {
		t.Errorf("without timeouts: %s", got)
	}
	of.Spec.Timeouts = &v1.TimeoutFields{Finally: &metav1.Duration{Duration: time.Hour}}
	if got := cleanupTime(of); got != time.Hour+2*time.Minute {
		t.Errorf("with an hour for the finally tasks: %s", got)
	}
}

// TestFirstRun tests that status and logs without a name take a run in progress, of the cluster rather than of this machine, or else the
// newest.
func TestFirstRun(t *testing.T) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	clients := &kube.Clients{Kube: kubefake.NewClientset(namespace), Namespace: "ns",
		Tekton: tektonfake.NewSimpleClientset(aRun("ns", "old", time.Hour, true), aRun("ns", "new", time.Minute, true))}
	local := func(age time.Duration, verdict receipt.Verdict) []runInfo {
		return []runInfo{{name: "local", at: onMachine{}, forbidden: true,
			receipt: &receipt.Receipt{Run: "local", Verdict: verdict, Started: time.Now().Add(-age)}}}
	}
	check := func(want string, local []runInfo, named ...string) {
		t.Helper()
		if got, err := chosenRun(t.Context(), clients, named, local); err != nil || got.name != want {
			t.Errorf("got %q, %v; want %q", got.name, err, want)
		}
	}
	check("new", local(time.Hour, receipt.Succeeded))
	check("local", local(time.Second, receipt.Succeeded))
	check("local", local(time.Hour, ""))
	check("old", local(time.Second, receipt.Succeeded), "old")
	if err := clients.Tekton.(*tektonfake.Clientset).Tracker().Add(aRun("ns", "trains", 2*time.Hour, false)); err != nil {
		t.Fatal(err)
	}
	check("trains", local(time.Second, receipt.Succeeded))
	check("trains", local(time.Second, ""))
}

func TestSince(t *testing.T) {
	o := logsOptions{since: 10 * time.Minute}
	for age, want := range map[time.Duration]bool{time.Minute: true, 11 * time.Minute: false} {
		if got := o.isNew(launch.Event{Time: time.Now().Add(-age)}); got != want {
			t.Errorf("a line %s old: %t, want %t", age, got, want)
		}
	}
	if !o.isNew(launch.Event{}) || !(&logsOptions{}).isNew(launch.Event{Time: time.Unix(1, 0)}) {
		t.Error("want all lines without --since, and those without a time")
	}
}

// The status of a run names what the pod of a phase waits for.
func TestStatusWaits(t *testing.T) {
	of := aRun("ns", "train-1", time.Minute, false)
	task := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-1-provision",
		Labels:          map[string]string{run.Label: of.Name, "tekton.dev/pipelineTask": "provision"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(of, v1.SchemeGroupVersion.WithKind("PipelineRun"))}}}
	task.Status.StartTime = &metav1.Time{Time: time.Now().Add(-time.Minute)}
	task.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionUnknown, Reason: "ExceededNodeResources",
		Message: "0/3 nodes are available"})
	clients := &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tektonfake.NewSimpleClientset(of, task), Namespace: "ns"}
	r, err := findRun(t.Context(), clients, "train-1")
	if err != nil {
		t.Fatal(err)
	}
	s := r.status(t.Context(), clients)
	if diff := cmp.Diff([]waiting{{Task: "provision", Text: "0/3 nodes are available"}}, s.Waits); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var out bytes.Buffer
	if err := s.print(&out, time.Now()); err != nil || !strings.Contains(out.String(), "\nprovision: 0/3 nodes are available\n") {
		t.Errorf("printed %q, %v", out.String(), err)
	}
}

func TestNewestCheckpoint(t *testing.T) {
	for name, tc := range map[string]struct {
		entries []string
		latest  string
		want    string
	}{
		"by number":                {[]string{"step-9", "step-100", "step-20"}, "", "step-100"},
		"files":                    {[]string{"epoch-2.ckpt", "epoch-10.ckpt"}, "", "epoch-10.ckpt"},
		"marked":                   {[]string{"global_step9", "global_step100"}, "global_step9\n", "global_step9"},
		"marked, but not fetched":  {[]string{"step-1"}, "step-2", "step-1"},
		"marked outside":           {[]string{"step-1"}, "../../etc", "step-1"},
		"none":                     {nil, "", ""},
		"hidden and partial files": {[]string{".tmp-5", "step-1"}, "", "step-1"},
	} {
		folder := t.TempDir()
		for _, entry := range tc.entries {
			if err := os.Mkdir(filepath.Join(folder, entry), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if tc.latest != "" {
			if err := os.WriteFile(filepath.Join(folder, "latest"), []byte(tc.latest), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want := ""
		if tc.want != "" {
			want = filepath.Join(folder, tc.want)
		}
		if got := newestCheckpoint(folder); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	var out bytes.Buffer
	to := t.TempDir()
	if err := os.MkdirAll(filepath.Join(to, "node-0", "checkpoints", "train-1", "step-3"), 0o755); err != nil {
		t.Fatal(err)
	}
	runInfo{name: "train-1", at: onCluster{}, run: aRun("ns", "train-1", time.Hour, true)}.printNewest(&out, to)
	if !strings.Contains(out.String(), "step-3\n  continue from it: mlenv run --resume-from train-1 -n ns\n") {
		t.Errorf("got %q", out.String())
	}
}

// A dry run plans with the params of the run, and creates nothing.
func TestDryRun(t *testing.T) {
	values := map[string]string{"name": "kim", "nodes": "3", "gpus-per-node": "2", "mode": "tcp", "exclude-nodes": "a,b", "storage": "rwx",
		"routes":      "true",
		"steps-image": "registry.invalid/ml-dev-env/steps:0.1.0", "image": "quay.io/me/train:v1"}
	o := planOptions(func(param string) string { return values[param] })
	r := o.Request
	if r.Name != "kim" || r.Nodes != 3 || r.GPUs() != 2 || o.Mode != "tcp" || !slices.Equal(r.ExcludeNodes, []string{"a", "b"}) ||
		!r.Routes ||
		r.StepsImage != "" || r.Image != "quay.io/me/train:v1" {
		t.Errorf("got %+v", o)
	}
	tekton := tektonfake.NewSimpleClientset(&v1.Pipeline{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: launch.Pipeline},
		Spec: v1.PipelineSpec{Params: v1.ParamSpecs{{Name: "repo-url", Type: v1.ParamTypeString}, {Name: "script", Type: v1.ParamTypeString}}}})
	folder := repositoryWith(t, map[string]string{"train.py": "", ".gitignore": "*.bin\n", "train.bin": "1"})
	for repository, want := range map[string]string{"https://example.com/r": "",
		folder: "Left out by .gitignore and .mlenvignore: 1 file, 1 B.\n"} {
		var said bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetOut(io.Discard)
		cmd.SetErr(&said)
		options := runOptions{dryRun: true, values: map[string][]string{"repo-url": {repository}, "script": {"train.py"}}}
		err := options.start(cmd, &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}, nil)
		if err == nil || fail.ReasonOf(err) != fail.InvalidInput || command.Printed(err) { // no cluster file is installed
			t.Errorf("%s: got %v, want that no cluster file is installed", repository, err)
		}
		if said.String() != want {
			t.Errorf("%s: it said %q, want %q", repository, &said, want)
		}
	}
	for _, action := range tekton.Actions() {
		if action.GetVerb() == "create" {
			t.Errorf("it created %s", action.GetResource().Resource)
		}
	}
}
