// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/steps"
)

// TestStepsHaveFlags: a step has a flag for each argument and each param of its Task, and those with which people run it from a laptop. The
// Task itself uses the params that are not flags.
func TestStepsHaveFlags(t *testing.T) {
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
		step := commands[stepOf(name)]
		if step == nil {
			t.Errorf("Task %s has no step", name)
			continue
		}
		want := []string{"namespace", "kubeconfig", "context"}
		for _, arg := range task.Spec.Steps[0].Args {
			flag, _, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			if !ok || !strings.HasPrefix(arg, "--") {
				t.Errorf("%s: arg %q, want --flag=value", name, arg)
			}
			want = append(want, flag)
		}
		text := string(files(t, "tasks")[name])
		for _, p := range param.TakenBy(stepOf(name)) {
			switch {
			case p.Is&param.NoFlag == 0 && p.Is&param.Items == 0:
				want = append(want, p.Name)
			case p.Is&param.NoFlag != 0 && p.Name != "run-params" && !strings.Contains(text, "$(params."+p.Name+")"):
				t.Errorf("Task %s does not use param %s", name, p.Name)
			}
		}
		// Without it a step notes nothing for the receipt.
		if own := "--task-name=" + stepOf(name); step.Flag("task-name") != nil && !slices.Contains(task.Spec.Steps[0].Args, own) {
			t.Errorf("Task %s does not pass %s", name, own)
		}
		for _, flag := range slices.Compact(want) {
			if step.Flag(flag) == nil {
				t.Errorf("%s has no flag --%s", name, flag)
			}
		}
	}
}
