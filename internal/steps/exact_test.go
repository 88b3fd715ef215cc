// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"fmt"
	"io/fs"
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

// onTheirWay returns the arguments with which the kubelet starts the step of a Task, and the objects from which they come.
func onTheirWay(t *testing.T, name string, g given) (args []string, objects []runtime.Object) {
	t.Helper()
	content, err := fs.ReadFile(mldevenv.Bundle, "tasks/"+name+"/"+name+".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var task v1.Task
	if err := yaml.Unmarshal(content, &task); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range g.strings {
		names = append(names, name)
	}
	for name := range g.arrays {
		names = append(names, name)
	}
	here := map[string]string{"context.pipelineRun.name": "run", "context.pipelineRun.uid": "uid", "context.taskRun.name": "run-task",
		"context.taskRun.namespace": "ns", "context.task.name": name}
	inPipeline := func(values []string) []string { return allReplaced(values, here) }
	arrived := g.params(inPipeline)
	variables := map[string]string{"params.run-name": "run", "params.run-uid": "uid", "params.run-params": strings.Join(names, ",")}
	for _, param := range arrived {
		if param.Value.Type == v1.ParamTypeString {
			variables["params."+param.Name] = param.Value.StringVal
		}
	}
	for _, param := range task.Spec.Params {
		if _, known := variables["params."+param.Name]; !known && param.Default != nil {
			variables["params."+param.Name] = param.Default.StringVal
		}
	}
	for _, arg := range task.Spec.Steps[0].Args {
		expanded := []string{arg}
		for _, param := range arrived {
			if arg == "$(params."+param.Name+"[*])" {
				expanded = param.Value.ArrayVal
			}
		}
		for _, one := range expanded {
			one = replaced(replaced(one, variables), here)
			args = append(args, kubelet.Expand(one, map[string]string{"HOME": "/tekton/home", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}))
		}
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid"} }
	same := func(values []string) []string { return values }
	return args, []runtime.Object{
		&v1.TaskRun{ObjectMeta: meta("run-task"), Spec: v1.TaskRunSpec{Params: arrived}},
		// The fake ignores field selectors.
		&v1.TaskRun{ObjectMeta: meta("another"),
			Spec: v1.TaskRunSpec{Params: v1.Params{{Name: "script", Value: *v1.NewStructuredValues("other.py")}}}},
		&v1.PipelineRun{ObjectMeta: meta("run"), Spec: v1.PipelineRunSpec{Params: g.params(same)}},
	}
}

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
	changed := 0
	for range 500 {
		g := given{
			strings: map[string][]string{"script": {"a" + randomText(random) + ".py"}, "deepspeed-config": {randomText(random)}, "name": {"env"}},
			arrays: map[string][]string{"script-args": texts(""), "env": texts("KEY="), "stop-if": {"loss is nan", "gpu_use < 5% for 20m"},
				"restart-if": nil},
		}
		args, objects := onTheirWay(t, "train", g)
		got, err := exact(t.Context(), "train", args, to(objects...))
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Concat([]string{"--"}, g.arrays["env"], []string{"--"}, g.arrays["stop-if"], []string{"--", "--"}, g.arrays["script-args"])
		if _, behind := cut(got); !slices.Equal(behind, want) {
			t.Fatalf("the script gets %q, want %q", behind, want)
		}
		if !slices.Equal(args[slices.Index(args, "--"):], want) {
			changed++
		}
		for name, value := range g.strings {
			if !slices.Contains(got, "--"+name+"="+value[0]) {
				t.Fatalf("want --%s=%q in %q", name, value[0], got)
			}
		}
	}
	const some = 100
	if changed < some {
		t.Errorf("only %d of 500 would have been changed on their way", changed)
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
	got, err := exact(t.Context(), "train", args, to(objects...))
	if err != nil {
		t.Fatal(err)
	}
	command, _ := Pick([]string{"steps", "train"})
	_, behind := cut(got) // command.Run takes some of the flags before it
	if err := command.ParseFlags(append([]string{"--script=train.py", "--max-restarts=1"}, behind...)); err != nil {
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
func TestExactWithoutThePipeline(t *testing.T) {
	taskRun := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "task"}, Spec: v1.TaskRunSpec{Params: v1.Params{
		{Name: "script", Value: *v1.NewStructuredValues("a$$.py")}, {Name: "script-args", Value: *v1.NewStructuredValues("--lr=1", "$$")},
	}}}
	pipelineRun := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "run", UID: "uid"},
		Spec: v1.PipelineRunSpec{Params: v1.Params{
			// of another type
			{Name: "script", Value: *v1.NewStructuredValues("other.py")}, {Name: "script-args", Value: *v1.NewStructuredValues("text")},
		}}}
	for _, tc := range []struct {
		name   string
		args   []string
		want   []string
		reason fail.Reason
	}{
		{"by hand", []string{"--script=a$", "--", "--", "$"}, []string{"--script=a$", "--", "--", "$"}, ""},
		{"a TaskRun", []string{"--namespace=ns", "--script=a$.py", "--task-run=task", "--", "--", "x"},
			[]string{"--namespace=ns", "--script=a$$.py", "--task-run=task", "--", "--", "--", "--", "--lr=1", "$$"}, ""},
		{"another pipeline", []string{"--namespace=ns", "--script=a$.py", "--task-run=task", "--run-name=run", "--run-uid=uid", "--run-params="},
			[]string{"--namespace=ns", "--script=a$$.py", "--task-run=task", "--run-name=run", "--run-uid=uid", "--run-params=", "--", "--", "--",
				"--", "--lr=1", "$$"}, ""},
		{"a param of another type", []string{"--namespace=ns", "--script=a", "--task-run=task", "--run-name=run", "--run-uid=uid",
			"--run-params=script-args"},
			[]string{"--namespace=ns", "--script=a$$.py", "--task-run=task", "--run-name=run", "--run-uid=uid", "--run-params=script-args",
				"--", "--", "--", "--", "--lr=1", "$$"}, ""},
		{"a deleted TaskRun", []string{"--namespace=ns", "--task-run=gone"}, nil, fail.Cancelled},
		{"a later run of that name", []string{"--namespace=ns", "--task-run=task", "--run-name=run", "--run-uid=old", "--run-params=script"}, nil,
			fail.Cancelled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := exact(t.Context(), "train", tc.args, to(taskRun, pipelineRun))
			if !slices.Equal(got, tc.want) || (tc.reason == "") != (err == nil) || tc.reason != "" && fail.ReasonOf(err) != tc.reason {
				t.Errorf("got %q, %v; want %q, %s", got, err, tc.want, tc.reason)
			}
		})
	}
}

// FuzzExact checks that no value of a param becomes a flag, or more than one argument.
func FuzzExact(f *testing.F) {
	f.Add("train.py", "--regex=^a$$", "A=$(HOME)")
	f.Add("", "--", "--")
	f.Add("--namespace=other", "--task-run=x", "\x00")
	f.Fuzz(func(t *testing.T, script, arg, variable string) {
		params := v1.Params{{Name: "script", Value: *v1.NewStructuredValues(script)},
			{Name: "script-args", Value: v1.ParamValue{Type: v1.ParamTypeArray, ArrayVal: []string{arg}}},
			{Name: "env", Value: v1.ParamValue{Type: v1.ParamTypeArray, ArrayVal: []string{variable}}}}
		taskRun := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "task"}, Spec: v1.TaskRunSpec{Params: params}}
		got, err := exact(context.Background(), "train", []string{"--namespace=ns", "--script=x", "--task-run=task", "--", "y", "--"},
			to(taskRun))
		want := []string{"--namespace=ns", "--script=" + script, "--task-run=task", "--", variable, "--", "--", "--", arg}
		if err != nil || !slices.Equal(got, want) {
			t.Error(fmt.Errorf("got %q, %w; want %q", got, err, want))
		}
	})
}
