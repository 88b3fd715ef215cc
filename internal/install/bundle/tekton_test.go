// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

const someImage = "registry.example/steps@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// tektonObjects returns the objects of a bundle of this repository's Tasks and Pipelines.
func tektonObjects(t *testing.T, tasks *name.Digest) []*unstructured.Unstructured {
	t.Helper()
	objects, err := bundle.Objects(mldevenv.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	image, err := name.NewDigest(someImage)
	if err != nil {
		t.Fatal(err)
	}
	all, err := bundle.Tekton(objects, image, tasks)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTekton(t *testing.T) {
	tasks, err := name.NewDigest("registry.example/team/tasks@sha256:" + strings.Repeat("1", 64))
	if err != nil {
		t.Fatal(err)
	}
	names := func(objects []*unstructured.Unstructured) (all []string) {
		for _, object := range objects {
			all = append(all, object.GetKind()+" "+object.GetName())
		}
		return all
	}
	want := []string{"Task build-image", "Task check-fabric", "Task preflight", "Task provision", "Task sync-repo", "Task teardown",
		"Task train"}
	if diff := cmp.Diff(want, names(tektonObjects(t, nil))); diff != "" {
		t.Errorf("the bundle of the Tasks (-want +got):\n%s", diff)
	}
	objects := tektonObjects(t, &tasks)
	if diff := cmp.Diff(append(want, "Pipeline dev-environment", "Pipeline train-multi-node"), names(objects)); diff != "" {
		t.Errorf("the bundle of everything (-want +got):\n%s", diff)
	}
	for _, object := range objects {
		content, err := yaml.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		if object.GetKind() == "Task" {
			task := &tekton.Task{}
			decode(t, object.GetName(), content, task)
			if image := spec(task.Spec.Params, "steps-image").Default.StringVal; image != someImage {
				t.Errorf("%s runs in %s, want %s", object.GetName(), image, someImage)
			}
			continue
		}
		pipeline := &tekton.Pipeline{}
		decode(t, object.GetName(), content, pipeline)
		tektonAccepts(t, pipeline.DeepCopy())
		for _, call := range append(pipeline.Spec.Tasks, pipeline.Spec.Finally...) {
			want := map[string]string{"bundle": tasks.Name(), "name": call.Name, "kind": "task"}
			params := map[string]string{}
			for _, param := range call.TaskRef.Params {
				params[param.Name] = param.Value.StringVal
			}
			if diff := cmp.Diff(want, params); diff != "" || call.TaskRef.Resolver != "bundles" || call.TaskRef.Name != "" {
				t.Errorf("%s: task %s comes from %+v (-want +got):\n%s", object.GetName(), call.Name, call.TaskRef, diff)
			}
		}
	}
}

func TestTektonRefuses(t *testing.T) {
	object := func(text string) *unstructured.Unstructured {
		made := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &made.Object); err != nil {
			t.Fatal(err)
		}
		return made
	}
	task := func(name, image string) *unstructured.Unstructured {
		return object(fmt.Sprintf("{apiVersion: tekton.dev/v1, kind: Task, metadata: {name: %s}, spec: {steps: [{image: %s}]}}", name, image))
	}
	image, err := name.NewDigest(someImage)
	if err != nil {
		t.Fatal(err)
	}
	tasks := image.Context().Digest(image.DigestStr())
	var many []*unstructured.Unstructured
	for i := range 21 {
		many = append(many, task(fmt.Sprint("task-", i), someImage))
	}
	tests := []struct {
		name    string
		objects []*unstructured.Unstructured
		want    string // part of the error, "" for no error
	}{
		{"by digest", many[:1], ""},
		{"as many as Tekton reads", many[:20], ""},
		{"more than Tekton reads", many, "21 objects"},
		{"an image by tag", []*unstructured.Unstructured{task("say", "registry.example/steps:v1")},
			`adding task say to a Tekton bundle: image "registry.example/steps:v1": want it by digest`},
		{"an unknown key",
			[]*unstructured.Unstructured{object("{apiVersion: tekton.dev/v1, kind: Task, metadata: {name: say}, spec: {stps: []}}")},
			`unknown field "stps"`},
		{"another kind", []*unstructured.Unstructured{object("{apiVersion: v1, kind: Pod, metadata: {name: say}}")}, "want a Task or a Pipeline"},
		{"an older version", []*unstructured.Unstructured{object("{apiVersion: tekton.dev/v1beta1, kind: Task, metadata: {name: say}}")},
			"want a Task or a Pipeline"},
		{"a pipeline without an image",
			[]*unstructured.Unstructured{object("{apiVersion: tekton.dev/v1, kind: Pipeline, metadata: {name: say}, spec: {}}")}, `image ""`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := bundle.Tekton(test.objects, image, &tasks)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
