// SPDX-License-Identifier: Apache-2.0

// Package internal has no code of its own: its test keeps the packages below it in layers.
package internal

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/ml-dev-env/ml-dev-env/internal/"

// layers lists the folders from the top to the bottom. A package may import packages of its own layer and of lower ones.
var layers = [][]string{
	{"cli"},
	{"steps"},
	{"install", "doctor"},
	{"pipeline"},
	{"diagnose"},
	{"env"},
	{"run", "fabric", "clusterfile"},
	{"agent", "cause"},
	{"kube", "cluster"},
	{"rdma", "source", "metrics", "chart", "cronjob", "notify"},
	{"command", "secretdir"},
	{"fail", "humanize", "lines", "version", "claimfile", "parallel", "rules", "known", "project"},
}

// stepImports are the only imports between steps.
var stepImports = map[string]string{
	"steps/train -> steps/checkfabric":    "train measures the network again before an attempt with new pods",
	"steps/provision -> steps/preflight":  "provision asks preflight for the mode if no other task has",
	"steps/preflight -> steps/buildimage": "preflight asks the registry as build-image does",
	"steps/reaper -> steps/teardown":      "both release an environment in the same way",
	"steps -> steps/*":                    "one program holds all steps",
}

// TestStepsProgram fails if the steps' program links the whole command line. The command line embeds the Tasks, which name
// the image of the program by its digest, so no release could be built.
func TestStepsProgram(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../cmd/steps").Output()
	if err != nil {
		t.Fatalf("listing packages: %v", err)
	}
	for name := range strings.Lines(string(out)) {
		if strings.TrimSpace(name) == module+"cli" {
			t.Errorf("cmd/steps links %s", module+"cli")
		}
	}
}

// bindings matches the files that may import cobra: the commands for users, the files that steps share, and one file of
// each step.
var bindings = regexp.MustCompile(`^(cli/.*|command/[^/]*|notify/[^/]*|steps/steps|steps/[^/]*/command)\.go$`)

// TestCobra fails if a file below the commands imports cobra.
func TestCobra(t *testing.T) {
	files := token.NewFileSet()
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || bindings.MatchString(name) {
			return err
		}
		file, err := parser.ParseFile(files, name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imported := range file.Imports {
			if imported.Path.Value == strconv.Quote("github.com/spf13/cobra") {
				t.Errorf("%s imports cobra: bind flags to Options in internal/cli, or in the command.go of a step", name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// startsGit matches a program that is called git.
var startsGit = regexp.MustCompile(`(Command|CommandContext|LookPath|StartProcess)\([^"\n]*"git(-lfs)?"`)

// TestOnePlaceRunsGit fails if a package other than source/git runs git: that one does not run what a repository names.
func TestOnePlaceRunsGit(t *testing.T) {
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || path.Dir(name) == "source/git" {
			return err
		}
		content, err := os.ReadFile(name)
		if startsGit.Match(content) {
			t.Errorf("%s runs git: use the functions of package source/git", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// judges matches what decides how a run ended: the results of a step, the first failure of several, or a verdict that is set.
var judges = regexp.MustCompile(`\.(Results|Earlier)\["(reason|message)"\]|[fF]irstFailed\(|` +
	`\.Verdict(, [\w., ]+)? = (receipt\.)?(Succeeded|Failed)\b`)

// TestOneVerdict fails if a package other than pipeline/receipt, or run, which reads Tekton's objects for it, decides how a run
// ended: all others call Journal.Verdict.
func TestOneVerdict(t *testing.T) {
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, _ fs.DirEntry, err error) error {
		folder := path.Dir(name)
		judge := folder == "pipeline/receipt" || folder == "run"
		if err != nil || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || judge {
			return err
		}
		content, err := os.ReadFile(name)
		if found := judges.Find(content); found != nil {
			t.Errorf("%s judges a run (%s): call Verdict of package pipeline/receipt", name, found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// layerOf returns the layer of a package, -1 for none.
func layerOf(name string) int {
	folder, _, _ := strings.Cut(name, "/")
	return slices.IndexFunc(layers, func(folders []string) bool { return slices.Contains(folders, folder) })
}

// withoutKubernetes matches the packages that work on a machine without a cluster, too.
var withoutKubernetes = regexp.MustCompile(`^(agent|env/nodes|env/jobs|env/local)(/|$)`)

// TestLayers fails if a package imports one of a higher layer, a step another step, or one that works without Kubernetes its packages.
func TestLayers(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatalf("listing packages: %v", err)
	}
	used := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		from, found := strings.CutPrefix(fields[0], module)
		if !found {
			continue // this package
		}
		if layerOf(from) < 0 {
			t.Errorf("package %s is in no layer; add its folder to layers", from)
		}
		for _, imported := range fields[1:] {
			to, found := strings.CutPrefix(imported, module)
			if kubernetes := strings.HasPrefix(imported, "k8s.io/") || to == "kube"; kubernetes && withoutKubernetes.MatchString(from) {
				t.Errorf("%s imports %s", from, imported)
			}
			if !found {
				continue
			}
			edge := from + " -> " + to
			if layerOf(to) < layerOf(from) {
				t.Errorf("%s is an import upwards", edge)
			}
			if from == "steps" {
				edge = "steps -> steps/*"
			}
			if strings.HasPrefix(to, "steps/") && (from == "steps" || strings.HasPrefix(from, "steps/")) {
				if used[edge] = true; stepImports[edge] == "" {
					t.Errorf("%s: a step imports another one", edge)
				}
			}
		}
	}
	for edge := range stepImports {
		if !used[edge] {
			t.Errorf("%s is in the list of allowed imports, and does not exist", edge)
		}
	}
}
