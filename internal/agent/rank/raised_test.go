// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/pylib"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
)

// The shim runs real programs with the hook, in folders of their own.
func TestRaised(t *testing.T) {
	const silent = "import sys\nsys.excepthook = lambda *_: None\n"
	const divided = "ZeroDivisionError: division by zero (a.py:1) first "
	for name, tc := range map[string]struct {
		files map[string]string
		run   []string
		hook  string
		want  string // the error, with the file, the line and the first of the chain
		below string // the error of a program that was started, of a rank that exited with 0
	}{
		"a script whose own hook prints nothing": {files: map[string]string{"a.py": silent + "raise ValueError('bad\\nbatch')\n"},
			want: "ValueError: bad (a.py:3) first "},
		"a chain": {files: map[string]string{"a.py": silent + "try:\n  {}['x']\nexcept KeyError as e:\n  raise OSError('no data') from e\n"},
			want: "OSError: no data (a.py:6) first KeyError: 'x'"},
		"a group": {files: map[string]string{"a.py": silent + "raise ExceptionGroup('loading', [ValueError('bad shard 1'), KeyError('x')])\n"},
			want: "ExceptionGroup: loading (2 sub-exceptions): ValueError: bad shard 1 (a.py:3) first "},
		"a group of one": {files: map[string]string{"a.py": silent +
			"try:\n  raise ValueError('bad shard 1')\nexcept ValueError as e:\n  raise ExceptionGroup('loading', [e])\n"},
			want: "ValueError: bad shard 1 (a.py:4) first "},
		"a chain that is cut": {files: map[string]string{
			"a.py": silent + "try:\n  {}['x']\nexcept KeyError:\n  raise OSError('no data') from None\n"},
			want: "OSError: no data (a.py:6) first "},
		"code of the installation": {files: map[string]string{"a.py": silent + "import json\njson.loads('{')\n"},
			want: "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) (a.py:4) first "},
		"a module that Python cannot parse": {files: map[string]string{"a.py": silent + "import b\n", "b.py": "x = 1\ndef f(:\n"},
			want: "SyntaxError: invalid syntax (b.py:2) first "},
		"the traceback of another process in the message": {files: map[string]string{"a.py": silent +
			"raise RuntimeError('Caught ValueError in worker process 0.\\nOriginal Traceback (most recent call last):\\n" +
			"  File \"data.py\", line 7, in get\\n    x\\nValueError: bad row\\n')\n"},
			want: "ValueError: bad row (data.py:7) first "},
		"a launcher's error about a process": {files: map[string]string{
			"a.py": "import subprocess, sys\nsubprocess.run([sys.executable, 'b.py'], check=True, stderr=subprocess.DEVNULL)\n",
			"b.py": "raise ValueError('bad batch')\n"},
			want: "ValueError: bad batch (b.py:1) first "},
		"a shell script whose program prints nothing": {files: map[string]string{"a.sh": "python3 b.py 2>/dev/null; exit 3\n",
			"b.py": "raise ValueError('bad batch')\n"}, run: []string{"sh", "a.sh"},
			want: "ValueError: bad batch (b.py:1) first "},
		"an error that is handled": {files: map[string]string{"a.sh": "python3 b.py 2>/dev/null || true; sleep 6\n", "b.py": "1 / 0\n"},
			run: []string{"sh", "a.sh"}},
		"a program that failed last": {files: map[string]string{"a.sh": "python3 b.py >out 2>&1; echo finished\n", "b.py": "1 / 0\n"},
			run: []string{"sh", "a.sh"}, below: "ZeroDivisionError"},
		"a launcher that failed last": {files: map[string]string{"a.sh": "python3 a.py >out 2>&1; echo finished\n", "b.py": "1 / 0\n",
			"a.py": "import subprocess, sys, time\nr = subprocess.run([sys.executable, 'b.py'])\ntime.sleep(6)\nr.check_returncode()\n"},
			run: []string{"sh", "a.sh"}, below: "ZeroDivisionError"},
		"an error that was only logged last": {files: map[string]string{"a.sh": "python3 b.py >out 2>&1; echo finished\n",
			"b.py": "import logging\ntry:\n  1 / 0\nexcept Exception:\n  logging.exception('failed')\n"}, run: []string{"sh", "a.sh"}},
		"a worker of a script that handles its end": {files: map[string]string{"b.py": "1 / 0\n",
			"a.py": "import subprocess, sys\nsubprocess.run([sys.executable, 'b.py'], stderr=subprocess.DEVNULL)\n"}},
		"an error that was logged before the exit": {files: map[string]string{
			"a.py": "import logging, sys\nlogging.getLogger().addHandler(logging.NullHandler())\ntry:\n  1 / 0\n" +
				"except Exception:\n  logging.exception('failed')\n  sys.exit(3)\n"},
			want: "ZeroDivisionError: division by zero (a.py:4) first "},
		"an exit":            {files: map[string]string{"a.py": "import sys\nsys.exit('bye')\n"}},
		"no hook":            {files: map[string]string{"a.py": silent + "raise ValueError('bad batch')\n"}, hook: pylib.None},
		"an isolated Python": {files: map[string]string{"a.py": "1 / 0\n"}, run: []string{"python3", "-I", "a.py"}, want: divided},
		"another sitecustomize that finds ours": {files: map[string]string{"sitecustomize.py": "import importlib.machinery, sys\n" +
			"spec = importlib.machinery.PathFinder.find_spec('sitecustomize', [p for p in sys.path if 'site-packages' in p])\n" +
			"spec and spec.loader.exec_module(importlib.util.module_from_spec(spec))\n", "a.py": "1 / 0\n"}, want: divided},
		"a hook that the script has replaced, and an exit that waits": {files: map[string]string{
			"a.py": silent + "import atexit, time\natexit.register(time.sleep, 0.2)\n1 / 0\n"},
			want: "ZeroDivisionError: division by zero (a.py:5) first "},
		"a message that begins with an empty line": {files: map[string]string{"a.py": silent + "raise ValueError('\\n\\nno such\\n  key')\n"},
			want: "ValueError: no such (a.py:3) first "},
		"another sitecustomize": {files: map[string]string{"sitecustomize.py": "raise KeyError('x')\n", "a.py": "1 / 0\n"}, want: divided},
		"an error that is no string": {files: map[string]string{
			"a.py": silent + "class E(Exception):\n  def __str__(self): raise OSError\nraise E\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, of := hooked(t, tc.files, map[string]string{pylib.HookVariable: tc.hook, "RANK": "0"})
			if tc.run == nil {
				tc.run = []string{"python3", "a.py"}
			}
			Main(tc.run, fstest.MapFS{})
			status, err := of.ReadRank(0)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if p := status.Python; p != nil {
				got = fmt.Sprintf("%s: %s (%s:%d) first %s", p.Type, p.Message, strings.TrimPrefix(p.File, dir+"/"), p.Line, p.First)
				if p.Seen.IsZero() || len(p.Traceback) == 0 {
					t.Errorf("the error has no time or no traceback: %+v", p)
				}
			}
			below := ""
			if status.Below != nil {
				below = status.Below.Type
			}
			if below != tc.below {
				t.Errorf("below the rank: got %q, want %q", below, tc.below)
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s\n%s", got, tc.want, strings.Join(status.Tail, "\n"))
			}
			if notes, _ := filepath.Glob(filepath.Join(of.Errors(0), "hook-*.txt")); len(notes) > 0 {
				content, _ := os.ReadFile(notes[0])
				t.Logf("noted: %s", content)
			}
		})
	}
}

// hooked writes the files into a working directory, and sets the variables of a rank whose Python finds them and the hook.
func hooked(t *testing.T, files, env map[string]string) (dir string, of record.Dir) {
	t.Helper()
	dir, of = t.TempDir(), record.Dir(t.TempDir())
	lib := filepath.Join(t.TempDir(), "site-packages")
	if err := pylib.Write(lib); err != nil {
		t.Fatal(err)
	}
	for path, content := range files {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	env["PYTHONPATH"], env[RunDirVariable], env[NodeVariable] = dir, string(of), "0"
	pylib.AddTo(env, lib)
	for key, value := range env {
		t.Setenv(key, value)
	}
	return dir, of
}
