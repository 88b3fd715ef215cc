// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/test/kubelet"
)

// replaced models Tekton, which replaces variables in a text in any order, also in values that it has just put there.
func replaced(text string, variables map[string]string) string {
	for range 2 {
		for name, value := range variables {
			text = strings.ReplaceAll(text, "$("+name+")", value)
		}
	}
	return text
}

func allReplaced(texts []string, variables map[string]string) (result []string) {
	for _, text := range texts {
		result = append(result, replaced(text, variables))
	}
	return result
}

// given are values of params.
type given struct{ strings, arrays map[string][]string }

func (g given) params(change func([]string) []string) (params v1.Params) {
	for name, values := range g.strings {
		params = append(params, v1.Param{Name: name, Value: v1.ParamValue{Type: v1.ParamTypeString, StringVal: change(values)[0]}})
	}
	for name, values := range g.arrays {
		params = append(params, v1.Param{Name: name, Value: v1.ParamValue{Type: v1.ParamTypeArray, ArrayVal: change(values)}})
	}
	return params
}

// onTheirWay returns the arguments with which the kubelet starts the step of a Task, and the objects that have its params.
func onTheirWay(t *testing.T, name string, g given) (args []string, objects []runtime.Object) {
	t.Helper()
	content, err := fs.ReadFile(mldevenv.Bundle, "tasks/mlenv-"+name+"/mlenv-"+name+".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var task v1.Task
	if err := yaml.Unmarshal(content, &task); err != nil {
		t.Fatal(err)
	}
	here := map[string]string{"context.pipelineRun.name": "run", "context.pipelineRun.uid": "uid", "context.taskRun.name": "run-task",
		"context.taskRun.namespace": "ns", "context.task.name": name}
	for _, arg := range task.Spec.Steps[0].Args {
		args = append(args, kubelet.Expand(replaced(arg, here), map[string]string{"HOME": "/tekton/home", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}))
	}
	shared := slices.Concat(slices.Collect(maps.Keys(g.strings)), slices.Collect(maps.Keys(g.arrays)))
	arrived := append(g.params(func(values []string) []string { return allReplaced(values, here) }), ofRun(strings.Join(shared, ","))...)
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid"} }
	same := func(values []string) []string { return values }
	return args, []runtime.Object{
		&v1.TaskRun{ObjectMeta: meta("run-task"), Spec: v1.TaskRunSpec{Params: arrived},
			Status: started(task.Spec.Params)},
		// The fake ignores field selectors.
		&v1.TaskRun{ObjectMeta: meta("another"),
			Spec: v1.TaskRunSpec{Params: v1.Params{{Name: "script", Value: *v1.NewStructuredValues("other.py")}}}},
		&v1.PipelineRun{ObjectMeta: meta("run"), Spec: v1.PipelineRunSpec{Params: g.params(same)}},
	}
}

// started is the status of a TaskRun whose pod runs.
func started(params v1.ParamSpecs) v1.TaskRunStatus {
	return v1.TaskRunStatus{TaskRunStatusFields: v1.TaskRunStatusFields{TaskSpec: &v1.TaskSpec{Params: params}}}
}

// TestArrays: no array of the table of params is left out.
func TestArrays(t *testing.T) {
	for _, step := range All() {
		want := slices.Clone(arrays[step.Name()])
		slices.Sort(want)
		var got []string
		for _, p := range param.TakenBy(step.Name()) {
			if p.Is&param.Items != 0 {
				got = append(got, p.Name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("step %s has the arrays %q, and takes %q", step.Name(), got, want)
		}
	}
}

// ofRun returns the params that name the PipelineRun, and the params that it shares with the TaskRun.
func ofRun(shared string) v1.Params {
	return v1.Params{{Name: "run-name", Value: *v1.NewStructuredValues("run")}, {Name: "run-uid", Value: *v1.NewStructuredValues("uid")},
		{Name: "run-params", Value: *v1.NewStructuredValues(shared)}}
}

// behind returns the arguments from the first -- on.
func behind(args []string) []string { return args[slices.Index(args, "--"):] }

// to connects to a fake, which validates nothing.
func to(objects ...runtime.Object) func(string) (versioned.Interface, string, error) {
	client := fake.NewSimpleClientset(objects...)
	return func(namespace string) (versioned.Interface, string, error) { return client, namespace, nil }
}

// randomText is made of what Tekton, the kubelet or the step could take for something else.
func randomText(random *rand.Rand) string {
	parts := []string{"$", "$$", "(", ")", "$(HOME)", "$$(HOME)", "$(KUBERNETES_SERVICE_HOST)", "$(context.pipelineRun.name)",
		"$(context.taskRun.name)",
		"$(params.script)", "$(params.name)", "$(params.script-args[*])", "^a$$", " ", "\n", "\t", "'", `"`, "\\", "--", "=", "é", ",", "%s", "a",
		"*", "`id`"}
	var text strings.Builder
	for range random.IntN(6) {
		text.WriteString(parts[random.IntN(len(parts))])
	}
	return text.String()
}

// The script gets its arguments and variables byte for byte, whatever is in them.
func TestArgumentsArriveExactly(t *testing.T) {
	random := rand.New(rand.NewPCG(20, 26))
	texts := func(prefix string) (all []string) {
		for range random.IntN(5) {
			all = append(all, prefix+randomText(random))
		}
		return all
	}
	for range 500 {
		g := given{
			strings: map[string][]string{"script": {"a" + randomText(random) + ".py"}, "deepspeed-config": {randomText(random)}, "name": {"env"}},
			arrays: map[string][]string{"script-args": texts(""), "env": texts("KEY="), "stop-if": {"loss is nan", "gpu_use < 5% for 20m"},
				"restart-if": nil},
		}
		args, objects := onTheirWay(t, "train", g)
		got, err := withParams(t.Context(), "train", args, to(objects...))
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Concat([]string{"--"}, g.arrays["env"], []string{"--"}, g.arrays["stop-if"], []string{"--", "--"}, g.arrays["script-args"])
		if !slices.Equal(behind(got), want) {
			t.Fatalf("the script gets %q, want %q", behind(got), want)
		}
		for name, value := range g.strings {
			if !slices.Contains(got, "--"+name+"="+value[0]) {
				t.Fatalf("want --%s=%q in %q", name, value[0], got)
			}
		}
	}
}

// What the command makes of the arguments: train takes variables and arguments of the script apart.
func TestTrainTakesExactArguments(t *testing.T) {
	g := given{
		strings: map[string][]string{"script": {"train.py"}},
		arrays: map[string][]string{"script-args": {"--regex", "^a$$", "--", "$(HOME)", "$(context.pipelineRun.name)"}, "env": {"A=$$b"},
			"stop-if": {"loss is nan"}, "restart-if": {"no checkpoint for 2h"}},
	}
	args, objects := onTheirWay(t, "train", g)
	got, err := withParams(t.Context(), "train", args, to(objects...))
	if err != nil {
		t.Fatal(err)
	}
	command, _ := Pick([]string{"steps", "train"})
	// command.Run takes some of the flags before it.
	if err := command.ParseFlags(append([]string{"--script=train.py", "--max-restarts=1"}, behind(got)...)); err != nil {
		t.Fatal(err)
	}
	if err := command.Args(command, command.Flags().Args()); err != nil {
		t.Errorf("train refuses %q: %v", command.Flags().Args(), err)
	}
	for flag, want := range map[string]string{"stop-if": "loss is nan", "restart-if": "no checkpoint for 2h"} {
		if got := command.Flag(flag).Value.String(); got != want {
			t.Errorf("--%s has %q, want %q", flag, got, want)
		}
	}
	want := []string{"A=$$b", "--", "loss is nan", "--", "no checkpoint for 2h", "--", "--regex", "^a$$", "--", "$(HOME)",
		"$(context.pipelineRun.name)"}
	if got := command.Flags().Args(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A pipeline of somebody else's has params of other names and meanings, and a user starts a TaskRun, or the step itself.
func TestParamsWithoutThePipeline(t *testing.T) {
	taskRun := func(name string, more ...v1.Param) *v1.TaskRun {
		own := v1.Params{{Name: "script", Value: *v1.NewStructuredValues("a$$.py")},
			{Name: "script-args", Value: *v1.NewStructuredValues("--lr=1", "$$")}}
		return &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: v1.TaskRunSpec{Params: append(own, more...)},
			Status: started(nil)}
	}
	later := ofRun("script")
	later[1].Value = *v1.NewStructuredValues("old")
	objects := []runtime.Object{taskRun("alone"), taskRun("others", ofRun("")...), taskRun("typed", ofRun("script-args")...),
		taskRun("later", later...),
		&v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "run", UID: "uid"}, Spec: v1.PipelineRunSpec{Params: v1.Params{
			// of another type
			{Name: "script", Value: *v1.NewStructuredValues("other.py")}, {Name: "script-args", Value: *v1.NewStructuredValues("text")},
		}}}}
	own := []string{"--script=a$$.py"}
	inRun := slices.Concat(own, []string{"--run-name=run", "--run-uid=uid"})
	items := []string{"--", "--", "--", "--", "--lr=1", "$$"}
	for _, tc := range []struct {
		name    string
		taskRun string
		want    []string
		reason  fail.Reason
	}{
		{"a TaskRun", "alone", slices.Concat(own, items), ""},
		{"another pipeline", "others", slices.Concat(inRun, items), ""},
		{"a param of another type", "typed", slices.Concat(inRun, items), ""},
		{"a deleted TaskRun", "gone", nil, fail.Cancelled},
		{"a later run of that name", "later", nil, fail.Cancelled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := []string{"--namespace=ns", "--task-run=" + tc.taskRun}
			want := append(slices.Clone(args), tc.want...)
			if tc.reason != "" {
				want = nil
			}
			got, err := withParams(t.Context(), "train", args, to(objects...))
			if !slices.Equal(got, want) || (tc.reason == "") != (err == nil) || tc.reason != "" && fail.ReasonOf(err) != tc.reason {
				t.Errorf("got %q, %v; want %q, %s", got, err, want, tc.reason)
			}
		})
	}
	byHand := []string{"--script=a$", "--", "--", "$", "--task-run=alone"}
	if got, err := withParams(t.Context(), "train", byHand, to()); err != nil || !slices.Equal(got, byHand) {
		t.Errorf("got %q, %v; want %q", got, err, byHand)
	}
}

// FuzzParams checks that no value of a param becomes a flag, or more than one argument.
func FuzzParams(f *testing.F) {
	f.Add("train.py", "--regex=^a$$", "A=$(HOME)")
	f.Add("", "--", "--")
	f.Add("--namespace=other", "--task-run=x", "\x00")
	f.Fuzz(func(t *testing.T, script, arg, variable string) {
		params := v1.Params{{Name: "script", Value: *v1.NewStructuredValues(script)},
			{Name: "script-args", Value: v1.ParamValue{Type: v1.ParamTypeArray, ArrayVal: []string{arg}}},
			{Name: "env", Value: v1.ParamValue{Type: v1.ParamTypeArray, ArrayVal: []string{variable}}}}
		taskRun := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "task"}, Spec: v1.TaskRunSpec{Params: params},
			Status: started(nil)}
		got, err := withParams(context.Background(), "train", []string{"--namespace=ns", "--task-run=task"}, to(taskRun))
		want := []string{"--namespace=ns", "--task-run=task", "--script=" + script, "--", variable, "--", "--", "--", arg}
		if err != nil || !slices.Equal(got, want) {
			t.Error(fmt.Errorf("got %q, %w; want %q", got, err, want))
		}
	})
}
