// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestBundleObjects: what cmd/steps/release/bundle-objects prints names the image, and in Pipelines the bundle of the Tasks.
func TestBundleObjects(t *testing.T) {
	image := "registry.example/steps@sha256:" + strings.Repeat("0", 64)
	from := "registry.example/tasks@sha256:" + strings.Repeat("1", 64)
	output := func(args ...string) ([]byte, error) {
		return exec.Command(root+"/cmd/steps/release/bundle-objects", args...).Output()
	}
	if out, err := output("registry.example/steps:v1"); err == nil {
		t.Errorf("an image by tag: want it refused, got %s", out)
	}
	out, err := output(image, from)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, content := range bytes.Split(out, []byte("---\n"))[1:] {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal(content, &object); err != nil {
			t.Fatal(err)
		}
		found[object.Kind]++
		if object.Kind == "Task" {
			task := &tekton.Task{}
			decode(t, object.Name, content, task)
			tektonAccepts(t, task.DeepCopy())
			if got := spec(task.Spec.Params, "steps-image").Default.StringVal; got != image {
				t.Errorf("task %s runs in %s, want %s", task.Name, got, image)
			}
			continue
		}
		pipeline := &tekton.Pipeline{}
		decode(t, object.Name, content, pipeline)
		tektonAccepts(t, pipeline.DeepCopy())
		if got := spec(pipeline.Spec.Params, "steps-image").Default.StringVal; got != image {
			t.Errorf("pipeline %s runs in %s, want %s", pipeline.Name, got, image)
		}
		for _, call := range append(pipeline.Spec.Tasks, pipeline.Spec.Finally...) {
			want := map[string]string{"bundle": from, "name": "mlenv-" + call.Name, "kind": "task"}
			params := map[string]string{}
			for _, param := range call.TaskRef.Params {
				params[param.Name] = param.Value.StringVal
			}
			if diff := cmp.Diff(want, params); diff != "" || call.TaskRef.Resolver != "bundles" || call.TaskRef.Name != "" {
				t.Errorf("%s: task %s comes from %+v (-want +got):\n%s", pipeline.Name, call.Name, call.TaskRef, diff)
			}
		}
	}
	if diff := cmp.Diff(map[string]int{"Task": len(tasks(t)), "Pipeline": len(pipelines(t))}, found); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}
