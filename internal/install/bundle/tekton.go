// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// mostObjects is the limit of Tekton's resolver (tektoncd/pipeline:pkg/resolution/resolver/bundle).
const mostObjects = 20

// stepsImageParam is the param of each Task and Pipeline that names the image.
const stepsImageParam = "steps-image"

// Tekton returns what tkn bundle push makes a bundle of. With tasks, the bundle of the Tasks by digest, these are the Tasks and the
// Pipelines, which find their Tasks in that bundle, so every run gets the same ones; without, the Tasks alone. The steps run in the
// image. Tekton changes the objects, and refuses what Tekton would refuse when it reads the bundle, and images by tag.
func Tekton(
	objects []*unstructured.Unstructured, stepsImage name.Digest, tasks *name.Digest,
) (all []*unstructured.Unstructured, err error) {
	for _, object := range objects {
		isTask := object.GetKind() == "Task"
		if !isTask && tasks == nil {
			continue
		}
		if err := SetDefaults(object, map[string]string{stepsImageParam: stepsImage.Name()}); err != nil {
			return nil, err
		}
		if !isTask {
			if err := tasksFrom(object, *tasks); err != nil {
				return nil, err
			}
		}
		if err := checkObject(object); err != nil {
			return nil, fmt.Errorf("adding %s %s to a Tekton bundle: %w", strings.ToLower(object.GetKind()), object.GetName(), err)
		}
		all = append(all, object)
	}
	if len(all) > mostObjects {
		return nil, fmt.Errorf("building a Tekton bundle: %d objects: Tekton reads at most %d of a bundle", len(all), mostObjects)
	}
	return all, nil
}

// checkObject refuses objects that Tekton would refuse when they run, and images by tag.
func checkObject(object *unstructured.Unstructured) error {
	content, err := yaml.Marshal(object.Object)
	if err != nil {
		return err
	}
	var params tekton.ParamSpecs
	var images []string
	switch kind := object.GroupVersionKind(); {
	case kind == tekton.SchemeGroupVersion.WithKind("Task"):
		task := &tekton.Task{}
		if err := yaml.UnmarshalStrict(content, task); err != nil {
			return err
		}
		params = task.Spec.Params
		for _, step := range task.Spec.Steps {
			images = append(images, step.Image)
		}
		for _, sidecar := range task.Spec.Sidecars {
			images = append(images, sidecar.Image)
		}
	case kind == tekton.SchemeGroupVersion.WithKind("Pipeline"):
		pipeline := &tekton.Pipeline{}
		if err := yaml.UnmarshalStrict(content, pipeline); err != nil {
			return err
		}
		params = pipeline.Spec.Params
		images = append(images, "$(params."+stepsImageParam+")")
	default:
		return fmt.Errorf("it is a %s, want a Task or a Pipeline of %s", kind, tekton.SchemeGroupVersion)
	}
	var mistakes []error
	for _, image := range images {
		if image == "$(params."+stepsImageParam+")" {
			image = defaultOf(params, stepsImageParam)
		}
		if _, err := name.NewDigest(image); err != nil {
			mistakes = append(mistakes, fmt.Errorf("image %q: want it by digest, NAME@sha256:DIGEST", image))
		}
	}
	return errors.Join(mistakes...)
}

func defaultOf(params tekton.ParamSpecs, name string) string {
	for _, param := range params {
		if param.Name == name && param.Default != nil {
			return param.Default.StringVal
		}
	}
	return ""
}

func tasksFrom(pipeline *unstructured.Unstructured, bundle name.Digest) error {
	for _, field := range []string{"tasks", "finally"} {
		calls, found, err := unstructured.NestedSlice(pipeline.Object, "spec", field)
		if err != nil {
			return fmt.Errorf("reading the %s of pipeline %s: %w", field, pipeline.GetName(), err)
		}
		if !found {
			continue
		}
		for _, item := range calls {
			call, _ := item.(map[string]any)
			task, found, _ := unstructured.NestedString(call, "taskRef", "name")
			if !found {
				return fmt.Errorf("reading the %s of pipeline %s: task %v has no taskRef.name", field, pipeline.GetName(), call["name"])
			}
			param := func(name, value string) any { return map[string]any{"name": name, "value": value} }
			call["taskRef"] = map[string]any{
				"resolver": "bundles",
				"params":   []any{param("bundle", bundle.Name()), param("name", task), param("kind", "task")},
			}
		}
		if err := unstructured.SetNestedSlice(pipeline.Object, calls, "spec", field); err != nil {
			return err
		}
	}
	return nil
}
