// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"sigs.k8s.io/yaml"
)

// filesBelow returns the paths below folders of the checkout that the pattern matches.
func filesBelow(t *testing.T, pattern string, folders ...string) []string {
	t.Helper()
	matches := regexp.MustCompile(pattern)
	var found []string
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && matches.MatchString(path) {
				found = append(found, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no file in %v matches %s", folders, pattern)
	}
	return found
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// ofTraining matches the action's outputs whose text a training chooses.
var ofTraining = regexp.MustCompile(`outputs\.(metrics|message)\b`)

// runnersFile matches the files whose content GitHub renders, or obeys.
var runnersFile = regexp.MustCompile(`GITHUB_(STEP_SUMMARY|OUTPUT|ENV|PATH|STATE)|::[a-z-]+`)

// TestNoWorkflowShowsATrainingsText fails if a step of a workflow writes the text of a training to where GitHub renders it or reads
// commands, or puts an output into a script.
func TestNoWorkflowShowsATrainingsText(t *testing.T) {
	for _, path := range append(filesBelow(t, `\.ya?ml$`, ".github", "docs/examples/github"), filepath.Join(root, "action.yml")) {
		var workflow any
		if err := yaml.Unmarshal(read(t, path), &workflow); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		for script, variables := range scripts(workflow) {
			if ofTraining.MatchString(variables) && runnersFile.MatchString(script) {
				t.Errorf("%s writes a training's text to where GitHub renders or obeys it: %s", path, script)
			}
			if strings.Contains(script, "${{") && ofTraining.MatchString(script) {
				t.Errorf("%s has a training's text in a script: %s", path, script)
			}
		}
	}
}

// scripts returns the variables of each step with a script, as text, by the script.
func scripts(value any) map[string]string {
	found := map[string]string{}
	switch value := value.(type) {
	case map[string]any:
		if script, is := value["run"].(string); is {
			found[script] = fmt.Sprint(value["env"])
		}
		for _, inner := range value {
			maps.Copy(found, scripts(inner))
		}
	case []any:
		for _, inner := range value {
			maps.Copy(found, scripts(inner))
		}
	}
	return found
}

// TestDockerfilesNameTheirBase fails if a Dockerfile names its base image by tag. The digest of 25.08 is not known for
// sure: build-image resolves the tag, see docs/project/unproven.md.
func TestDockerfilesNameTheirBase(t *testing.T) {
	for _, path := range filesBelow(t, `Dockerfile$`, "tasks/mlenv-build-image/images", "test") {
		parsed, err := parser.Parse(bytes.NewReader(read(t, path)))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		stages := map[string]bool{"scratch": true}
		for _, instruction := range parsed.AST.Children {
			base := instruction.Next
			if strings.EqualFold(instruction.Value, "arg") && strings.HasPrefix(base.Value, "BASE_IMAGE=") &&
				!strings.Contains(base.Value, "@sha256:") && base.Value != "BASE_IMAGE=nvcr.io/nvidia/pytorch:25.08-py3" {
				t.Errorf("%s has %s: want NAME@sha256:DIGEST", path, base.Value)
			}
			if !strings.EqualFold(instruction.Value, "from") {
				continue
			}
			if !stages[base.Value] && base.Value != "${BASE_IMAGE}" && !strings.Contains(base.Value, "@sha256:") {
				t.Errorf("%s builds on %s: want NAME@sha256:DIGEST or ${BASE_IMAGE}", path, base.Value)
			}
			if as := base.Next; as != nil && as.Next != nil {
				stages[as.Next.Value] = true
			}
		}
	}
}
