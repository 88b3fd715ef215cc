// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// TestParamsAreCurrent checks that the params of Tasks and Pipelines, and what Pipelines pass on, are those of the table of params;
// -update writes them.
func TestParamsAreCurrent(t *testing.T) {
	for _, kind := range []string{"tasks", "pipelines"} {
		for name, content := range files(t, kind) {
			golden.File(t, filepath.Join(root, kind, name, name+".yaml"), withParams(stepOf(name), string(content)))
		}
	}
}

var (
	// keyOfSpec and taskOfPipeline match the lines behind which params are declared and passed.
	keyOfSpec      = regexp.MustCompile(`^  [a-z]+:`)
	taskOfPipeline = regexp.MustCompile(`^  - name: ([a-z-]+)$`)
	stepsImage     = regexp.MustCompile(`(?m)^  - name: steps-image\n.*\n    default: (.*)$`)
)

// withParams replaces the params in the file of a Task or Pipeline. The image of the steps stays: a release has its own.
func withParams(name, text string) string {
	image := stepsImage.FindStringSubmatch(text)[1]
	var result []string
	task, skipping := "", func(string) bool { return false }
	for line := range strings.SplitSeq(text, "\n") {
		if skipping(line) {
			continue
		}
		skipping = func(string) bool { return false }
		result = append(result, line)
		if found := taskOfPipeline.FindStringSubmatch(line); found != nil {
			task = found[1]
		}
		switch line {
		case "  params:":
			result = append(result, declared(name, image)...)
			skipping = func(line string) bool { return !keyOfSpec.MatchString(line) }
		case "    params:":
			result = append(result, passed(name, task)...)
			skipping = func(line string) bool { return strings.HasPrefix(line, "    - ") || strings.HasPrefix(line, "      ") }
		}
	}
	return strings.Join(result, "\n")
}

func declared(name, image string) (lines []string) {
	for _, p := range param.TakenBy(name) {
		lines = append(lines, "  - name: "+p.Name, "    description: "+scalar(p.Description()))
		switch {
		case p.Is&param.Items != 0:
			lines = append(lines, "    type: array", "    default: []")
		case p.Name == "steps-image":
			lines = append(lines, "    default: "+image)
		case p.Is&param.Required == 0:
			lines = append(lines, "    default: "+scalar(p.Default))
		}
	}
	return lines
}

func passed(pipeline, task string) (lines []string) {
	for _, p := range param.TakenBy(task) {
		value, ok := param.Passed(pipeline, task, p)
		switch {
		case !ok:
		case p.Is&param.Items != 0:
			lines = append(lines, "    - name: "+p.Name, fmt.Sprintf("      value: [%q]", strings.Replace(value, ")", "[*])", 1)))
		default:
			lines = append(lines, fmt.Sprintf("    - {name: %s, value: %s}", p.Name, scalar(value)))
		}
	}
	return lines
}

// scalar quotes a text that would be something else in YAML.
func scalar(text string) string {
	var value any
	inFlow := strings.Contains(text, ",") && !strings.Contains(text, " ")
	if err := yaml.Unmarshal([]byte(text), &value); err != nil || value != any(text) || inFlow {
		return strconv.Quote(text)
	}
	return text
}
