// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// source returns a tree as people have them: packages with and without __init__.py, a layout with src, and a package that can be run.
func source(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{
		"train.py", "pkg/__init__.py", "pkg/main.py", "pkg/sub/train.py", "plain/train.py", "app/__main__.py", "src/deep/main.py",
		"my-tools/run.py", "torchlike/x.txt",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("import sys; print(__name__, sys.argv[1:])\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// python returns the interpreter itself, and no program that looks for one.
func python(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "python3")
}

// TestModuleForm: with every launcher the ranks get the command line of python -m, and find the tree's packages in the processes
// that they start.
func TestModuleForm(t *testing.T) {
	dir := source(t)
	python := python(t)
	for launcher, local := range map[agent.Launcher]string{agent.DeepSpeed: "4", agent.DeepSpeedLauncher: "4", agent.Torchrun: "",
		agent.TorchrunLauncher: "", agent.Command: ""} {
		c := Config{Nodes: 1, Program: os.Args[0], Environ: []string{"PATH=" + filepath.Dir(python), "PYTHONPATH=/opt/lib",
			"HOME=" + os.Getenv("HOME")}}
		l, err := c.planLaunch("id",
			agent.JobSpec{Launcher: launcher, Script: "-m pkg.main", Args: []string{"--lr=1"}, Nodes: 1, RanksPerNode: 2},
			jobFolder{dir: dir}, "/record")
		if err != nil {
			t.Errorf("%s: %v", launcher, err)
			continue
		}
		if want := []string{os.Args[0], "rank", "--", python, "-u", "-m", "pkg.main", "--lr=1"}; len(l.args) < len(want) ||
			!slices.Equal(l.args[len(l.args)-len(want):], want) {
			t.Errorf("%s: got %q, want it to end with %q", launcher, l.args, want)
		}
		if got, want := l.env["PYTHONPATH"], c.Paths.python()+":"+dir+":/opt/lib"; got != want {
			t.Errorf("%s: PYTHONPATH is %q, want %q", launcher, got, want)
		}
		if got := l.env["MLENV_PASS_LOCAL_RANK"]; got != local {
			t.Errorf("%s: --local_rank is inserted at %q, want %q: behind the module", launcher, got, local)
		}
	}
}

func TestModulesThatExist(t *testing.T) {
	dir := source(t)
	interpreter := python(t)
	for _, test := range []struct{ script, pythonPath, missing string }{
		{"-m pkg.main", "", ""},
		{"-m train", "", ""},
		{"-m plain.train", "", ""},
		{"-m pkg.sub.train", "", ""},
		{"-m app", "", ""},
		{"-m my-tools.run", "", ""},
		{"-m json.tool", "", ""}, // Python's own
		{"-m deep.main", "src", ""},
		{"-m deep.main", "", "Python finds no module deep.main; the tree has src/deep/main.py"},
		{"-m pkg.mian", "", "the tree has __init__.py, main.py, sub/ in pkg"},
		{"-m plain.trian", "", "the tree has train.py in plain"},
		{"-m train.py", "", "the tree has no folder train, but "},
		{"-m no_such_package.main", "", "the tree has "},
	} {
		c := Config{Nodes: 1, Program: os.Args[0], Environ: []string{"PATH=" + filepath.Dir(interpreter), "HOME=" + os.Getenv("HOME"),
			"PYTHONPATH=" + test.pythonPath}}
		spec := agent.JobSpec{Launcher: agent.Torchrun, Script: test.script, Nodes: 1, RanksPerNode: 2}
		l, err := c.planLaunch("id", spec, jobFolder{dir: dir}, "/record")
		if test.missing != "" {
			if fail.ReasonOf(err) != fail.ScriptNotFound || !strings.Contains(err.Error(), test.missing) {
				t.Errorf("%s: got %v, want ScriptNotFound with %q", test.script, err, test.missing)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.script, err)
			continue
		}
		at := slices.Index(l.args, "rank")
		run := exec.Command(l.args[at+2], append(l.args[at+3:], "--help")...)
		run.Dir, run.Env = l.dir, agent.Environ(l.env)
		if out, err := run.CombinedOutput(); err != nil || len(out) == 0 {
			t.Errorf("%s: %v: %s", test.script, err, out)
		}
	}
}
