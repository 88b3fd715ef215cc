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

// The files of each case are those that git keeps with the same lines in .gitignore.
var ignoreCases = []struct {
	name  string
	lines string
	files string
	kept  string
}{
	{"a name, anywhere", "data", "data/x b/data c/datab data.txt", "c/datab data.txt"},
	{"a folder only", "out/", "out/x b/out c/out/y", "b/out"},
	{"anchored", "/data", "data b/data", "b/data"},
	{"a slash within anchors", "a/b", "a/b c/a/b", "c/a/b"},
	{"stars", "*.log\nrun-?", "a.log b/c.log run-1 run-12 x/run-z", "run-12"},
	{"a star does not cross folders", "a/*.txt", "a/x.txt a/b/y.txt", "a/b/y.txt"},
	{"all of a folder but one file", "ckpt/**\n!ckpt/keep.py", "ckpt/a ckpt/keep.py ckpt/d/keep.py", "ckpt/keep.py"},
	{"nothing comes back from a left out folder", "ckpt\n!ckpt/keep.py", "ckpt/a ckpt/keep.py", ""},
	{"a folder brought back does not bring its files", "*.bin\n!src", "src/a.bin src/b.py", "src/b.py"},
	{"only one folder", "/*\n!/src", "src/a.py src/b/c docs/d e", "src/a.py src/b/c"},
	{"two stars in front", "**/tmp/x", "tmp/x a/b/tmp/x tmp/y", "tmp/y"},
	{"two stars within", "a/**/z", "a/z a/b/z a/b/c/z b/z a/bz", "a/bz b/z"},
	{"two stars at the end", "a/**", "a/x a/b/c b/a/x", "b/a/x"},
	{"two stars in a name", "a**b", "ab axxb a/b", "a/b"},
	{"ranges", "[a-c].x\n[!a-c].y", "a.x d.x a.y d.y", "a.y d.x"},
	{"the last line decides", "*.py\n!a.py\na*", "a.py b.py", ""},
	{"comments and quotes", "# a\n\\#b\n\\!c\n\nd\\ ", "a #b !c d", "a d"},
	{"spaces at the end", "a   ", "a b", "b"},
	{"windows lines", "a\r\nb\r\n", "a b c", "c"},
	{"a byte order mark", "\ufeffa", "a b", "b"},
}

func TestIgnore(t *testing.T) {
	for _, test := range ignoreCases {
		dir := t.TempDir()
		for name := range strings.FieldsSeq(test.files) {
			write(t, filepath.Join(dir, name), name)
		}
		write(t, filepath.Join(dir, IgnoreFile), test.lines)
		ignore, err := LoadIgnore(dir)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		m, err := Scan(t.Context(), dir, ignore)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		var kept []string
		for _, e := range m.Entries {
			if e.Kind == File && e.Path != IgnoreFile {
				kept = append(kept, e.Path)
			}
		}
		if diff := cmp.Diff(test.kept, strings.Join(kept, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestIgnoreCasesAreGits compares the cases with git itself, if it is installed.
func TestIgnoreCasesAreGits(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git not found")
	}
	for _, test := range ignoreCases {
		dir := t.TempDir()
		for name := range strings.FieldsSeq(test.files) {
			write(t, filepath.Join(dir, name), name)
		}
		rules := filepath.Join(t.TempDir(), "rules")
		write(t, rules, test.lines)
		if out, err := exec.CommandContext(t.Context(), git, "init", "-q", dir).CombinedOutput(); err != nil {
			t.Fatalf("git init: %v\n%s", err, out)
		}
		out, err := exec.CommandContext(t.Context(), git, "-C", dir, "ls-files", "--others", "--exclude-from="+rules).Output()
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if diff := cmp.Diff(test.kept, strings.Join(strings.Fields(string(out)), " ")); diff != "" {
			t.Errorf("%s (-want, from the table; +got, from git):\n%s", test.name, diff)
		}
	}
}

func TestIgnoreDefaults(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".git/config", "sub/.git", "a/__pycache__/x.pyc", "b.pyc", ".DS_Store", "a/.DS_Store", "keep.py",
		IgnoreFile} {
		write(t, filepath.Join(dir, name), "!*.pyc\n!__pycache__\n.*\n")
	}
	ignore, err := LoadIgnore(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Scan(t.Context(), dir, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{IgnoreFile, "a", "keep.py", "sub"}, paths(m)); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestIgnoreRefuses(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, IgnoreFile), "ok\n[a\n[[:alpha:]]x\n")
	_, err := LoadIgnore(dir)
	if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), `.mlenvignore:2: "[a"`) ||
		!strings.Contains(err.Error(), `.mlenvignore:3: "[[:alpha:]]x"`) {
		t.Errorf("got %v", err)
	}
}

// TestLoadIgnoreStaysInside: the file is in the tree, and its size is bounded.
func TestLoadIgnoreStaysInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "token")
	write(t, outside, "[secret\n")
	for name, prepare := range map[string]func(path string) error{
		"a link out":   func(path string) error { return os.Symlink(outside, path) },
		"a device":     func(path string) error { return os.Symlink("/dev/zero", path) },
		"a pipe":       func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a large file": func(path string) error { return os.WriteFile(path, make([]byte, maxIgnore+1), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := prepare(filepath.Join(dir, IgnoreFile)); err != nil {
				t.Fatal(err)
			}
			if _, err := LoadIgnore(dir); fail.ReasonOf(err) != fail.InvalidInput || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want InvalidInput without the content", err)
			}
		})
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "sub", "ignore"), "*.log\n")
	if err := os.Symlink("sub/ignore", filepath.Join(dir, IgnoreFile)); err != nil {
		t.Fatal(err)
	}
	if ignore, err := LoadIgnore(dir); err != nil || ignore == nil {
		t.Errorf("a link inside: got %v, %v", ignore, err)
	}
}

// TestIgnoreIsLinear: a short pattern and a deep folder take milliseconds, not years.
func TestIgnoreIsLinear(t *testing.T) {
	ignore, err := parseIgnore(strings.Repeat("**/a/", 200) + "b\n" + strings.Repeat("a*", 200) + "b\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{strings.Repeat("a/", 1000) + "a", strings.Repeat("a", 255)} {
		if ignore.leavesOut(name, false) {
			t.Errorf("%.20s... is left out", name)
		}
	}
}

// matchesSlowly tries every number of parts for every **.
func matchesSlowly(pattern, parts []string) bool {
	switch {
	case len(pattern) == 0:
		return len(parts) == 0
	case pattern[0] == "**" && matchesSlowly(pattern[1:], parts):
		return true
	case len(parts) == 0:
		return false
	case pattern[0] == "**":
		return matchesSlowly(pattern, parts[1:])
	}
	return matchesPart(pattern[0], parts[0]) && matchesSlowly(pattern[1:], parts[1:])
}

// FuzzIgnore compares the linear match with the obvious one. It also checks that the fixed exclusions stay, and that a
// rule that includes a path includes nothing else.
func FuzzIgnore(f *testing.F) {
	for _, test := range ignoreCases {
		f.Add(test.lines, strings.Fields(test.files)[0])
	}
	f.Add("**/a/**/a/**/b\n!**/c/**", "a/a/a/c/b")
	f.Add("[a-\n\\", "a")
	f.Fuzz(func(t *testing.T, lines, name string) {
		ignore, err := parseIgnore(lines)
		if err != nil {
			return
		}
		if pathProblem(name) != "" || len(lines) > 200 || len(name) > 100 {
			return
		}
		parts := strings.Split(name, "/")
		for _, rule := range ignore.rules {
			if strings.Count(strings.Join(rule.parts, "/"), "**") > 3 {
				continue // the obvious match takes too long
			}
			if got, want := matches(rule.parts, parts), matchesSlowly(rule.parts, parts); got != want {
				t.Errorf("pattern %q, path %q: got %t, want %t", rule.parts, name, got, want)
			}
		}
		if ignore.LeavesOut(name+"/.git", true) != true {
			t.Errorf("%s/.git is not left out", name)
		}
		if ignore.LeavesOut(name, true) && !ignore.LeavesOut(name+"/x", false) {
			t.Errorf("%s is left out, but not a file in it", name)
		}
	})
}

func paths(m Manifest) []string {
	var paths []string
	for _, e := range m.Entries {
		paths = append(paths, e.Path)
	}
	return paths
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func parseIgnore(lines string) (*Ignore, error) {
	rules, err := parseRules(IgnoreFile, []byte(lines))
	return &Ignore{rules: rules}, err
}
