// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// tasksPage describes once what all Tasks share; shared are their params and results on it. The page of longestPipeline describes the
// params of an environment.
const (
	tasksPage       = "docs/reference/tasks.md"
	longestPipeline = "train-multi-node"
	shared          = " run-name run-uid run-params log-format steps-image reason message "
)

// TestReadmeTables checks that the generated sections of the READMEs next to Tasks and Pipelines, and of the page of what Tasks share,
// agree with the YAML; -update writes them.
func TestReadmeTables(t *testing.T) {
	of := common{rows: map[string]string{}}
	longest := pipelines(t)[longestPipeline].Spec.Params
	for name, task := range tasks(t) {
		var results strings.Builder
		for _, result := range task.Spec.Results {
			of.row(t, &results, result.Name, result.Description)
		}
		of.platforms(t, task.Annotations)
		image := spec(task.Spec.Params, "steps-image").Default.StringVal
		described := tekton.ParamSpecs(nil)
		if name == "mlenv-preflight" || name == "mlenv-provision" { // most of their params describe an environment
			described = longest
		}
		readme(t, "tasks", name, task.Labels, image, of.paramTable(t, task.Spec.Params, described), results.String())
	}
	for name, pipeline := range pipelines(t) {
		var results strings.Builder
		for _, result := range pipeline.Spec.Results {
			of.row(t, &results, result.Name, result.Description)
		}
		of.platforms(t, pipeline.Annotations)
		described := longest
		if name == longestPipeline {
			described = nil
		}
		image := spec(pipeline.Spec.Params, "steps-image").Default.StringVal
		readme(t, "pipelines", name, pipeline.Labels, image, of.paramTable(t, pipeline.Spec.Params, described), results.String())
	}
	of.write(t)
}

// common collects what the page of what Tasks share says of all of them.
type common struct {
	rows map[string]string
	runs string
}

// row writes a row, unless the page of what Tasks share has it.
func (c *common) row(t *testing.T, rows *strings.Builder, name string, cells ...string) {
	t.Helper()
	text := fmt.Sprintf("| %s | %s |\n", name, strings.ReplaceAll(strings.Join(cells, " | "), "\n", " "))
	if !strings.Contains(shared, " "+name+" ") {
		rows.WriteString(text)
		return
	}
	if was := c.rows[name]; was != "" && was != text {
		t.Errorf("%s means two things: %q and %q", name, was, text)
	}
	c.rows[name] = text
}

// paramTable returns the table of params. It names those that the other pipeline has with the same default and meaning, and those that
// the page of what Tasks share describes.
func (c *common) paramTable(t *testing.T, specs, described tekton.ParamSpecs) string {
	t.Helper()
	var rows strings.Builder
	var there, everywhere []string
	secret := false
	for _, spec := range specs {
		name := "`" + spec.Name + "`"
		switch {
		case strings.Contains(shared, " "+spec.Name+" "):
			everywhere = append(everywhere, name)
		case slices.ContainsFunc(described, func(other tekton.ParamSpec) bool { return reflect.DeepEqual(spec, other) }):
			there = append(there, name)
			continue
		}
		c.row(t, &rows, spec.Name, defaultText(spec), spec.Description)
		secret = secret || spec.Default != nil && spec.Default.StringVal == "none" && strings.HasPrefix(spec.Description, "Secret ")
	}
	text := "| param | default | meaning |\n| --- | --- | --- |\n" + rows.String()
	if len(there) > 0 {
		text += "\nAs in [" + longestPipeline + "](../../pipelines/" + longestPipeline + "/README.md#params): " +
			strings.Join(there, ", ") + ".\n"
	}
	text += "\nAs in [every Task](../../" + tasksPage + "#params-of-every-task): " + strings.Join(everywhere, ", ") + "."
	if secret {
		text += " `none` means [no Secret](../../" + tasksPage + "#no-secret)."
	}
	return text + "\n"
}

// platforms keeps what the catalog's annotations require, which is the same for all.
func (c *common) platforms(t *testing.T, annotations map[string]string) {
	t.Helper()
	runs := fmt.Sprintf("The steps run on %s, with Tekton Pipelines %s or newer.\n",
		strings.ReplaceAll(annotations["tekton.dev/platforms"], ",", " and "), annotations["tekton.dev/pipelines.minVersion"])
	if c.runs != "" && c.runs != runs {
		t.Errorf("platforms differ: %q and %q", c.runs, runs)
	}
	c.runs = runs
}

// write writes the generated sections of the page of what Tasks share.
func (c *common) write(t *testing.T) {
	t.Helper()
	params, results := "| param | default | meaning |\n| --- | --- | --- |\n", "| result | meaning |\n| --- | --- |\n"
	for name := range strings.FieldsSeq(shared) {
		if name == "reason" || name == "message" {
			results += c.rows[name]
		} else {
			params += c.rows[name]
		}
	}
	replace(t, filepath.Join(root, tasksPage), map[string]string{"params": params, "results": results, "platforms": c.runs})
}

// readme writes the generated end of the README of a Task or Pipeline: how to refer to that of a release, at the version of the labels,
// which cmd/steps/release/pin sets in both, its params and its results.
func readme(t *testing.T, folder, name string, labels map[string]string, image, params, results string) {
	t.Helper()
	version := "v" + labels["app.kubernetes.io/version"]
	kind := strings.TrimSuffix(folder, "s")
	text := "## Install\n\n" + install(folder, name, version) + "\n## Params\n\n" + params
	if results == "" {
		results = "None of its own.\n"
	} else {
		results = "| result | meaning |\n| --- | --- |\n" + results
	}
	text += "\n## Results\n\n" + results
	if kind == "task" {
		text += "\nIf the step fails, also [`reason` and `message`](../../" + tasksPage + "#results-of-every-task).\n"
	}
	if !strings.HasPrefix(image, "registry.invalid/") { // a release
		text = absolute(text, folder+"/"+name, version)
	}
	replace(t, filepath.Join(root, folder, name, "README.md"), map[string]string{"reference": text})
}

// install returns the lines by which a TaskRun, or a Pipeline or PipelineRun of somebody else, uses a Task or Pipeline.
func install(folder, name, version string) string {
	kind := strings.TrimSuffix(folder, "s")
	title := strings.ToUpper(kind[:1]) + kind[1:]
	note := ":"
	if kind == "pipeline" {
		note = ".\nOnly the bundle contains its Tasks; otherwise they must be in the namespace:"
	}
	text := fmt.Sprintf("Use the %s of a release, because main names no steps image, in a [prepared namespace](../../%s)%s\n\n", title,
		tasksPage, note)
	text += "    kubectl apply -f https://raw.githubusercontent.com/ml-dev-env/ml-dev-env/" + version + "/" + folder + "/" + name + "/" +
		name + ".yaml\n"
	for _, resolver := range []string{
		`bundles, params: [{name: bundle, value: "ghcr.io/ml-dev-env/ml-dev-env/tasks:` + version + `"}, {name: name, value: ` + name + `}, ` +
			`{name: kind, value: ` + kind + `}]`,
		`git, params: [{name: url, value: "https://github.com/ml-dev-env/ml-dev-env"}, {name: revision, value: ` + version + `}, ` +
			`{name: pathInRepo, value: ` + folder + "/" + name + "/" + name + `.yaml}]`,
	} {
		text += "    " + kind + "Ref: {resolver: " + resolver + "}\n"
	}
	return text
}

// relative matches a link to another file of the repository.
var relative = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

// absolute returns a text as cmd/steps/release/pin writes it into the README at a folder: Artifact Hub resolves no relative link.
func absolute(text, folder, version string) string {
	return relative.ReplaceAllStringFunc(text, func(link string) string {
		to := relative.FindStringSubmatch(link)
		return "](https://github.com/ml-dev-env/ml-dev-env/blob/" + version + "/" + path.Join(folder, to[1]) + to[2] + ")"
	})
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

// replace replaces the text between the marks of the sections in a page.
func replace(t *testing.T, file string, sections map[string]string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := string(content)
	for mark, text := range sections {
		place := regexp.MustCompile(`(?s)(<!-- ` + mark + `: [^\n]*-->\n).*?(<!-- end -->)`)
		if !place.MatchString(want) {
			t.Fatalf("%s has no place for the %s", file, mark)
		}
		want = place.ReplaceAllString(want, "${1}"+strings.ReplaceAll(text, "$", "$$")+"${2}")
	}
	golden.File(t, file, want)
}
