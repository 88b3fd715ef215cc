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

// TestReadmeTables checks that the tables of the READMEs next to Tasks and Pipelines agree with the YAML; -update writes
// them.
func TestReadmeTables(t *testing.T) {
	for name, task := range tasks(t) {
		var results strings.Builder
		for _, result := range task.Spec.Results {
			row(&results, result.Name, result.Description)
		}
		page := filepath.Join(root, "tasks", name, "README.md")
		readme(t, page, alone("tasks", name, task.Labels), paramRows(task.Spec.Params), results.String())
	}
	for name, pipeline := range pipelines(t) {
		var results strings.Builder
		for _, result := range pipeline.Spec.Results {
			row(&results, result.Name, result.Description)
		}
		page := filepath.Join(root, "pipelines", name, "README.md")
		readme(t, page, alone("pipelines", name, pipeline.Labels), paramRows(pipeline.Spec.Params), results.String())
	}
}

// alone returns the lines by which a TaskRun, or a Pipeline or PipelineRun of somebody else, uses a Task or Pipeline by a resolver of
// Tekton. The lines name the version of the labels, which make pin sets in both.
func alone(folder, name string, labels map[string]string) string {
	kind := strings.TrimSuffix(folder, "s")
	version := "v" + labels["app.kubernetes.io/version"]
	who, note := "A TaskRun, or a Pipeline of your own,", ""
	if kind == "pipeline" {
		who, note = "A PipelineRun", " The git resolver reads the Pipeline alone, which then finds its Tasks by name in the namespace; "+
			"those of the bundle are in a bundle too."
	}
	text := fmt.Sprintf("%s uses the %s of a release by one of these lines. The namespace needs [the account, its rights and the "+
		"cluster file]"+
		"(../../docs/installing.md), and the run sets `serviceAccountName: mlenv-pipeline` and, where it exists, the param `cluster`.%s\n\n",
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

func paramRows(specs tekton.ParamSpecs) string {
	var rows strings.Builder
	for _, spec := range specs {
		row(&rows, spec.Name, defaultText(spec), spec.Description)
	}
	return rows.String()
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

// readme replaces the text between the marks in a README.
func readme(t *testing.T, path, alone, params, results string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := string(content)
	for mark, table := range map[string]string{
		"alone":   alone,
		"params":  "| param | default | meaning |\n| --- | --- | --- |\n" + params,
		"results": "| result | meaning |\n| --- | --- |\n" + results,
	} {
		place := regexp.MustCompile(`(?s)(<!-- ` + mark + `: [^\n]*-->\n).*?(<!-- end -->)`)
		if !place.MatchString(want) {
			t.Fatalf("%s has no place for the %s", path, mark)
		}
		want = place.ReplaceAllString(want, "${1}"+strings.ReplaceAll(table, "$", "$$")+"${2}")
	}
	golden.File(t, path, want)
}
