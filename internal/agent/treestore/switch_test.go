// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

var t1 = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)

// replaceFile replaces a file as an editor does.
func replaceFile(path, content string) error {
	return errors.Join(os.WriteFile(path+".new", []byte(content), 0o600), os.Rename(path+".new", path))
}

func TestSwitch(t *testing.T) {
	w := newWorkspace(t)
	if hash, venv := w.Current(); hash != "" || venv != "" {
		t.Errorf("current is %q with %q", hash, venv)
	}
	var trees []tree.Digest
	for _, text := range []string{"one", "two"} {
		dir, m := newSource(t, files{"a": text})
		hash, _ := receive(t, w.Store, dir, m)
		trees = append(trees, hash)
	}
	for _, test := range []struct {
		to      tree.Digest
		venv    string
		content string
	}{
		{trees[0], "", "one"},
		{trees[1], "/workspace/.mlenv/venvs/x", "two"},
		{trees[1], "/workspace/.mlenv/venvs/y", "two"},
		{trees[0], "", "one"},
	} {
		if err := w.Switch(test.to, test.venv); err != nil {
			t.Fatal(err)
		}
		if hash, venv := w.Current(); hash != test.to || venv != test.venv {
			t.Errorf("current is %s with %q", hash, venv)
		}
		if content, err := os.ReadFile(filepath.Join(w.dir, "repo/a")); err != nil || string(content) != test.content {
			t.Errorf("repo/a is %q, %v", content, err)
		}
	}
	if venv := w.Venv(trees[1]); venv != "/workspace/.mlenv/venvs/y" {
		t.Errorf("venv of the other tree is %q", venv)
	}
	// The link is valid wherever the claim is mounted.
	if target, err := os.Readlink(filepath.Join(w.dir, "repo")); err != nil || target != ".mlenv/trees/"+string(trees[0]) {
		t.Errorf("the link leads to %s, %v", target, err)
	}
	for _, hash := range []tree.Digest{tree.Digest(strings.Repeat("0", 64)), "../x", ""} {
		if err := w.Switch(hash, ""); fail.ReasonOf(err) != fail.SyncFailed {
			t.Errorf("to %q: %v", hash, err)
		}
	}
	if hash, _ := w.Current(); hash != trees[0] {
		t.Errorf("current is %s after switches that failed", hash)
	}
}

func TestSwitchOverwritesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		lay  func(path string) error
		want string
	}{
		"a folder": {func(path string) error {
			return errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "work"), nil, 0o600))
		}, "a folder with 1 entries is in its place"},
		"an empty folder":       {func(path string) error { return os.Mkdir(path, 0o755) }, "a folder with 0 entries"},
		"a file":                {func(path string) error { return os.WriteFile(path, []byte("work"), 0o600) }, "a file of 4 bytes"},
		"somebody's link":       {func(path string) error { return os.Symlink("/datasets/repo", path) }, "a link to /datasets/repo"},
		"a link near the trees": {func(path string) error { return os.Symlink(".mlenv/trees/mine", path) }, "a link to .mlenv/trees/mine"},
	} {
		w := newWorkspace(t)
		path := filepath.Join(w.dir, "repo")
		dir, m := newSource(t, files{"a": "1"})
		hash, _ := receive(t, w.Store, dir, m)
		if err := test.lay(path); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		err = w.Switch(hash, "")
		if fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), test.want) || !strings.Contains(fail.NextOf(err), "mv "+path) {
			t.Errorf("%s: got %v, next %q", name, err, fail.NextOf(err))
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: the tree is gone: %v", name, err)
		}
		if hash, _ := w.Current(); hash != "" {
			t.Errorf("%s: current is %s", name, hash)
		}
	}
}

// Readers see a complete tree at any moment.
func TestSwitchIsAtomic(t *testing.T) {
	w := newWorkspace(t)
	trees := []tree.Digest{w.synced(t, files{"a": "1"}), w.synced(t, files{"a": "2"})}
	stop, seen := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				seen <- nil
				return
			default:
			}
			if _, err := os.ReadFile(filepath.Join(w.dir, "repo/a")); err != nil {
				seen <- err
				return
			}
		}
	}()
	for i := range 200 {
		if err := w.Switch(trees[i%2], ""); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if err := <-seen; err != nil {
		t.Errorf("a reader saw %v", err)
	}
}

// TestEnvironmentsShareARoot: each environment has its own link, and so its own tree and virtual environment.
func TestEnvironmentsShareARoot(t *testing.T) {
	w := newWorkspace(t)
	other, err := Open(filepath.Join(w.dir, ".mlenv/trees"), filepath.Join(w.dir, ".mlenv/environments/kim/repo"))
	if err != nil {
		t.Fatal(err)
	}
	dir, m := newSource(t, files{"a": "one"})
	hash, _ := receive(t, w.Store, dir, m)
	if err := w.Switch(hash, "/workspace/.mlenv/venvs/x"); err != nil {
		t.Fatal(err)
	}
	if current, _ := other.Current(); current != "" {
		t.Errorf("current of the other environment is %s", current)
	}
	if err := other.Switch(hash, ""); err != nil {
		t.Fatal(err)
	}
	for store, want := range map[*Store]string{w.Store: "/workspace/.mlenv/venvs/x", other: ""} {
		if current, venv := store.Current(); current != hash || venv != want || store.Venv(hash) != want {
			t.Errorf("current is %s with %q, want %s with %q", current, venv, hash, want)
		}
	}
	if content, err := os.ReadFile(filepath.Join(w.dir, ".mlenv/environments/kim/repo/a")); err != nil || string(content) != "one" {
		t.Errorf("a is %q, %v", content, err)
	}
}
