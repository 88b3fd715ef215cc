// SPDX-License-Identifier: Apache-2.0

package action

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"sigs.k8s.io/yaml"
)

// input is an input of action.yml.
type input struct {
	Description string  `json:"description"`
	Required    bool    `json:"required,omitempty"`
	Default     *string `json:"default,omitempty"`
}

// TestInputsAreTheParams checks that the inputs of action.yml are the params of the pipeline.
func TestInputsAreTheParams(t *testing.T) {
	var manifest struct {
		Inputs  map[string]input `json:"inputs"`
		Outputs map[string]any   `json:"outputs"`
		Runs    struct {
			Using string           `json:"using"`
			Steps []map[string]any `json:"steps"`
		} `json:"runs"`
	}
	var pipeline tekton.Pipeline
	for name, into := range map[string]any{"action.yml": &manifest, "pipelines/train-multi-node/train-multi-node.yaml": &pipeline} {
		content, err := os.ReadFile("../../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(content, into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	own := map[string]bool{}
	for _, name := range ownInputs() {
		own[name] = true
		if _, there := manifest.Inputs[name]; !there {
			t.Errorf("action.yml has no input %s", name)
		}
		delete(manifest.Inputs, name)
	}
	empty := ""
	want := map[string]input{}
	for _, param := range pipeline.Spec.Params {
		// The installed pipeline sets the image of the steps.
		if param.Name == "steps-image" {
			continue
		}
		if own[param.Name] {
			t.Errorf("input %s is not the action's own: the pipeline has a param of that name", param.Name)
		}
		wanted := input{Description: param.Description, Default: &empty}
		if param.Type == tekton.ParamTypeArray {
			wanted.Description += " One per line."
		}
		switch param.Name {
		case "repo-url":
			wanted.Description += " Empty means the repository that the workflow runs in, at its commit."
		case "script":
			wanted.Required, wanted.Default = true, nil
		}
		want[param.Name] = wanted
	}
	if diff := cmp.Diff(want, manifest.Inputs); diff != "" {
		t.Errorf("the inputs of action.yml (-params +inputs):\n%s", diff)
	}
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
