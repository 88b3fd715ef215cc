// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func TestModuleInTree(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"utils/__init__.py", "models/gpt.py", "src/pkg/__init__.py", "src/pkg/data.py", "lib.py",
		"python/a/b/far.py", "docs/words/x.txt", ".git/hidden/x.py", "mytorch/x.py", "third/party/torch/x.py"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for module, want := range map[string]string{
		"utils": ".", "models": ".", "models.gpt": ".", "pkg": "src", "pkg.data": "src", "lib": ".",
		"far": "", "words": "", "hidden": "", "torch": "third/party", "numpy": "", "data": "",
	} {
		p := &agent.PythonError{Type: "ModuleNotFoundError", Message: "No module named '" + module + "'"}
		if got := inTree(p, dir); got != want {
			t.Errorf("%s: got %q, want %q", module, got, want)
		}
	}
	// A file of a package may import its neighbour by that name alone, which works only if it is the script.
	for file, want := range map[string]string{"src/pkg/main.py": "src/pkg", "/work/local-x/src/pkg/main.py": "src/pkg",
		"src/main.py": "", "/work/src/pkg/deep/main.py": "", "": ""} {
		p := &agent.PythonError{Type: "ModuleNotFoundError", Message: "No module named 'data'", File: file}
		if got := inTree(p, dir); got != want {
			t.Errorf("imported by %s: got %q, want %q", file, got, want)
		}
	}
	for _, p := range []*agent.PythonError{
		{Type: "ImportError", Message: "cannot import name 'utils' from 'x'"}, {Type: "ModuleNotFoundError", Message: "utils"},
		{Type: "ValueError", Message: "No module named 'utils'"},
	} {
		if got := inTree(p, dir); got != "" {
			t.Errorf("%s: %s: got %q, want nothing", p.Type, p.Message, got)
		}
	}
	p := &agent.PythonError{Type: "ModuleNotFoundError", Message: "No module named 'utils.nothing'; 'utils' is not a package"}
	if got := inTree(p, dir); got != "" {
		t.Errorf("a module that is nowhere: got %q", got)
	}
}
