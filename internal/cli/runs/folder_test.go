// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestPrepare: mlenv checks what it can see in a folder before it starts a run.
func TestPrepare(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"train.py": "", "secret.py": "", "data/prepare.py": "", "requirements.txt": "einops\n", "src/x.py": "", "pkg/__init__.py": "",
		"pkg/main.py": "", ".gitignore": "secret.py\ndata/\nrequirements.txt\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "third", "party"), 0o700); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(t.TempDir(), "linked")
	if err := os.Symlink(dir, linked); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(dir))
	for _, test := range []struct {
		name   string
		values map[string][]string
		reason fail.Reason
		texts  []string
		next   string
	}{
		{"as it should be", map[string][]string{"script": {"train.py"}}, "", nil, ""},
		{"a program in the image", map[string][]string{"script": {"nvidia-smi"}, "launcher": {"command"}}, "", nil, ""},
		{"an ignored script", map[string][]string{"script": {"secret.py"}}, fail.ScriptNotFound,
			[]string{"sending script secret.py", ".gitignore or .mlenvignore names it"}, "echo '!/secret.py' >> " +
				filepath.Join(dir, ".mlenvignore")},
		{"a script in an ignored folder", map[string][]string{"script": {"data/prepare.py"}}, fail.ScriptNotFound, nil, "echo '!/data/' >> "},
		{"a folder", map[string][]string{"script": {"src"}}, fail.ScriptNotFound, []string{"it is a folder"}, ""},
		{"arguments without --", map[string][]string{"script": {"train.py --epochs 3"}}, fail.ScriptNotFound, nil,
			"with mlenv run they go after --: train.py -- --epochs 3"},
		{"a module", map[string][]string{"script": {"-m pkg.main"}}, "", nil, ""},
		{"a module of the image", map[string][]string{"script": {"-m torch.distributed.run"}}, "", nil, ""},
		{"no such module", map[string][]string{"script": {"-m pkg.mian"}}, fail.ScriptNotFound,
			[]string{"looking for script -m pkg.mian", "the folder has __init__.py, main.py in pkg"}, ""},
		{"a module as a script", map[string][]string{"script": {"pkg.main"}}, fail.ScriptNotFound, nil,
			"name the file, pkg/main.py, or the module, -m pkg.main"},
		{"a module in an ignored folder", map[string][]string{"script": {"-m data.prepare"}}, fail.ScriptNotFound,
			[]string{"sending script data/prepare.py"}, "echo '!/data/' >> "},
		{"in another folder", map[string][]string{"script": {"x.py"}}, fail.ScriptNotFound,
			[]string{"it does not exist; the folder has src/x.py"}, ""},
		{"an absolute path", map[string][]string{"script": {filepath.Join(dir, "train.py")}}, "", nil, ""},
		{"an absolute path by another name", map[string][]string{"script": {filepath.Join(linked, "src", "x.py")}}, "", nil, ""},
		{"an absolute path that is missing", map[string][]string{"script": {filepath.Join(dir, "trian.py")}}, fail.ScriptNotFound,
			[]string{"looking for script trian.py"}, ""},
		{"absolute paths of other files", map[string][]string{"script": {"train.py"}, "requirements": {filepath.Join(dir, "pkg", "main.py")},
			"deepspeed-config": {filepath.Join(dir, "ds.json")}},
			fail.InvalidInput, []string{"looking for deepspeed-config ds.json"}, ""},
		{"a path on the nodes", map[string][]string{"script": {"/opt/train.py"}}, "", nil, ""},
		{"with ./", map[string][]string{"script": {"./train.py"}}, "", nil, ""},
		{"from the current folder", map[string][]string{"script": {filepath.Base(dir) + "/src/x.py"}}, fail.ScriptNotFound, nil,
			"name it by its path in " + dir + ": src/x.py"},
		{"in an empty submodule", map[string][]string{"script": {"third/party/prepare_it.py"}}, fail.ScriptNotFound,
			[]string{"nothing in third/party"}, "git -C " + dir + " submodule update --init third/party"},
		{"all at once", map[string][]string{"script": {"trian.py"}, "requirements": {"requirements.txt"}, "deepspeed-config": {"ds.json"},
			"nodes": {"two"}, "mode": {"ib"}},
			fail.ScriptNotFound, []string{"looking for script trian.py", "sending requirements requirements.txt",
				"looking for deepspeed-config ds.json", `param nodes: "two"`, `param mode: "ib"`}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := runOptions{params: newParams(mldevenv.Bundle)}
			values := maps.Clone(test.values)
			values["repo-url"] = []string{dir}
			upload, err := o.prepare(t.Context(), o.params.pipeline, values)
			if upload != nil {
				defer upload.remove()
			}
			if (err == nil) != (test.reason == "") || (upload == nil) != (err != nil) {
				t.Fatalf("got %v, %v; want %q", upload, err, test.reason)
			}
			if err == nil {
				return
			}
			if got := fail.ReasonOf(err); got != test.reason {
				t.Errorf("reason %s, want %s", got, test.reason)
			}
			for _, text := range test.texts {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("got %v, want %q", err, text)
				}
			}
			if next := fail.NextOf(err); !strings.Contains(next, test.next) {
				t.Errorf("next %q, want %q", next, test.next)
			}
		})
	}
	// The proposed lines solve the problem.
	if err := os.WriteFile(filepath.Join(dir, ".mlenvignore"), []byte("!/data/\n!/secret.py\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{"data/prepare.py", "secret.py"} {
		o := runOptions{params: newParams(mldevenv.Bundle)}
		upload, err := o.prepare(t.Context(), o.params.pipeline, map[string][]string{"repo-url": {dir}, "script": {script}})
		if err != nil {
			t.Errorf("%s after the proposed line: %v", script, err)
			continue
		}
		upload.remove()
	}
}
