// SPDX-License-Identifier: Apache-2.0

package action

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// TestInputsAreTheParams checks that the inputs of action.yml are the params of the pipeline; -update writes them.
func TestInputsAreTheParams(t *testing.T) {
	var manifest struct {
		Inputs  map[string]any `json:"inputs"`
		Outputs map[string]any `json:"outputs"`
		Runs    struct {
			Using string           `json:"using"`
			Steps []map[string]any `json:"steps"`
		} `json:"runs"`
	}
	content, err := os.ReadFile("../../../action.yml")
	if err == nil {
		err = yaml.Unmarshal(content, &manifest)
	}
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]bool{}
	for _, name := range ownInputs() {
		own[name] = true
		if _, there := manifest.Inputs[name]; !there {
			t.Errorf("action.yml has no input %s", name)
		}
	}
	var text strings.Builder
	for _, p := range param.TakenBy(launch.Pipeline) {
		// The installed pipeline sets the image of the steps.
		if p.Name == "steps-image" {
			continue
		}
		if own[p.Name] {
			t.Errorf("input %s is not the action's own: the pipeline has a param of that name", p.Name)
		}
		fmt.Fprintf(&text, "  %s:\n    description: %q\n    %s\n", p.Name, inputDescription(p), map[bool]string{
			true: "required: true", false: `default: ""`}[p.Name == "script"])
	}
	const begin, end = "of the installed pipeline.\n", "outputs:\n"
	before, rest, _ := strings.Cut(string(content), begin)
	_, after, _ := strings.Cut(rest, end)
	golden.File(t, "../../../action.yml", before+begin+text.String()+end+after)
	// A step that fails, is killed or is cancelled may leave a run.
	last := manifest.Runs.Steps[len(manifest.Runs.Steps)-1]
	if when, _ := last["if"].(string); !strings.Contains(when, "always()") || !strings.Contains(fmt.Sprint(last["run"]), "action end") {
		t.Errorf("the last step is %v, if %q; want it to end the run always", last["run"], when)
	}
	for _, step := range manifest.Runs.Steps {
		if run, _ := step["run"].(string); strings.Contains(run, "${{") {
			t.Errorf("step %s has an expression in its script, where a value could become code: %s", step["id"], run)
		}
	}
}

// inputDescription describes the input of a param.
func inputDescription(p param.Param) string {
	switch {
	case p.Is&param.Items != 0:
		return p.Description() + " One per line."
	case p.Name == "repo-url":
		return p.Description() + " Empty means the repository that the workflow runs in, at its commit."
	}
	return p.Description()
}
