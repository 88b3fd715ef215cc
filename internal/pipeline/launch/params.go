package launch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// Params are the values as Tekton wants them, each of its param's type, in the order
// of the pipeline. Values of params that the pipeline does not have, params that
// need a value and have none, and several values of a param that takes one are all
// told at once, as InvalidInput.
func Params(pipeline *v1.Pipeline, values map[string][]string) (v1.Params, error) {
	var problems []error
	var params v1.Params
	known := map[string]bool{}
	for _, spec := range pipeline.Spec.Params {
		known[spec.Name] = true
		texts, given := values[spec.Name]
		switch {
		case !given && spec.Default == nil:
			problems = append(problems, fmt.Errorf("param %s is missing: want %s", spec.Name, description(spec)))
		case !given:
		case spec.Type == v1.ParamTypeArray:
			// Not nil, which would be sent as null.
			params = append(params, v1.Param{Name: spec.Name, Value: v1.ParamValue{Type: v1.ParamTypeArray, ArrayVal: append([]string{}, texts...)}})
		case len(texts) != 1:
			problems = append(problems, fmt.Errorf("param %s has %s: want one", spec.Name, humanize.Count(len(texts), "value")))
		default:
			params = append(params, v1.Param{Name: spec.Name, Value: v1.ParamValue{Type: v1.ParamTypeString, StringVal: texts[0]}})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !known[name] {
			problems = append(problems, fmt.Errorf("param %s is none of pipeline %s%s", name, pipeline.Name, nearest(name, known)))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fail.Advise(fail.Because(fail.InvalidInput, err), "tkn pipeline describe %s -n %s (shows all params)", pipeline.Name, pipeline.Namespace)
	}
	return params, nil
}

func description(spec v1.ParamSpec) string {
	line, _, _ := strings.Cut(strings.TrimSpace(spec.Description), "\n")
	return cmp.Or(line, "a value")
}

// nearest offers what may have been meant.
func nearest(name string, known map[string]bool) string {
	const far = 3 // letters
	best, distance := "", far
	for _, candidate := range slices.Sorted(maps.Keys(known)) {
		if d := humanize.Distance(name, candidate); d < distance {
			best, distance = candidate, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// Values are a run's own params, as a Request has them.
func Values(found *v1.PipelineRun) map[string][]string {
	values := map[string][]string{}
	for _, param := range found.Spec.Params {
		values[param.Name] = texts(param.Value)
	}
	return values
}

func texts(value v1.ParamValue) []string {
	if value.Type == v1.ParamTypeArray {
		return value.ArrayVal
	}
	return []string{value.StringVal}
}

// Value is what a run has for a param that is a string: its own, else the pipeline's default.
func Value(pipeline *v1.Pipeline, values map[string][]string, name string) string {
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

// needs are the deadlines that the steps have of their own. A pipeline without one of
// these params needs no time for it.
func needs(pipeline *v1.Pipeline, values map[string][]string) (run.Needs, error) {
	needs := run.Needs{Teardown: run.TeardownTime}
	var problems []error
	for _, of := range []struct {
		param string
		into  *time.Duration
	}{{"build-timeout", &needs.Build}, {"start-timeout", &needs.Start}, {"timeout", &needs.Training}} {
		text := Value(pipeline, values, of.param)
		if text == "" {
			continue
		}
		duration, err := time.ParseDuration(text)
		if err != nil || duration <= 0 {
			problems = append(problems, fmt.Errorf("param %s is %q: want a time, as in 40m or 24h", of.param, text))
		}
		*of.into = duration
	}
	if err := errors.Join(problems...); err != nil {
		return needs, fail.Because(fail.InvalidInput, err)
	}
	return needs, nil
}

// differences names what two runs were asked for differently, "" for nothing. What the API
// server fills in, as timeouts, is not looked at.
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
