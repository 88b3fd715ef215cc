// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/rules"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Params returns the values as Tekton takes them, in the order of the pipeline. InvalidInput lists every mistake.
func Params(pipeline *v1.Pipeline, values map[string][]string) (v1.Params, error) {
	if err := errors.Join(mistakes(pipeline, values)...); err != nil {
		return nil, fail.Advise(fail.Because(fail.InvalidInput, err), "oc describe pipeline %s -n %s (shows all params)", pipeline.Name,
			pipeline.Namespace)
	}
	var params v1.Params
	for _, spec := range pipeline.Spec.Params {
		texts, given := values[spec.Name]
		switch {
		case !given:
		case spec.Type == v1.ParamTypeArray:
			// Not nil, which would become null.
			params = append(params, v1.Param{Name: spec.Name, Value: v1.ParamValue{Type: v1.ParamTypeArray, ArrayVal: append([]string{}, texts...)}})
		default:
			params = append(params, v1.Param{Name: spec.Name, Value: v1.ParamValue{Type: v1.ParamTypeString, StringVal: texts[0]}})
		}
	}
	return params, nil
}

// ParseValues reads values that a command line has as NAME=VALUE, with a flag --param for each.
func ParseValues(params []string) (map[string][]string, error) {
	values := map[string][]string{}
	var problems []error
	for _, given := range params {
		name, value, ok := strings.Cut(given, "=")
		if !ok || name == "" {
			problems = append(problems, fmt.Errorf("--param %q: want NAME=VALUE", given))
			continue
		}
		values[name] = append(values[name], value)
	}
	return values, errors.Join(problems...)
}

// wholeArray matches a reference to all items of an array param.
var wholeArray = regexp.MustCompile(`\$\(params[^()]*\[\*\]\)`)

// isolated refuses a value that Tekton refuses when it creates the pod of train, with GPUs held.
func isolated(text string) error {
	if found := wholeArray.FindString(text); found != "" && found != text {
		return fmt.Errorf("value %q: want no other text next to %s, which Tekton refuses", text, found)
	}
	return nil
}

// mistakes are: an unknown param, a param without a value, several values of a param that takes one, a value of another
// type.
func mistakes(pipeline *v1.Pipeline, values map[string][]string) (problems []error) {
	names := map[string]bool{}
	for _, spec := range pipeline.Spec.Params {
		names[spec.Name] = true
		texts, given := values[spec.Name]
		for _, text := range texts {
			if err := errors.Join(CheckParams(spec, text), isolated(text)); err != nil {
				problems = append(problems, fmt.Errorf("param %s: %w", spec.Name, err))
			}
		}
		switch {
		case !given && spec.Default == nil:
			problems = append(problems, fmt.Errorf("param %s is missing: want %s", spec.Name, description(spec)))
		case given && spec.Type != v1.ParamTypeArray && len(texts) != 1:
			problems = append(problems, fmt.Errorf("param %s has %s: want one", spec.Name, humanize.Count(len(texts), "value")))
		}
	}
	problems = append(problems, ruleConflicts(pipeline, values)...)
	if ParamValue(pipeline, values, "launcher") == string(agent.Command) &&
		ParamValue(pipeline, values, "require-rendezvous") == string(param.Fail) {
		problems = append(problems, errors.New("param require-rendezvous: fail: the programs of launcher command are not checked: want warn"))
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !names[name] {
			problems = append(problems, fmt.Errorf("pipeline %s has no param %s%s", pipeline.Name, name, hint(name, names)))
		}
	}
	return problems
}

// ruleConflicts returns the mistakes that the rules of a training have together.
func ruleConflicts(pipeline *v1.Pipeline, values map[string][]string) (problems []error) {
	restarts, err := strconv.Atoi(ParamValue(pipeline, values, "max-restarts"))
	if err != nil {
		return nil // mistakes reports it
	}
	for _, err := range rules.Conflicts(rules.Valid(values["stop-if"]), rules.Valid(values["restart-if"]), restarts) {
		problems = append(problems, fmt.Errorf("params: %w", err))
	}
	return problems
}

// CheckParams returns the mistake in a value of a param, or in an item of an array. The default is valid, such as none for a
// Secret, and so is every value of a param that only the installed pipeline has.
func CheckParams(spec v1.ParamSpec, value string) error {
	if spec.Type != v1.ParamTypeArray && spec.Default != nil && value == spec.Default.StringVal {
		return nil
	}
	return param.KindOf(spec.Name).Check(value)
}

// Mistakes returns the mistakes in the params of a run, however it was started.
func Mistakes(found *v1.PipelineRun) []error { return mistakes(pipelineOf(found), Values(found)) }

// ValueOf returns a run's value of a string param, or else its pipeline's default.
func ValueOf(found *v1.PipelineRun, name string) string {
	return ParamValue(pipelineOf(found), Values(found), name)
}

// NeedsOf returns the deadlines of a run's steps.
func NeedsOf(found *v1.PipelineRun) run.Needs { return stepDeadlines(pipelineOf(found), Values(found)) }

// pipelineOf returns the pipeline as Tekton resolved it for a run, without params before that.
func pipelineOf(found *v1.PipelineRun) *v1.Pipeline {
	pipeline := &v1.Pipeline{}
	if found.Spec.PipelineRef != nil {
		pipeline.Name = found.Spec.PipelineRef.Name
	}
	if found.Status.PipelineSpec != nil {
		pipeline.Spec = *found.Status.PipelineSpec
	}
	return pipeline
}

func description(spec v1.ParamSpec) string {
	line, _, _ := strings.Cut(strings.TrimSpace(spec.Description), "\n")
	return cmp.Or(line, "a value")
}

func hint(name string, names map[string]bool) string {
	if near := humanize.Nearest(name, slices.Sorted(maps.Keys(names))); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

// Values returns a run's own params as a Request has them.
func Values(found *v1.PipelineRun) map[string][]string {
	values := map[string][]string{}
	for _, given := range found.Spec.Params {
		values[given.Name] = []string{given.Value.StringVal}
		if given.Value.Type == v1.ParamTypeArray {
			values[given.Name] = given.Value.ArrayVal
		}
	}
	return values
}

// ParamValue returns a run's value of a string param, or else the pipeline's default.
func ParamValue(pipeline *v1.Pipeline, values map[string][]string, name string) string {
	if given := values[name]; len(given) == 1 {
		return given[0]
	}
	for _, spec := range pipeline.Spec.Params {
		if spec.Name == name && spec.Default != nil {
			return spec.Default.StringVal
		}
	}
	return ""
}

// stepDeadlines returns the deadlines of the steps. A pipeline without one of these params needs no time for it.
func stepDeadlines(pipeline *v1.Pipeline, values map[string][]string) run.Needs {
	duration := func(name string) time.Duration {
		d, _ := time.ParseDuration(ParamValue(pipeline, values, name)) // Params checks the values
		return d
	}
	return run.Needs{Build: duration("build-timeout"), Start: duration("start-timeout"), Training: duration("timeout"),
		Grace: duration("stop-grace"), Teardown: run.TeardownTime}
}

// differences lists in what two requests differ, "" for nothing. It ignores what the API server fills in, such as
// timeouts.
func differences(wanted, found *v1.PipelineRun) string {
	var different []string
	if found.Spec.PipelineRef == nil || found.Spec.PipelineRef.Name != wanted.Spec.PipelineRef.Name {
		different = append(different, "pipeline")
	}
	if found.Spec.TaskRunTemplate.ServiceAccountName != wanted.Spec.TaskRunTemplate.ServiceAccountName {
		different = append(different, "service account")
	}
	had, wants := Values(found), Values(wanted)
	names := maps.Clone(had)
	maps.Copy(names, wants)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !reflect.DeepEqual(had[name], wants[name]) {
			different = append(different, "param "+name)
		}
	}
	return strings.Join(different, ", ")
}
