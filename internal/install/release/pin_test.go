// SPDX-License-Identifier: Apache-2.0

package release

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

// root is the checkout's folder.
const root = "../../.."

const digest = "registry.example/steps@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// checkout returns a copy of this checkout's Tasks and Pipelines, and of the action's version.
func checkout(t *testing.T) bundle.Source {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{".github", "tasks", "pipelines"} {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(root, folder))); err != nil {
			t.Fatal(err)
		}
	}
	return bundle.Source{Dir: dir, Version: "v1.2.3"}
}

func image(t *testing.T) name.Digest {
	t.Helper()
	image, err := name.NewDigest(digest)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestPins(t *testing.T) {
	source := checkout(t)
	if err := CheckPins(source, image(t)); err == nil || strings.Count(err.Error(), "registry.invalid") != 9 {
		t.Errorf("before it is pinned: %v, want each of the nine files named", err)
	}
	if err := writePins(source, image(t)); err != nil {
		t.Fatal(err)
	}
	if err := CheckPins(source, image(t)); err != nil {
		t.Error(err)
	}
	objects, err := bundle.Objects(os.DirFS(source.Dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if got := object.GetLabels()["app.kubernetes.io/version"]; got != "1.2.3" {
			t.Errorf("%s %s has version %s, want 1.2.3", object.GetKind(), object.GetName(), got)
		}
		if text := fmt.Sprint(object.Object); strings.Count(text, digest) != 1 {
			t.Errorf("%s %s does not name %s: %s", object.GetKind(), object.GetName(), digest, text)
		}
	}
	for _, page := range []string{"tasks/train/README.md", "pipelines/train-multi-node/README.md"} {
		text, err := os.ReadFile(filepath.Join(source.Dir, page))
		if err != nil || strings.Count(string(text), "v1.2.3}") != 1 || strings.Count(string(text), `tasks:v1.2.3"`) != 1 {
			t.Errorf("%s: %v: want v1.2.3 for each resolver", page, err)
		}
	}
	if got := string(read(t, filepath.Join(source.Dir, actionFile))); got != "v1.2.3\n" {
		t.Errorf("the action's version is %q, want v1.2.3", got)
	}
	source.Version = "v1.2.4"
	if err := CheckPins(source, image(t)); err == nil || !strings.Contains(err.Error(), "version 1.2.3: want") ||
		strings.Count(err.Error(), "it names another version: want v1.2.4") != 10 {
		t.Errorf("of another version: %v, want it refused", err)
	}
}

func TestPinsKeepTheRest(t *testing.T) {
	source := checkout(t)
	if err := writePins(source, image(t)); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"tasks/train/train.yaml", "pipelines/train-multi-node/train-multi-node.yaml"} {
		before, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadFile(filepath.Join(source.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		was, is := strings.Split(string(before), "\n"), strings.Split(string(after), "\n")
		if len(was) != len(is) {
			t.Fatalf("%s has %d lines, had %d", file, len(is), len(was))
		}
		changed := 0
		for i := range was {
			if was[i] != is[i] {
				changed++
			}
		}
		if changed != 2 {
			t.Errorf("%s: %d lines changed, want the version and the image", file, changed)
		}
	}
}
