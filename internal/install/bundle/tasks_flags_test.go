// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/steps"
)

// TestTaskArgsAreFlags: every arg of a Task is a flag of its step, has the same name as the param, and has the same
// default if nobody sets it.
func TestTaskArgsAreFlags(t *testing.T) {
	commands := map[string]*cobra.Command{}
	for _, step := range steps.All() {
		// A step adds the flags that all steps have only when it runs.
		if code := command.Run(t.Context(), step, []string{"--help"}, io.Discard, io.Discard); code != command.Done {
			t.Fatalf("%s --help: exit code %d", step.Name(), code)
		}
		commands[step.Name()] = step
	}
	if all := tasks(t); len(all) != len(commands)-1 { // the reaper has none
		t.Errorf("%d Tasks for %d steps", len(all), len(commands)-1)
	}
	for name, task := range tasks(t) {
		t.Run(name, func(t *testing.T) {
			step := commands[name]
			if step == nil {
				t.Fatal("no such step")
			}
			for _, arg := range task.Spec.Steps[0].Args {
				if arg == "--" || strings.HasSuffix(arg, "[*])") {
					continue
				}
				flagName, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
				if !ok || !strings.HasPrefix(arg, "--") {
					t.Errorf("arg %q, want --flag=value", arg)
					continue
				}
				flag := step.Flag(flagName)
				if flag == nil {
					t.Errorf("arg %q: %s has no such flag", arg, name)
					continue
				}
				name, isParam := strings.CutPrefix(strings.TrimSuffix(value, ")"), "$(params.")
				if !isParam {
					continue
				}
				if name != flagName {
					t.Errorf("arg %q: want flag and param of one name", arg)
				}
				sameDefault(t, flag, spec(task.Spec.Params, name).Default)
			}
		})
	}
}

// TestFlagsHaveTheKindsOfParams follows each param of a pipeline through its Tasks to the flags that get it: each has the kind by which
// mlenv, the Action, schedules and preflight check the param.
func TestFlagsHaveTheKindsOfParams(t *testing.T) {
	commands := map[string]*cobra.Command{}
	for _, step := range steps.All() {
		commands[step.Name()] = step
	}
	seen := map[string]bool{}
	for name, pipeline := range pipelines(t) {
		for _, call := range slices.Concat(pipeline.Spec.Tasks, pipeline.Spec.Finally) {
			step := commands[call.TaskRef.Name]
			for _, passed := range call.Params {
				of, isParam := strings.CutPrefix(strings.TrimSuffix(passed.Value.StringVal, ")"), "$(params.")
				arg := fmt.Sprintf("--%s=$(params.%s)", passed.Name, passed.Name)
				if !isParam || !slices.Contains(tasks(t)[call.TaskRef.Name].Spec.Steps[0].Args, arg) {
					continue
				}
				flag := step.Flag(passed.Name)
				seen[of] = true
				kind, ok := flag.Value.(interface{ Is(kind param.Any) bool })
				// The step has a type for the first, and looks at the second together with the routes.
				if own := flag.Name == "hang-timeout" || flag.Name == "services"; !own && (!ok || !kind.Is(param.KindOf(of))) {
					t.Errorf("pipeline %s passes param %s to %s --%s, which has another kind", name, of, step.Name(), flag.Name)
				}
			}
		}
	}
	for _, name := range []string{"nodes", "mode", "launcher", "timeout", "fabric-bandwidth", "repo-url", "image", "lfs", "keep"} {
		if !seen[name] {
			t.Errorf("no flag gets param %s", name)
		}
	}
}

// sameDefault compares a param's default with its flag's, both as the flag prints them, because 10m is 10m0s.
func sameDefault(t *testing.T, flag *pflag.Flag, def *tekton.ParamValue) {
	t.Helper()
	// mlenv install sets it; a Task that was applied by hand has no default.
	if def == nil || flag.Name == "steps-image" {
		return
	}
	err := flag.Value.Set(def.StringVal)
	if keeper, ok := flag.Value.(interface{ TakeMistake() error }); ok {
		err = keeper.TakeMistake()
	}
	if err != nil {
		t.Errorf("param %s: default %q: %v", flag.Name, def.StringVal, err)
		return
	}
	if got := flag.Value.String(); got != flag.DefValue {
		t.Errorf("param %s: default %q, that of the flag is %q", flag.Name, got, flag.DefValue)
	}
}
