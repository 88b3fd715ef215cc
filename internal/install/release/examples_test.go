// SPDX-License-Identifier: Apache-2.0

package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOneVersion: the examples and pages name one release, the action by its tag or by its commit.
func TestOneVersion(t *testing.T) {
	versions := map[string][]string{}
	found := 0
	list, err := exampleFiles(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range list {
		text := string(read(t, filepath.Join(root, file)))
		for _, version := range append(ownAction.FindAllStringSubmatch(text, -1), ownVersions.FindAllStringSubmatch(text, -1)...) {
			versions[version[2]] = append(versions[version[2]], file)
			found++
		}
		if pinned := len(ownAction.FindAllString(text, -1)); pinned != strings.Count(text, "ml-dev-env/ml-dev-env@") {
			t.Errorf("%s: %d uses of the action with a version, want all", file, pinned)
		}
	}
	if len(versions) != 1 || found < 10 {
		t.Errorf("%d versions in examples and pages: %v; want one", found, versions)
	}
}

func TestPinExamples(t *testing.T) {
	dir := t.TempDir()
	for _, folder := range []string{"docs", "examples"} {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(root, folder))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"README.md", "SECURITY.md", "action.yml"} {
		if err := os.WriteFile(filepath.Join(dir, file), read(t, filepath.Join(root, file)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	commit := strings.Repeat("0123456789", 4)
	if err := PinExamples(dir, "v1.2.3", "v1.2.3"); err == nil || !strings.Contains(err.Error(), "rev-parse") {
		t.Errorf("of a tag: %v, want a commit asked for", err)
	}
	// Twice: the next release replaces a commit.
	for _, version := range []string{"v1.2.3", "v1.3.0"} {
		if err := PinExamples(dir, version, commit); err != nil {
			t.Fatal(err)
		}
		workflow := string(read(t, filepath.Join(dir, "examples/github/nightly.yml")))
		if want := "- uses: ml-dev-env/ml-dev-env@" + commit + " # " + version + "\n"; strings.Count(workflow, want) != 1 {
			t.Errorf("%s: want %q", workflow, want)
		}
		page := string(read(t, filepath.Join(dir, "docs/project/releasing.md")))
		if !strings.Contains(page, "/releases/download/"+version+"/") || !strings.Contains(page, "VERSION=v0.0.0-try") {
			t.Errorf("docs/project/releasing.md does not have %s, or a release to try has it", version)
		}
	}
	empty := t.TempDir()
	if err := PinExamples(empty, "v1.2.3", commit); err == nil {
		t.Error("a folder without examples: want an error")
	}
}
