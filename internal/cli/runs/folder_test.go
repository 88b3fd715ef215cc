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
		"train.py": "", "secret.py": "", "data/prepare.py": "", "requirements.txt": "einops\n", "src/x.py": "", ".gitignore": "secret.py\ndata/\nrequirements.txt\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
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
			[]string{"sending script secret.py", ".gitignore or .mlenvignore names it"}, "echo '!/secret.py' >> " + filepath.Join(dir, ".mlenvignore")},
		{"a script in an ignored folder", map[string][]string{"script": {"data/prepare.py"}}, fail.ScriptNotFound, nil, "echo '!/data/' >> "},
		{"a folder", map[string][]string{"script": {"src"}}, fail.ScriptNotFound, []string{"it is a folder"}, ""},
		{"arguments without --", map[string][]string{"script": {"train.py --epochs 3"}}, fail.ScriptNotFound, nil, "with mlenv run they go after --: train.py -- --epochs 3"},
		{"all at once", map[string][]string{"script": {"trian.py"}, "requirements": {"requirements.txt"}, "deepspeed-config": {"ds.json"}, "nodes": {"two"}, "mode": {"ib"}},
			fail.ScriptNotFound, []string{"looking for script trian.py", "sending requirements requirements.txt", "looking for deepspeed-config ds.json", `param nodes: "two"`, `param mode: "ib"`}, ""},
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
