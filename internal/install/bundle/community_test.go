// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// renovate has the fields of Renovate's configuration that the test looks at.
type renovate struct {
	MinimumReleaseAge string  `json:"minimumReleaseAge"`
	GitHubActions     manager `json:"github-actions"`
	Requirements      manager `json:"pip_requirements"`
}

type manager struct {
	Patterns []string `json:"managerFilePatterns"`
}

// TestUpdates: new versions are proposed after a week, for the examples and the pinned Python packages too; Go's release is one line of
// each module, and all modules have the same.
func TestUpdates(t *testing.T) {
	var config renovate
	if err := json.Unmarshal(read(t, filepath.Join(root, ".github/renovate.json")), &config); err != nil {
		t.Fatal(err)
	}
	if config.MinimumReleaseAge != "7 days" {
		t.Errorf("minimumReleaseAge %q, want a week", config.MinimumReleaseAge)
	}
	want := append(filesBelow(t, `examples/github/[^/]*\.yml$`, "docs"),
		filesBelow(t, `requirements[^/]*\.txt$`, "tasks/mlenv-build-image/images", "test/tools")...)
	for _, path := range want {
		name, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(append(config.GitHubActions.Patterns, config.Requirements.Patterns...), func(pattern string) bool {
			return regexp.MustCompile(strings.Trim(pattern, "/")).MatchString(name)
		}) {
			t.Errorf("%s: no pattern matches it", name)
		}
	}
	toolchain := regexp.MustCompile(`(?m)^go 1\.\d+\.\d+\n\ntoolchain (go\S+)$`)
	found := map[string][]string{}
	for _, module := range []string{
		"go.mod", "cmd/steps/release/tools/go.mod", "cmd/steps/release/tools/goreleaser/go.mod", "test/tools/go.mod", "test/tools/lint/go.mod",
	} {
		line := toolchain.FindStringSubmatch(string(read(t, filepath.Join(root, module))))
		if line == nil {
			t.Errorf("%s: want a version of Go and a toolchain line", module)
			continue
		}
		found[line[1]] = append(found[line[1]], module)
	}
	if len(found) != 1 {
		t.Errorf("toolchains %v, want one", found)
	}
}

// TestCommunity: GitHub finds who reviews, and what to fill in; a link to a page of this repository leads to one.
func TestCommunity(t *testing.T) {
	page := regexp.MustCompile(`https://github\.com/ml-dev-env/ml-dev-env/blob/main/([\w./-]+)`)
	list := append(filesBelow(t, `\.(yml|md)$`, ".github/ISSUE_TEMPLATE"), filepath.Join(root, ".github/PULL_REQUEST_TEMPLATE.md"))
	for _, path := range list {
		text := read(t, path)
		for _, link := range page.FindAllSubmatch(text, -1) {
			read(t, filepath.Join(root, string(link[1])))
		}
		if filepath.Ext(path) != ".yml" || filepath.Base(path) == "config.yml" {
			continue
		}
		var form struct {
			Name, Description string
			Body              []struct {
				Type, ID string
			}
		}
		if err := yaml.Unmarshal(text, &form); err != nil || form.Name == "" || form.Description == "" || len(form.Body) == 0 {
			t.Errorf("%s: %v: want a form with a name, a description and fields", path, err)
		}
	}
	for owner := range strings.FieldsSeq(string(read(t, filepath.Join(root, ".github/CODEOWNERS")))) {
		if strings.HasPrefix(owner, "@") && !strings.HasPrefix(owner, "@ml-dev-env/") {
			t.Errorf("CODEOWNERS names %s; want teams of the organization", owner)
		}
	}
	if text := string(read(t, filepath.Join(root, ".github/CODE_OF_CONDUCT.md"))); !strings.Contains(text, "/security/advisories/new") {
		t.Error("CODE_OF_CONDUCT.md does not say where to report")
	}
}
