// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// The files of each case are those that git lists, less those that .mlenvignore excludes and plus those that it includes.
func TestLoadWorkIgnore(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		dir   string
		kept  string
		git   bool // git itself gives the same result
	}{
		{"as .mlenvignore alone", map[string]string{".mlenvignore": "*.bin\n", "a.bin": "", "b.py": ""}, "", ".mlenvignore b.py", false},
		{"nested", map[string]string{".gitignore": "*.log\n", "a/.gitignore": "!keep.log\n/x\n", "a/keep.log": "", "a/x": "", "a/b/x": "",
			"b.log": ""}, "",
			".gitignore a/.gitignore a/b/x a/keep.log", true},
		{"a folder within the repository", map[string]string{".gitignore": "/sub/out\n*.tmp\n", "sub/out/x": "", "sub/a.py": "", "sub/b.tmp": "",
			"other": ""}, "sub", "a.py", false},
		{"a folder's name is no pattern", map[string]string{"[a]/.gitignore": "x\n", "[a]/x": "", "a/x": ""}, "", "[a]/.gitignore a/x", true},
		{".mlenvignore has the last word", map[string]string{".gitignore": "*.bin\n", ".mlenvignore": "!small.bin\n", "small.bin": "",
			"big.bin": ""}, "", ".gitignore .mlenvignore small.bin", false},
		{"folders with a dot", map[string]string{".gitignore": ".venv\n", ".venv/x": "", ".a/b": "", ".a/.gitignore": "c\n", ".a/c": ""}, "",
			".a/.gitignore .a/b .gitignore", true},
		{"a virtual environment", map[string]string{"venv/pyvenv.cfg": "", "venv/bin/python3": "", "sub/env/pyvenv.cfg": "", "sub/b": "",
			"a.py": ""}, "", "a.py sub/b",
			false},
		{"what lies in a left out folder says nothing", map[string]string{".gitignore": "venv\n", "venv/.gitignore": "!*\n", "venv/x": "",
			"y": ""}, "", ".gitignore y", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			top := t.TempDir()
			for name, content := range tc.files {
				write(t, filepath.Join(top, name), content)
			}
			if err := os.Mkdir(filepath.Join(top, ".git"), 0o755); err != nil {
				t.Fatal(err)
			}
			ignore, err := LoadWorkIgnore(filepath.Join(top, tc.dir))
			if err != nil {
				t.Fatal(err)
			}
			m, err := Scan(t.Context(), filepath.Join(top, tc.dir), ignore)
			if err != nil {
				t.Fatal(err)
			}
			var kept []string
			for _, e := range m.Entries {
				kept = append(kept, e.Path)
			}
			if diff := cmp.Diff(strings.Fields(tc.kept), kept); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
			for name := range tc.files {
				rel, err := filepath.Rel(tc.dir, name)
				if err != nil || strings.HasPrefix(rel, "..") {
					continue
				}
				if got, want := ignore.LeavesOut(filepath.ToSlash(rel), false), !strings.Contains(" "+tc.kept+" ", " "+rel+" "); got != want {
					t.Errorf("LeavesOut(%s) = %t, want %t", rel, got, want)
				}
			}
			if tc.git {
				if diff := cmp.Diff(gitKeeps(t, top), kept); diff != "" {
					t.Errorf("git keeps (-git +ours):\n%s", diff)
				}
			}
		})
	}
}

// TestLoadWorkIgnoreDoesNotBlock: a pipe in place of a .gitignore causes an error, not a hang.
func TestLoadWorkIgnoreDoesNotBlock(t *testing.T) {
	top := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(top, ".gitignore"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadWorkIgnore(top); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("got %v, want InvalidInput", err)
	}
}

func gitKeeps(t *testing.T, top string) []string {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git not found")
	}
	if err := os.Remove(filepath.Join(top, ".git")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(git, "-C", top, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(git, "-C", top, "-c", "core.excludesFile=", "ls-files", "-o", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

func TestLoadWorkIgnoreSaysEveryMistake(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, ".gitignore"), "a\n[[:alpha:]]\n")
	write(t, filepath.Join(top, "b", ".gitignore"), "[z-\n")
	_, err := LoadWorkIgnore(top)
	if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), ".gitignore:2:") ||
		!strings.Contains(err.Error(), "b/.gitignore:1:") {
		t.Errorf("got %v, want both lines", err)
	}
}
