// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// TestReadmeTables checks that the generated sections of the READMEs next to Tasks and Pipelines agree with the YAML; -update writes
// them.
func TestReadmeTables(t *testing.T) {
	for name, task := range tasks(t) {
		var results strings.Builder
		for _, result := range task.Spec.Results {
			row(&results, result.Name, result.Description)
		}
		page := filepath.Join(root, "tasks", name, "README.md")
		readme(t, page, map[string]string{"install": install("tasks", name, task.Labels),
			"params": paramTable(task.Spec.Params), "results": resultTable(results.String()), "platforms": platforms(task.Annotations)})
	}
	for name, pipeline := range pipelines(t) {
		var results strings.Builder
		for _, result := range pipeline.Spec.Results {
			row(&results, result.Name, result.Description)
		}
		page := filepath.Join(root, "pipelines", name, "README.md")
		readme(t, page, map[string]string{"install": install("pipelines", name, pipeline.Labels),
			"params": paramTable(pipeline.Spec.Params), "results": resultTable(results.String()),
			"platforms": platforms(pipeline.Annotations)})
	}
}

// install returns the lines by which a TaskRun, or a Pipeline or PipelineRun of somebody else, uses a Task or Pipeline by a resolver of
// Tekton. The lines name the version of the labels, which make pin sets in both.
func install(folder, name string, labels map[string]string) string {
	kind := strings.TrimSuffix(folder, "s")
	version := "v" + labels["app.kubernetes.io/version"]
	who, note := "A TaskRun, or a Pipeline of your own,", ""
	if kind == "pipeline" {
		who, note = "A PipelineRun", " The git resolver reads the Pipeline alone, which then finds its Tasks by name in the namespace; "+
			"those of the bundle are in a bundle too."
	}
	text := fmt.Sprintf("%s uses the %s of a release by one of these lines. The namespace needs [the account, its rights and the "+
		"cluster file]"+
		"(../../docs/operate/install.md), and the run sets `serviceAccountName: mlenv-pipeline` and, where it exists, the param `cluster`.%s\n\n",
		who, strings.ToUpper(kind[:1])+kind[1:], note)
	for _, resolver := range []string{
		`bundles, params: [{name: bundle, value: "ghcr.io/ml-dev-env/ml-dev-env/tasks:` + version + `"}, {name: name, value: ` + name + `}, ` +
			`{name: kind, value: ` + kind + `}]`,
		`git, params: [{name: url, value: "https://github.com/ml-dev-env/ml-dev-env"}, {name: revision, value: ` + version + `}, ` +
			`{name: pathInRepo, value: ` + folder + "/" + name + "/" + name + `.yaml}]`,
	} {
		text += "    " + kind + "Ref: {resolver: " + resolver + "}\n"
	}
	return text + "\n"
}

// noSecret is the reason for a value that stands for nothing.
const noSecret = "\n`none` stands for no Secret. The Task mounts the Secret that such a param names, and a volume needs a name. An " +
	"optional workspace would need none, but `tkn` asks for every workspace at each start, and fails without a terminal.\n"

func paramTable(specs tekton.ParamSpecs) string {
	var rows strings.Builder
	note := ""
	for _, spec := range specs {
		row(&rows, spec.Name, defaultText(spec), spec.Description)
		if spec.Default != nil && spec.Default.StringVal == "none" {
			note = noSecret
		}
	}
	return "| param | default | meaning |\n| --- | --- | --- |\n" + rows.String() + note
}

func resultTable(rows string) string { return "| result | meaning |\n| --- | --- |\n" + rows }

// platforms returns what the catalog's annotations require.
func platforms(annotations map[string]string) string {
	return fmt.Sprintf("The steps run on %s, with Tekton Pipelines %s or newer.\n",
		strings.ReplaceAll(annotations["tekton.dev/platforms"], ",", " and "), annotations["tekton.dev/pipelines.minVersion"])
}

// defaultText returns a README's text for the value of a param that nobody sets.
func defaultText(spec tekton.ParamSpec) string {
	switch {
	case spec.Default == nil:
		return "required"
	case spec.Type == tekton.ParamTypeArray && len(spec.Default.ArrayVal) == 0:
		return "no items"
	case spec.Type == tekton.ParamTypeArray:
		return "`" + strings.Join(spec.Default.ArrayVal, ",") + "`"
	case spec.Name == "steps-image":
		return "by `mlenv install`"
	case spec.Default.StringVal == "":
		return "empty"
	}
	return "`" + spec.Default.StringVal + "`"
}

func row(rows *strings.Builder, name string, cells ...string) {
	fmt.Fprintf(rows, "| %s | %s |\n", name, strings.ReplaceAll(strings.Join(cells, " | "), "\n", " "))
}

// readme replaces the text between the marks of the sections in a README.
func readme(t *testing.T, path string, sections map[string]string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := string(content)
	for mark, table := range sections {
		place := regexp.MustCompile(`(?s)(<!-- ` + mark + `: [^\n]*-->\n).*?(<!-- end -->)`)
		if !place.MatchString(want) {
			t.Fatalf("%s has no place for the %s", path, mark)
		}
		want = place.ReplaceAllString(want, "${1}"+strings.ReplaceAll(table, "$", "$$")+"${2}")
	}
	golden.File(t, path, want)
}
