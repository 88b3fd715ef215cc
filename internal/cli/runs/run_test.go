// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// RunE is never reached, so no cluster is needed.
func TestArguments(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want map[string][]string
		err  []string
	}{
		{"a repository", []string{"https://example.com/r", "train.py", "--nodes=3", "--env=A=1", "--env=B=2", "--", "--epochs", "3"},
			map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"train.py"}, "nodes": {"3"}, "env": {"A=1", "B=2"},
				"script-args": {"--epochs", "3"}}, nil},
		{"by flags", []string{"--repo-url=r", "--script=s", "--param=timeout=24h", "--param=script-args=a", "--param=script-args=b"},
			map[string][]string{"repo-url": {"r"}, "script": {"s"}, "timeout": {"24h"}, "script-args": {"a", "b"}}, nil},
		{"like another, no arguments of the script", []string{"--like=other", "--"}, map[string][]string{"script-args": {}}, nil},
		{"a module", []string{"r", "-m", "model.train", "--nodes=3", "--", "-m", "3"},
			map[string][]string{"repo-url": {"r"}, "script": {"-m model.train"}, "nodes": {"3"}, "script-args": {"-m", "3"}}, nil},
		{"a module in quotes, first", []string{"-m model.train", "r"}, map[string][]string{"repo-url": {"r"}, "script": {"-m model.train"}}, nil},
		{"a module as a param", []string{"r", "--param=script=-m model.train"},
			map[string][]string{"repo-url": {"r"}, "script": {"-m model.train"}}, nil},
		{"a module of another run's repository", []string{"--like=other", "-m", "model.train"},
			map[string][]string{"script": {"-m model.train"}}, nil},
		{"a module and a script", []string{"r", "train.py", "-m", "model.train"}, nil, []string{"-m model.train and a script: want one of them"}},
		{"a module and a script by flag", []string{"r", "--script=train.py", "-m", "model.train"}, nil,
			[]string{"-m model.train and a script: want one of them"}},
		{"home, which the shell left", []string{"--repo-url=~/model", "--script=~/model/train.py"},
			map[string][]string{"repo-url": {"/home/me/model"}, "script": {"/home/me/model/train.py"}}, nil},
		{"a repository has no home", []string{"https://example.com/r", "~/train.py"},
			map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"~/train.py"}}, nil},
		{"nothing", nil, nil, []string{"the repository's URL, or a folder", "the training script"}},
		{"all mistakes", []string{"r", "s", "t", "--script=u", "--script-args=x", "--param=y", "--param=nodes=1", "--nodes=2", "--", "z"}, nil,
			[]string{`arguments ["t"]`, `argument "s" and --script`, "arguments after -- and --script-args", `--param "y": want NAME=VALUE`,
				"--param nodes and --nodes"}},
		{"a Python without --local", []string{"r", "s", "--python=venv/bin/python3"}, nil, []string{"--python: want --local with it"}},
		{"one param twice", []string{"r", "s", "--param=nodes=1", "--param=nodes=2"}, nil, []string{"--param nodes is given 2 times"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := runOptions{params: newParams(mldevenv.Bundle)}
			cmd := RunCommand(mldevenv.Bundle)
			cmd.ResetFlags()
			t.Setenv("HOME", "/home/me")
			o.params.addTo(cmd.Flags())
			o.module.AddTo(cmd.Flags())
			o.local.addTo(cmd.Flags())
			cmd.Flags().StringVar(&o.like, "like", "", "")
			if err := cmd.ParseFlags(tc.args); err != nil {
				t.Fatal(err)
			}
			err := o.parse(cmd, cmd.Flags().Args())
			if len(tc.err) > 0 {
				if err == nil {
					t.Fatal("no error")
				}
				for _, want := range tc.err {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("got %v, want %q in it", err, want)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, o.values); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// If --run-name names a run that has ended, mlenv run reports the verdict of that run, whatever it trained. It sends
// nothing and starts no other run.
func TestRunThatHasEnded(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("train.py", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	pipeline := &v1.Pipeline{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-multi-node"}}
	for _, name := range []string{"repo-url", "script", "revision", "name", "build-timeout", "start-timeout", "timeout"} {
		pipeline.Spec.Params = append(pipeline.Spec.Params,
			v1.ParamSpec{Name: name, Type: v1.ParamTypeString, Default: v1.NewStructuredValues("1h")})
	}
	ends := map[string]struct {
		status    corev1.ConditionStatus
		cancelled v1.PipelineRunSpecStatus
		code      int
	}{
		"succeeded":     {corev1.ConditionTrue, "", command.Done},
		"failed":        {corev1.ConditionFalse, "", command.Failed},
		"was cancelled": {corev1.ConditionFalse, v1.PipelineRunSpecStatusCancelledRunFinally, command.Interrupted},
	}
	for words, end := range ends {
		for _, repository := range []string{"https://example.com/r", "."} {
			for _, detach := range []bool{false, true} {
				tekton := fake.NewSimpleClientset(pipeline)
				tekton.PrependReactor("create", "pipelineruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
					of := action.(clienttesting.CreateAction).GetObject().(*v1.PipelineRun).DeepCopy()
					of.Spec.Status = end.cancelled
					of.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: end.status, Reason: "Tekton's"})
					return true, nil, errors.Join(tekton.Tracker().Add(of), apierrors.NewAlreadyExists(action.GetResource().GroupResource(), of.Name))
				})
				var out, problems bytes.Buffer
				cmd := &cobra.Command{}
				cmd.SetContext(t.Context())
				cmd.SetOut(&out)
				cmd.SetErr(&problems)
				o := runOptions{runName: "mine", detach: detach, values: map[string][]string{"repo-url": {repository}, "script": {"train.py"}}}
				err := o.start(cmd, &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}, nil)
				var exit *command.Exit
				if errors.As(err, &exit) && exit.Code != end.code || err != nil && exit == nil || err == nil && end.code != command.Done {
					t.Errorf("%s %s, detach %t: got %v, want exit code %d", words, repository, detach, err, end.code)
				}
				if all := out.String() + problems.String(); !strings.Contains(all, "Run mine "+words) || strings.Contains(all, "mlenv up") ||
					detach && out.String() != "mine\n" {
					t.Errorf("%s %s, detach %t: printed %q and %q", words, repository, detach, out.String(), problems.String())
				}
			}
		}
	}
}

func TestResume(t *testing.T) {
	r := runInfo{name: "second", at: onCluster{}, receipt: &receipt.Receipt{Commit: "c0ffee"}}
	for _, tc := range []struct {
		name                string
		values, given, want map[string][]string
	}{
		{"the commit, and where checkpoints are", map[string][]string{"env": {"A=1"}, "revision": {"main"}}, nil,
			map[string][]string{"env": {"A=1", "MLENV_RESUME_FROM=second"}, "revision": {"c0ffee"}}},
		{"of a run that resumed another", map[string][]string{"env": {"MLENV_RESUME_FROM=first", "A=1"}}, nil,
			map[string][]string{"env": {"A=1", "MLENV_RESUME_FROM=first"}, "revision": {"c0ffee"}}},
		{"another revision", map[string][]string{"revision": {"fix"}}, map[string][]string{"revision": {"fix"}},
			map[string][]string{"env": {"MLENV_RESUME_FROM=second"}, "revision": {"fix"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r.resumeFrom(tc.values, tc.given)
			if diff := cmp.Diff(tc.want, tc.values); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckpoints(t *testing.T) {
	env := func(items ...string) *v1.PipelineRun {
		return &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{UID: "uid"},
			Spec: v1.PipelineRunSpec{Params: v1.Params{{Name: "env", Value: v1.ParamValue{Type: v1.ParamTypeArray, ArrayVal: items}}}}}
	}
	for _, tc := range []struct {
		name string
		run  runInfo
		want string
	}{
		{"a run of its own", runInfo{name: "mine", at: onCluster{}, run: env("A=1"), receipt: &receipt.Receipt{Training: &receipt.Training{}}},
			"checkpoints/mine"},
		{"resumed, in progress", runInfo{name: "mine", at: onCluster{}, run: env("A=1", "MLENV_RESUME_FROM=first")}, "checkpoints/first"},
		{"resumed, only the receipt is left", runInfo{name: "mine", at: onCluster{},
			receipt: &receipt.Receipt{Training: &receipt.Training{ResumedFrom: "first"}}},
			"checkpoints/first"},
		{"nothing was launched", runInfo{name: "mine", at: onCluster{}, receipt: &receipt.Receipt{}}, "checkpoints/mine"},
	} {
		if got := tc.run.checkpoints(); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
}

// The user must name the folder again, and then the folder's current state is the revision. The hint keeps the flag
// that names the earlier run.
func TestEarlierFolder(t *testing.T) {
	sent := "folder:" + strings.Repeat("a", 64)
	earlier := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "two", UID: "uid"},
		Spec: v1.PipelineRunSpec{Params: v1.Params{
			{Name: "repo-url", Value: *v1.NewStructuredValues(sent)}, {Name: "revision", Value: *v1.NewStructuredValues("c0ffee-dirty")},
		}}}
	clients := &kube.Clients{Kube: kubefake.NewClientset(), Tekton: fake.NewSimpleClientset(earlier), Namespace: "ns"}
	for flag, o := range map[string]*runOptions{"--like": {like: "two"}, "--resume-from": {resumeFrom: "two"}} {
		_, err := o.withEarlier(t.Context(), clients)
		if want := "mlenv run . " + flag + " two"; fail.NextOf(err) != want {
			t.Errorf("%s: got %v, next %q; want %q", flag, err, fail.NextOf(err), want)
		}
		o.values = map[string][]string{"repo-url": {"."}}
		values, err := o.withEarlier(t.Context(), clients)
		if err != nil || values["revision"] != nil {
			t.Errorf("%s with a folder: revision %q, %v; want that of the folder", flag, values["revision"], err)
		}
	}
}

func TestReceiptOfAFailure(t *testing.T) {
	var out bytes.Buffer
	of := &v1.PipelineRun{Spec: v1.PipelineRunSpec{Params: v1.Params{
		{Name: "requirements", Value: *v1.NewStructuredValues("pip.txt")},
		{Name: "env", Value: v1.ParamValue{Type: v1.ParamTypeArray, ArrayVal: []string{"A=1", "MLENV_RESUME_FROM=first"}}},
	}}}
	if err := printReceipt(&out, receipt.Receipt{Run: "mine", Namespace: "ns", Verdict: receipt.Failed, Reason: "RankFailed",
		Message: "rank 1 exited:\n  Traceback\n",
		Cause: &cause.Culprit{Rank: 1, Python: &agent.PythonError{Type: "E", Message: "m", File: "t.py", Line: 2,
			Traceback: []string{"Traceback:", "  File t.py", "E: m"}}},
		Checkpoint: "checkpoints/step-40", Record: &receipt.Record{Folder: "/workspace/.mlenv/runs/uid-1", Claims: []string{"claim"}},
		Training: &receipt.Training{Script: "train.py", Args: []string{"--lr=1"}}}, of); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("run           ns/mine\nverdict       Failed\nreason        RankFailed\nmessage       rank 1 exited:\n              "+
		"  Traceback\nscript        train.py\narguments     --lr=1\nrequirements  pip.txt\nresumed from  first\ncause         rank 1 on node "+
		"0: E: m (t.py:2)\n              Traceback:\n                File t.py\n              E: m\n"+
		"checkpoint    checkpoints/step-40\nrecord        /workspace/.mlenv/runs/uid-1 on claim\n", out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNoRuns: in an empty namespace the next step is to start a run, not to list runs that do not exist.
func TestNoRuns(t *testing.T) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	clients := &kube.Clients{Kube: kubefake.NewClientset(namespace), Tekton: fake.NewSimpleClientset(), Namespace: "ns"}
	_, err := chosenRun(t.Context(), clients, nil, nil)
	if next := fail.NextOf(err); fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(next, "mlenv run . SCRIPT -n ns") {
		t.Errorf("got %v, next %q; want how to start one", err, next)
	}
	clients.Kube = kubefake.NewClientset()
	if _, err := chosenRun(t.Context(), clients, nil, nil); !strings.Contains(fail.NextOf(err), "new-project") {
		t.Errorf("without the namespace: got %v, next %q; want how to create it", err, fail.NextOf(err))
	}
}

func TestNodesBeforeTheReceipt(t *testing.T) {
	of := func(nodes string, parts ...receipt.Entry) int {
		found := &v1.PipelineRun{Spec: v1.PipelineRunSpec{Params: v1.Params{{Name: "nodes", Value: *v1.NewStructuredValues(nodes)}}}}
		return runInfo{at: onCluster{}, run: found, journal: &receipt.Journal{Entries: parts}}.nodes()
	}
	provisioned := receipt.Entry{Task: "provision", Nodes: 4}
	if requested, byDefault, unknown := of("2"), of("0", receipt.Entry{Task: "preflight"}, provisioned), of("0"); requested != 2 ||
		byDefault != 4 || unknown != 0 {
		t.Errorf("got %d, %d and %d nodes; want the requested 2, the cluster file's 4 as soon as provision knows it, and 0 before", requested,
			byDefault, unknown)
	}
}

// A name that no run can have is a mistake of the user, found without the cluster.
func TestNameThatNoRunHas(t *testing.T) {
	_, err := findRun(t.Context(), &kube.Clients{Namespace: "ns"}, "a/b")
	var exit *command.Exit
	if !errors.As(err, &exit) || exit.Code != command.WrongUsage || !strings.Contains(err.Error(), `run "a/b": want the name of a run`) {
		t.Errorf("got %v, want wrong usage", err)
	}
}
