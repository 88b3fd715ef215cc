// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// argument is a flag among the args of a Task.
var argument = regexp.MustCompile(`(?m)^\s*- "?--([a-z][a-z0-9-]*)`)

// everyStep has these flags, which step.Main adds.
var everyStep = []string{"log-format", "reason-result", "message-result"}

// A step has every flag that its Task gives it, and those with which people run it from a laptop.
func TestFlagsOfSteps(t *testing.T) {
	for _, command := range All() {
		want := []string{"namespace", "kubeconfig", "context"}
		name := command.Name()
		task, err := os.ReadFile(filepath.Join("..", "..", "tasks", name, name+".yaml"))
		reaper := name == "reap" // it has no Task
		if err != nil && !reaper {
			t.Fatal(err)
		}
		for _, found := range argument.FindAllSubmatch(task, -1) {
			want = append(want, string(found[1]))
		}
		if !reaper && len(want) < 6 {
			t.Errorf("%s: the Task gives only %q", name, want[3:])
		}
		for _, flag := range slices.Compact(slices.Sorted(slices.Values(want))) {
			if command.Flags().Lookup(flag) == nil && !slices.Contains(everyStep, flag) {
				t.Errorf("%s has no flag --%s", name, flag)
			}
		}
	}
}
