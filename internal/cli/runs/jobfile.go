// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// resumeKey is the only key of a job file that is not a param: it has the meaning of the flag.
const resumeKey = "resume-from"

// word is a value of a job file. A number or a boolean is as good as text.
type word struct{ text *string }

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *word) UnmarshalText(text []byte) error {
	w.text = new(string(text))
	return nil
}

// jobFields returns the types of the keys, which are the names of the params.
func (p *params) jobFields() reflect.Type {
	fieldOf := func(name string, value any) reflect.StructField {
		return reflect.StructField{Name: "Key" + strings.ReplaceAll(name, "-", "_"), Type: reflect.TypeOf(value),
			Tag: reflect.StructTag(`json:"` + name + `"`)}
	}
	fields := []reflect.StructField{fieldOf(resumeKey, word{})}
	for _, spec := range p.pipeline.Spec.Params {
		switch {
		case isMapping(spec):
			fields = append(fields, fieldOf(spec.Name, map[string]word{}))
		case spec.Type == v1.ParamTypeArray:
			fields = append(fields, fieldOf(spec.Name, []word{}))
		default:
			fields = append(fields, fieldOf(spec.Name, word{}))
		}
	}
	return reflect.StructOf(fields)
}

// isMapping reports whether the items of an array are KEY=VALUE, which a job file has as keys and values.
func isMapping(spec v1.ParamSpec) bool {
	return spec.Type == v1.ParamTypeArray && strings.Contains(spec.Description, "KEY=VALUE")
}

// readJob returns the params in a job file, and the run that it resumes. A folder in repo-url is relative to the file. The
// error lists every mistake with its line.
func (p *params) readJob(path string) (values map[string][]string, resumeFrom string, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("--file: %w", err)
	}
	job := reflect.New(p.jobFields())
	values = map[string][]string{}
	err = cluster.Decode(path, content, job.Interface(), "repo-url and script", func() field.ErrorList {
		for i := range job.Elem().NumField() {
			name := job.Elem().Type().Field(i).Tag.Get("json")
			if given := textsOf(job.Elem().Field(i).Interface()); given != nil {
				values[name] = given
			}
		}
		expandHome(values)
		return p.checkJob(values)
	})
	if err != nil {
		return nil, "", err
	}
	if isFolder(values) && !filepath.IsAbs(values["repo-url"][0]) {
		folder, err := filepath.Abs(filepath.Join(filepath.Dir(path), values["repo-url"][0]))
		if err != nil {
			return nil, "", err
		}
		values["repo-url"] = []string{folder}
	}
	if resume := values[resumeKey]; resume != nil {
		resumeFrom = resume[0]
		delete(values, resumeKey)
	}
	return values, resumeFrom, nil
}

// textsOf returns the values of a key as params have them, nil if the file does not have the key.
func textsOf(value any) (texts []string) {
	add := func(prefix string, w word) {
		if w.text != nil { // null is the same as leaving the item out
			texts = append(texts, prefix+*w.text)
		}
	}
	switch value := value.(type) {
	case word:
		add("", value)
	case []word:
		if value != nil {
			texts = []string{}
		}
		for _, w := range value {
			add("", w)
		}
	case map[string]word:
		if value != nil {
			texts = []string{}
		}
		for key, w := range value {
			add(key+"=", w)
		}
		slices.Sort(texts)
	}
	return texts
}

// checkJob returns the mistakes that need no cluster, with their places.
func (p *params) checkJob(values map[string][]string) (mistakes field.ErrorList) {
	for _, spec := range p.pipeline.Spec.Params {
		for i, text := range values[spec.Name] {
			err := launch.CheckParams(spec, text)
			if err == nil || spec.Name == "repo-url" && isFolder(values) {
				continue
			}
			path, shown := field.NewPath(spec.Name), text
			if key, value, _ := strings.Cut(text, "="); isMapping(spec) {
				path, shown = path.Key(key), value
			} else if spec.Type == v1.ParamTypeArray {
				path = path.Index(i)
			}
			if spec.Name == "repo-url" {
				shown = "" // it may have a password
			}
			mistakes = append(mistakes, field.Invalid(path, shown, strings.TrimPrefix(err.Error(), strconv.Quote(text)+": ")))
		}
	}
	return mistakes
}
