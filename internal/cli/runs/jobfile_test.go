// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// parsed returns the command line of mlenv run after its arguments were parsed. The job file is job.yaml.
func parsed(t *testing.T, job string, args ...string) (runOptions, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile("job.yaml", []byte(job), 0o644); err != nil {
		t.Fatal(err)
	}
	o := runOptions{params: newParams(mldevenv.Bundle)}
	cmd := RunCommand(mldevenv.Bundle)
	cmd.ResetFlags()
	o.params.addTo(cmd.Flags())
	cmd.Flags().StringVar(&o.like, "like", "", "")
	cmd.Flags().StringVar(&o.file, "file", "", "")
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return o, o.parse(cmd, cmd.Flags().Args())
}

func TestJobFile(t *testing.T) {
	const job = `# A job.
repo-url: https://example.com/r
script: train.py
script-args: [--lr, 3e-4, --epochs, 3, --bf16, true]
nodes: 2
submodules: false
timeout: 24h
requirements: null
build-args: {}
env:
  MODE: fast
  DEPTH: 12
stop-if:
- loss is nan
- gpu_use < 5% for 20m
restart-if: [loss > 20 after 100 steps]
resume-from: first
`
	want := map[string][]string{
		"repo-url": {"https://example.com/r"}, "script": {"train.py"}, "script-args": {"--lr", "3e-4", "--epochs", "3", "--bf16", "true"},
		"nodes": {"2"}, "submodules": {"false"}, "timeout": {"24h"}, "build-args": {}, "env": {"DEPTH=12", "MODE=fast"},
		"stop-if": {"loss is nan", "gpu_use < 5% for 20m"}, "restart-if": {"loss > 20 after 100 steps"},
	}
	o, err := parsed(t, job, "--file=job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, o.values); diff != "" || o.resumeFrom != "first" {
		t.Errorf("resumes %q; values (-want +got):\n%s", o.resumeFrom, diff)
	}

	o, err = parsed(t, job, "--file=job.yaml", "--nodes=4", "--env=A=1", "--like=other", "https://example.com/other", "--", "--lr=1")
	if err != nil {
		t.Fatal(err)
	}
	want["repo-url"], want["nodes"], want["env"], want["script-args"] = []string{"https://example.com/other"}, []string{"4"}, []string{
		"A=1"}, []string{"--lr=1"}
	if diff := cmp.Diff(want, o.values); diff != "" || o.resumeFrom != "" {
		t.Errorf("with flags: resumes %q; values (-want +got):\n%s", o.resumeFrom, diff)
	}
}

// A folder is relative to the file, whatever mlenv's working directory is.
func TestJobFileInAFolder(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "jobs", "job.yaml")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("repo-url: ..\nscript: train.py\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	o, err := parsed(t, "", "--file="+path)
	if err != nil || o.values["repo-url"][0] != dir {
		t.Errorf("got %v, %v; want the folder %s", o.values["repo-url"], err, dir)
	}
}

func TestMistakesOfAJobFile(t *testing.T) {
	for _, tc := range []struct{ name, job, want string }{
		{"several", "lancher: deepspeed\nscript: train.py\nnodes: two\nlfs: maybe\nenv:\n  RANK: 3\nscript: again\nscript-args: --lr=1\n",
			`job.yaml:1:1: lancher: unknown key; did you mean "launcher"?
job.yaml:3:8: nodes: "two": want a number, or 0 for the default
job.yaml:4:6: lfs: "maybe": want true or false
job.yaml:6:9: env[RANK]: "3": variable RANK: the launcher sets it; want another name
job.yaml:7:1: script: the key stands in line 2 already
job.yaml:8:14: script-args: "--lr=1": want a list, as in [a, b], not a single value`},
		{"rules", "repo-url: .\nscript: train.py\nstop-if: loss is nan\nrestart-if:\n- loss is nan\n- loss is inf\n- no checkpoint for 0h\n",
			`job.yaml:3:10: stop-if: "loss is nan": want a list, as in [a, b], not a single value`},
		{"values of rules", "repo-url: .\nscript: train.py\nstop-if:\n- loss is inf\n- no checkpoint for 0h\n",
			`job.yaml:4:3: stop-if[0]: "loss is inf": want loss is nan, loss > 20 after 100 steps, step_time > 2x median for 10m, no checkpoint ` +
				`for 2h or ` +
				`gpu_use < 5% for 20m, with your own numbers
job.yaml:5:3: stop-if[1]: "no checkpoint for 0h": 0h: want a duration above 0, as in 20m or 2h`},
		{"empty", "", "job.yaml:1:1: the file is empty; want at least repo-url and script"},
		{"no YAML", "a: b: c\n", "job.yaml:1:1: not YAML: "},
		{"a repository with a password", "repo-url: https://me:secret@\nscript: a\n", `job.yaml:1:11: repo-url: reading repository URL "`},
		{"no script", "repo-url: .\n", "an argument is missing: want the training script"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parsed(t, tc.job, "--file=job.yaml")
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got\n%v\nwant\n%s", err, tc.want)
			}
		})
	}
	if _, err := parsed(t, "", "--file=nowhere.yaml"); err == nil || !strings.Contains(err.Error(), "nowhere.yaml") ||
		strings.Contains(err.Error(), "missing") {
		t.Errorf("a file that is missing: %v", err)
	}
}

// TestJobSchemaIsCurrent: editors use the schema to complete keys; -update writes it.
func TestJobSchemaIsCurrent(t *testing.T) {
	p := newParams(mldevenv.Bundle)
	schema, err := p.jobSchema()
	if err != nil {
		t.Fatal(err)
	}
	golden.File(t, "../../../docs/reference/job.schema.json", string(schema))
}

func TestExampleJobFile(t *testing.T) {
	p := newParams(mldevenv.Bundle)
	values, _, err := p.readJob("../../../docs/examples/job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"script", "deepspeed-config"} {
		if _, err := os.Stat(filepath.Join(values["repo-url"][0], values[name][0])); err != nil {
			t.Error(err)
		}
	}
}

// kindOf returns the JSON type of a param, derived from its kind and its default.
func kindOf(spec v1.ParamSpec) string {
	switch {
	case isMapping(spec):
		return "object"
	case spec.Type == v1.ParamTypeArray:
		return "array"
	case param.KindOf(spec.Name).Name() == "int":
		return "integer"
	case spec.Default != nil && (spec.Default.StringVal == "true" || spec.Default.StringVal == "false"):
		return "boolean"
	}
	return "string"
}

// jobSchema returns the JSON schema of a job file, for editors.
func (p *params) jobSchema() ([]byte, error) {
	item := &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "string"}, {Type: "number"}, {Type: "boolean"}}}
	schema := &jsonschema.Schema{
		Version: jsonschema.Version, Title: "ml-dev-env job file", Description: "The params of a run for mlenv run --file.",
		Type: "object", Properties: jsonschema.NewProperties(), AdditionalProperties: jsonschema.FalseSchema,
	}
	for _, spec := range p.pipeline.Spec.Params {
		usage, _, _ := strings.Cut(strings.TrimSpace(spec.Description), "\n")
		key := &jsonschema.Schema{Type: kindOf(spec), Description: usage}
		switch key.Type {
		case "object":
			key.AdditionalProperties = item
		case "array":
			key.Items = item
		case "integer":
			key.Minimum = "0"
		}
		schema.Properties.Set(spec.Name, key)
	}
	schema.Properties.Set(resumeKey, &jsonschema.Schema{Type: "string", Description: "Run whose checkpoints to continue from, as the flag " +
		"--resume-from."})
	content, err := json.MarshalIndent(schema, "", "  ")
	return append(content, '\n'), err
}
