// SPDX-License-Identifier: Apache-2.0

package envflags

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

func runNamed(name, environment string, done bool) *tektonv1.PipelineRun {
	run := &tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid of " + name),
		Labels: map[string]string{"tekton.dev/pipeline": launch.Pipeline}}}
	run.Spec.PipelineRef = &tektonv1.PipelineRef{Name: launch.Pipeline}
	run.Spec.Params = tektonv1.Params{{Name: "name", Value: tektonv1.ParamValue{Type: tektonv1.ParamTypeString, StringVal: environment}}}
	if done {
		run.Status.Conditions = duckv1.Conditions{{Type: "Succeeded", Status: "True"}}
	}
	return run
}

// A run stands for its environment where a command takes one. Elsewhere its name leads to its environment, and never to the advice to
// create an environment of that name.
func TestRunInPlaceOfEnvironment(t *testing.T) {
	for _, tc := range []struct {
		name  string
		takes bool
		args  []string
		want  string
		fails string
		next  string
		code  int
	}{
		{name: "in progress", takes: true, args: []string{"trains"}, want: "kim"},
		{name: "builds its image", takes: true, args: []string{"builds"}, want: "builds", fails: "run builds is in progress and has not " +
			"created it yet", next: "mlenv status builds -n ns", code: command.Failed},
		{name: "has ended, and another run holds the environment", takes: true, args: []string{"ended"}, want: "ended",
			fails: "its environment is released", next: "mlenv receipt ended -n ns", code: command.Failed},
		{name: "was deleted", takes: true, args: []string{"deleted"}, want: "deleted", fails: "the run is Failed",
			next: "mlenv receipt deleted -n ns", code: command.Failed},
		{name: "a training of mlenv train", takes: true, args: []string{"by-hand-x"}, want: "kim"},
		{name: "an environment that a run will create", takes: true, args: []string{"soon"}, want: "soon", fails: "run builds is in progress",
			next: "mlenv status builds -n ns", code: command.Failed},
		{name: "an environment", takes: true, args: []string{"kim"}, want: "kim"},
		{name: "neither", takes: true, args: []string{"nothing"}, want: "nothing"},
		{name: "a command for environments", args: []string{"trains"}, want: "trains", fails: "it is a run, in environment kim: want an " +
			"environment", next: "--name=kim", code: command.WrongUsage},
		{name: "a command for environments, and a deleted run", args: []string{"deleted"}, want: "deleted",
			fails: "it is a run, in environment lee", next: "--name=lee", code: command.WrongUsage},
		{name: "no name, and one environment", takes: true, want: "kim"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			holder := "uid of trains"
			client := fake.NewClientset(
				&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "kim", Labels: objects.Labels("kim")},
					Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}})
			if err := receipt.Write(t.Context(), client, receipt.Receipt{Run: "deleted", Namespace: "ns", RunUID: "gone", Environment: "lee",
				Verdict: receipt.Failed}); err != nil {
				t.Fatal(err)
			}
			byHand := receipt.Start{Run: "by-hand-x", Namespace: "ns", RunUID: "by-hand-x", Environment: "kim", Kept: true}
			if err := receipt.BeginJournal(t.Context(), client, byHand); err != nil {
				t.Fatal(err)
			}
			other := &tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "nothing"}} // of another pipeline
			tekton := tektonfake.NewSimpleClientset(runNamed("trains", "kim", false), runNamed("builds", "soon", false),
				runNamed("ended", "kim", true), other)
			f := Flags{Reads: true, Runs: tc.takes}
			flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
			f.AddTo(flags, "")
			if err := ParseName(flags, tc.args); err != nil {
				t.Fatal(err)
			}
			err := f.find(t.Context(), &kube.Clients{Kube: client, Tekton: tekton, Namespace: "ns"}, command.TextLog(&bytes.Buffer{}))
			if tc.fails == "" && err != nil || tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails)) ||
				fail.NextOf(err) != tc.next {
				t.Errorf("got error %v (%s), want %q (%s)", err, fail.NextOf(err), tc.fails, tc.next)
			}
			if f.Environment != tc.want {
				t.Errorf("got environment %s, want %s", f.Environment, tc.want)
			}
			if got := codeOf(err); got != tc.code {
				t.Errorf("got exit code %d, want %d", got, tc.code)
			}
		})
	}
}

func codeOf(err error) int {
	if exit, ok := err.(*command.Exit); ok { //nolint:errorlint // only the error itself counts
		return exit.Code
	}
	if err != nil {
		return command.Failed
	}
	return command.Done
}
