// SPDX-License-Identifier: Apache-2.0

package action

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// workflow has the fields of a workflow that the tests look at.
type workflow struct {
	On          any            `json:"on"`
	Permissions map[string]any `json:"permissions"`
	Jobs        map[string]struct {
		If    string `json:"if"`
		Steps []struct {
			Uses string            `json:"uses"`
			With map[string]string `json:"with"`
		} `json:"steps"`
	} `json:"jobs"`
}

// examples returns the workflows of docs/examples/github, and their text, by name.
func examples(t *testing.T) (map[string]workflow, map[string]string) {
	t.Helper()
	files, err := filepath.Glob("../../../docs/examples/github/*.yml")
	if err != nil || len(files) < 4 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	workflows, texts := map[string]workflow{}, map[string]string{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var w workflow
		// YAML 1.1 reads the key on as true.
		text := strings.Replace(string(content), "\non:", "\n\"on\":", 1)
		if err := yaml.Unmarshal([]byte(text), &w); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		workflows[filepath.Base(file)], texts[filepath.Base(file)] = w, string(content)
	}
	return workflows, texts
}

// TestExamplesShareClaims: an environment of another name has claims of its own, which nothing deletes.
func TestExamplesShareClaims(t *testing.T) {
	named := 0
	workflows, _ := examples(t)
	for file, w := range workflows {
		for _, job := range w.Jobs {
			for _, step := range job.Steps {
				name := step.With["name"]
				if !strings.HasPrefix(step.Uses, "ml-dev-env/ml-dev-env@") || name == "" {
					continue
				}
				named++
				if !agent.SharesClaims(name) {
					t.Errorf("%s: environment %s has claims of its own; want a name that begins with %s-", file, name, agent.DefaultName)
				}
			}
		}
	}
	if named == 0 {
		t.Error("no example names its environment")
	}
}

// TestExamplesSkipForks: GitHub gives pull requests of forks and of Dependabot no secret and no ID token, so a job that needs one would
// fail.
func TestExamplesSkipForks(t *testing.T) {
	workflows, texts := examples(t)
	guarded := 0
	for file, w := range workflows {
		needsSecret := strings.Contains(texts[file], "secrets.") || w.Permissions["id-token"] != nil
		if !needsSecret || !strings.Contains(fmt.Sprint(w.On), "pull_request") {
			continue
		}
		for name, job := range w.Jobs {
			guarded++
			for _, want := range []string{"github.event.pull_request.head.repo.full_name == github.repository", "'dependabot[bot]'"} {
				if !strings.Contains(job.If, want) {
					t.Errorf("%s: job %s has if %q; want %s in it", file, name, job.If, want)
				}
			}
		}
	}
	if guarded == 0 {
		t.Error("no example for pull requests uses a secret")
	}
}

// TestExamplesKeepNoLongToken: a stored token expires, so an example that has one leads to what renews it or does without.
func TestExamplesKeepNoLongToken(t *testing.T) {
	_, texts := examples(t)
	texts["action.yml"] = read(t, "action.yml")
	texts["docs/automate/github.md"] = read(t, "docs/automate/github.md")
	for file, text := range texts {
		if strings.Contains(text, "token: ${{") &&
			(!strings.Contains(text, "renew-token.yaml") || !strings.Contains(text, "oidc-audience")) {
			t.Errorf("%s stores a token; want renew-token.yaml and oidc-audience named", file)
		}
	}
}

var createToken = regexp.MustCompile(`oc create token (\S+)`)

// TestAccountOfTheAction: the action, the rights and the pages create tokens of one account.
func TestAccountOfTheAction(t *testing.T) {
	var account struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	rights, _, _ := strings.Cut(read(t, "docs/examples/github/rights.yaml"), "\n---\n")
	if err := yaml.Unmarshal([]byte(rights), &account); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"action.yml", "docs/examples/github/rights.yaml", "docs/examples/github/renew-token.yaml",
		"docs/automate/github.md"} {
		found := createToken.FindAllStringSubmatch(read(t, file), -1)
		if len(found) == 0 {
			t.Errorf("%s does not name the account", file)
		}
		for _, f := range found {
			if f[1] != account.Metadata.Name {
				t.Errorf("%s: %s, want the account of rights.yaml: %s", file, f[0], account.Metadata.Name)
			}
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../../..", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestGetMlenv runs the script that puts mlenv onto a runner, with a curl that answers from a folder, and without Go.
func TestGetMlenv(t *testing.T) {
	for name, test := range map[string]struct {
		file, input string
		// version is what the script downloads, "" if it needs Go.
		version string
	}{
		"pinned by tag or commit": {file: "v1.2.3", version: "v1.2.3"},
		"another release":         {file: "v1.2.3", input: "v1.2.4", version: "v1.2.4"},
		"a branch":                {file: "source"},
		"compiled on request":     {file: "v1.2.3", input: "source"},
	} {
		t.Run(name, func(t *testing.T) {
			out, downloads := getMlenv(t, test.file, test.input)
			if test.version == "" {
				if !strings.Contains(out, "found no Go") || downloads != "" {
					t.Errorf("downloads %q, output\n%s\nwant Go asked for", downloads, out)
				}
				return
			}
			for _, want := range []string{"/releases/download/" + test.version + "/mlenv-", "/" + test.version + "/SHA256SUMS\n"} {
				if !strings.Contains(downloads, want) {
					t.Errorf("downloads %q, output\n%s\nwant %s", downloads, out, want)
				}
			}
		})
	}
}

// getMlenv returns what the script prints and the addresses that it downloads.
func getMlenv(t *testing.T, file, input string) (out, downloads string) {
	t.Helper()
	dir := t.TempDir()
	programs, action, temp := filepath.Join(dir, "programs"), filepath.Join(dir, "action"), filepath.Join(dir, "temp")
	for _, folder := range []string{programs, filepath.Join(action, ".github"), temp} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"bash", "cat", "chmod", "grep", "mkdir", "mv", "sha256sum", "uname"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Skip(err)
		}
		if err := os.Symlink(path, filepath.Join(programs, program)); err != nil {
			t.Fatal(err)
		}
	}
	// The last two arguments are --output's file and the address.
	curl := `#!/bin/sh
while [ $# -gt 2 ]; do shift; done
echo "$2" >> "$DOWNLOADS"
case $2 in
  */SHA256SUMS) for f in linux-amd64 linux-arm64 darwin-amd64 darwin-arm64; do
    echo "` + fmt.Sprintf("%x", sha256.Sum256([]byte("program\n"))) + `  mlenv-$f"; done > "$1" ;;
  *) echo program > "$1" ;;
esac
`
	if err := os.WriteFile(filepath.Join(programs, "curl"), []byte(curl), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(action, ".github", "mlenv-version"), []byte(file+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "bash"), "../../../.github/get-mlenv")
	list := filepath.Join(dir, "downloads")
	cmd.Env = []string{"PATH=" + programs, "RUNNER_TEMP=" + temp, "ACTION_PATH=" + action, "ACTION_REF=" + strings.Repeat("a", 40),
		"MLENV_VERSION=" + input, "DOWNLOADS=" + list}
	said, err := cmd.CombinedOutput()
	got, _ := os.ReadFile(list) // missing if nothing was downloaded
	if installed, _ := os.ReadFile(filepath.Join(temp, "mlenv-bin", "mlenv")); (err == nil) != (string(installed) == "program\n") {
		t.Errorf("%v, installed %q", err, installed)
	}
	return string(said), string(got)
}

// TestVersionOfBranches: a branch compiles the action's own checkout; only the commit of a release names a version.
func TestVersionOfBranches(t *testing.T) {
	if got := read(t, ".github/mlenv-version"); got != "source\n" && !regexp.MustCompile(`^v\d+\.\d+\.\d+\S*\n$`).MatchString(got) {
		t.Errorf(".github/mlenv-version has %q, want source or a version", got)
	}
	if strings.Contains(read(t, "action.yml"), "action_ref") {
		t.Error("action.yml decides by the name after the @; a commit has none")
	}
}
