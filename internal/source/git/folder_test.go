// SPDX-License-Identifier: Apache-2.0

package git

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/hostilegit"
)

// TestFolderRunsNothing: no program that the repository of a user's folder names is run.
func TestFolderRunsNothing(t *testing.T) {
	hostilegit.Each(t, func(t *testing.T, dir string) {
		f, err := OpenFolder(t.Context(), dir)
		if err != nil {
			t.Log(err)
			return
		}
		defer f.Close()
		for name, use := range map[string]func() error{
			"commit":  func() error { _, err := f.Commit(t.Context()); return err },
			"changed": func() error { _, err := f.Changed(t.Context()); return err },
		} {
			if err := use(); err != nil {
				t.Logf("%s: %v", name, err)
			}
		}
	})
}

// TestFolder compares with what git itself reports.
func TestFolder(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(t *testing.T, dir string) string
	}{
		{"plain", func(_ *testing.T, dir string) string { return dir }},
		{"a folder in it", func(t *testing.T, dir string) string {
			put(t, dir, "elsewhere", "")
			return filepath.Join(dir, "src")
		}},
		{"packed", func(t *testing.T, dir string) string { git(t, dir, "", "gc", "-q"); return dir }},
		{"detached", func(t *testing.T, dir string) string { git(t, dir, "", "checkout", "-q", "--detach"); return dir }},
		{"another file", func(t *testing.T, dir string) string { put(t, dir, "new", ""); return dir }},
		{"an ignored file", func(t *testing.T, dir string) string {
			put(t, dir, ".git/info/exclude", "new\n")
			put(t, dir, "new", "")
			return dir
		}},
		{"a changed file", func(t *testing.T, dir string) string { put(t, dir, "train.py", "print(2)\n"); return dir }},
		{"a touched file", func(t *testing.T, dir string) string {
			if err := os.Chtimes(filepath.Join(dir, "train.py"), time.Now(), time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			return dir
		}},
		{"a mode that does not count", func(t *testing.T, dir string) string {
			git(t, dir, "", "config", "core.fileMode", "false")
			if err := os.Chmod(filepath.Join(dir, "train.py"), 0o755); err != nil {
				t.Fatal(err)
			}
			return dir
		}},
		{"a split index", func(t *testing.T, dir string) string { git(t, dir, "", "update-index", "--split-index"); return dir }},
		{"a work tree", func(t *testing.T, dir string) string {
			other := filepath.Join(t.TempDir(), "other")
			git(t, dir, "", "worktree", "add", "-q", "-b", "other", other)
			git(t, other, "", "commit", "-q", "--allow-empty", "-m", "other")
			return other
		}},
		{"a shallow clone", func(t *testing.T, dir string) string {
			other := filepath.Join(t.TempDir(), "other")
			git(t, dir, "", "clone", "-q", "--depth=1", "file://"+dir, other)
			return other
		}},
		{"SHA-256", func(t *testing.T, _ string) string {
			dir := t.TempDir()
			git(t, dir, "", "init", "-q", "--object-format=sha256")
			put(t, dir, "train.py", "")
			commit(t, dir, "first")
			return dir
		}},
		{"a submodule at another commit", func(t *testing.T, dir string) string {
			sub := newRepository(t, dir, "sub")
			commit(t, sub, "first")
			commit(t, dir, "sub")
			commit(t, sub, "second")
			return dir
		}},
		{"a link", func(t *testing.T, dir string) string {
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(dir, link); err != nil {
				t.Fatal(err)
			}
			return link
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := newRepository(t, t.TempDir(), "repo")
			put(t, dir, "train.py", "print(1)\n")
			put(t, dir, "src/x.py", "")
			commit(t, dir, "first")
			put(t, dir, "README", "")
			commit(t, dir, "second")
			dir = test.prepare(t, dir)
			f, err := OpenFolder(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if got, err := f.Commit(t.Context()); err != nil || got != git(t, dir, "", "rev-parse", "HEAD") {
				t.Errorf("commit %q, %v", got, err)
			}
			if got, err := f.Changed(t.Context()); err != nil || got != (git(t, dir, "", "status", "--porcelain", "--", ".") != "") {
				t.Errorf("changed %t, %v", got, err)
			}
		})
	}
}

// TestFolderDoesNotBlock: a FIFO in the place of a file of git is an error.
func TestFolderDoesNotBlock(t *testing.T) {
	for _, name := range []string{".git", ".git/HEAD", ".git/config", ".git/commondir", ".git/index", ".git/packed-refs", ".git/refs"} {
		t.Run(name, func(t *testing.T) {
			dir := newRepository(t, t.TempDir(), "repo")
			commit(t, dir, "first")
			path := filepath.Join(dir, name)
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if f, err := OpenFolder(t.Context(), dir); err == nil {
				defer f.Close()
				_, _ = f.Commit(t.Context())
				_, _ = f.Changed(t.Context())
			}
			if took := time.Since(start); took > folderPatience/2 {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// TestNoFolder: what is no repository is an error, and leaves nothing.
func TestNoFolder(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	empty := t.TempDir()
	broken := t.TempDir()
	put(t, broken, ".git/x", "")
	for _, dir := range []string{empty, broken, filepath.Join(empty, "missing")} {
		if f, err := OpenFolder(t.Context(), dir); err == nil {
			f.Close()
			t.Errorf("%s is opened", dir)
		}
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
