// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

// checkout returns a copy of what pin and pin-examples of cmd/steps/release edit, with both scripts.
func checkout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{".github", "cmd/steps/release", "docs", "pipelines", "tasks"} {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(root, folder))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"README.md", "SECURITY.md", "action.yml"} {
		if err := os.WriteFile(filepath.Join(dir, file), read(t, filepath.Join(root, file)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func script(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(filepath.Join(dir, "cmd/steps/release", name), args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// TestPins: pin writes the version and the image into each Task and Pipeline, once and again, and keeps the rest.
func TestPins(t *testing.T) {
	dir := checkout(t)
	image := "registry.example/steps@sha256:" + strings.Repeat("0", 64)
	if out, err := exec.Command(filepath.Join(dir, "cmd/steps/release", "pin"), "v01.2.3", image).CombinedOutput(); err == nil {
		t.Errorf("version v01.2.3: want it refused, got %s", out)
	}
	script(t, dir, "pin", "v1.2.2-rc.1", "registry.example/other@sha256:"+strings.Repeat("1", 64))
	script(t, dir, "pin", "v1.2.3", image)
	objects, err := bundle.Objects(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	version := tasks(t)["mlenv-train"].Labels["app.kubernetes.io/version"]
	for _, object := range objects {
		if got := object.GetLabels()["app.kubernetes.io/version"]; got != "1.2.3" {
			t.Errorf("%s %s has version %s, want 1.2.3", object.GetKind(), object.GetName(), got)
		}
		if text := fmt.Sprint(object.Object); strings.Count(text, image) != 1 {
			t.Errorf("%s %s does not name %s: %s", object.GetKind(), object.GetName(), image, text)
		}
		at := fmt.Sprintf("%ss/%s/", strings.ToLower(object.GetKind()), object.GetName())
		page, of := string(read(t, filepath.Join(dir, at, "README.md"))), string(read(t, filepath.Join(root, at, "README.md")))
		if strings.Count(page, "v1.2.3}") != 1 || strings.Count(page, `tasks:v1.2.3"`) != 1 || strings.Count(page, "ml-dev-env/v1.2.3/"+at) != 1 {
			t.Errorf("%sREADME.md: want v1.2.3 in the address and for each resolver", at)
		}
		// TestReadmeTables writes the same links for a release.
		want := absolute(strings.ReplaceAll(of, "v"+version, "v1.2.3"), at, "v1.2.3")
		if diff := cmp.Diff(want, page); diff != "" || strings.Contains(page, "](../") || !strings.Contains(page, "/blob/v1.2.3/docs/") {
			t.Errorf("%sREADME.md: want absolute links (-want +got):\n%s", at, diff)
		}
		file := at + object.GetName() + ".yaml"
		was, is := strings.Split(string(read(t, filepath.Join(root, file))), "\n"), strings.Split(string(read(t, filepath.Join(dir, file))), "\n")
		changed := len(is) - len(was)
		for i := range min(len(was), len(is)) {
			if was[i] != is[i] {
				changed++
			}
		}
		if changed != 2 {
			t.Errorf("%s: %d lines changed, want the version and the image", file, changed)
		}
	}
	if got := string(read(t, filepath.Join(dir, ".github", "mlenv-version"))); got != "v1.2.3\n" {
		t.Errorf("the action's version is %q, want v1.2.3", got)
	}
}

// TestOneVersion: the examples and pages name one release, that of the Tasks, the action by its tag or by its commit.
func TestOneVersion(t *testing.T) {
	dir := checkout(t)
	commit := strings.Repeat("0123456789", 4)
	version := "v" + tasks(t)["mlenv-train"].Labels["app.kubernetes.io/version"]
	script(t, dir, "pin-examples", version, commit)
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		is := strings.ReplaceAll(string(read(t, filepath.Join(dir, path))), "@"+commit+" # ", "@")
		if was := string(read(t, filepath.Join(root, path))); is != was {
			t.Errorf("%s does not name %s everywhere; make pin-examples would change it", path, version)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// The next release replaces the commit.
	script(t, dir, "pin-examples", "v1.3.0", commit)
	workflow := string(read(t, filepath.Join(dir, "docs/examples/github/nightly.yml")))
	if want := "- uses: ml-dev-env/ml-dev-env@" + commit + " # v1.3.0\n"; strings.Count(workflow, want) != 1 {
		t.Errorf("%s: want %q", workflow, want)
	}
	page := string(read(t, filepath.Join(dir, "docs", "project", "releasing.md")))
	if !strings.Contains(page, "/releases/download/v1.3.0/") || !strings.Contains(page, "VERSION=v0.0.0-try") {
		t.Error("docs/project/releasing.md does not have v1.3.0, or a release to try has it")
	}
}
