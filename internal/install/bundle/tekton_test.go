package bundle_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

const someImage = "registry.example/steps@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func tektonRelease(t *testing.T, at name.Tag) bundle.TektonRelease {
	t.Helper()
	objects, err := bundle.Objects(mldevenv.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	image, err := name.NewDigest(someImage)
	if err != nil {
		t.Fatal(err)
	}
	release, err := bundle.Source{Version: "v1.2.3"}.NewTektonRelease(objects, at, image)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func TestTektonRelease(t *testing.T) {
	at := registryTag(t, "team/tasks:v1")
	release := tektonRelease(t, at)
	pushed, err := release.Push(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	digest, err := name.NewDigest(pushed)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(digest)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := remote.Head(at.Context().Tag("v1-tasks"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, object := range layersOf(t, image) {
		got = append(got, object.annotated)
		switch object.kind {
		case "task":
			task := &tekton.Task{}
			decode(t, object.annotated, object.content, task)
			if image := spec(task.Spec.Params, "steps-image").Default.StringVal; image != someImage {
				t.Errorf("%s runs in %s, want %s", object.annotated, image, someImage)
			}
		case "pipeline":
			pipeline := &tekton.Pipeline{}
			decode(t, object.annotated, object.content, pipeline)
			tektonAccepts(t, pipeline.DeepCopy())
			for _, call := range append(pipeline.Spec.Tasks, pipeline.Spec.Finally...) {
				want := map[string]string{"bundle": at.Context().Digest(inner.Digest.String()).Name(), "name": call.Name, "kind": "task"}
				params := map[string]string{}
				for _, param := range call.TaskRef.Params {
					params[param.Name] = param.Value.StringVal
				}
				if diff := cmp.Diff(want, params); diff != "" || call.TaskRef.Resolver != "bundles" || call.TaskRef.Name != "" {
					t.Errorf("%s: task %s comes from %+v (-want +got):\n%s", object.annotated, call.Name, call.TaskRef, diff)
				}
			}
		}
	}
	want := []string{
		"task build-image v1", "task check-fabric v1", "task preflight v1", "task provision v1", "task sync-repo v1", "task teardown v1", "task train v1",
		"pipeline dev-environment v1", "pipeline train-multi-node v1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	again, err := tektonRelease(t, at).All.Digest()
	if err != nil || again.String() != digest.DigestStr() {
		t.Errorf("a second time it is %s, %v: want %s", again, err, digest.DigestStr())
	}
}

// layered is an object in a bundle.
type layered struct {
	kind, annotated string
	content         []byte
}

// layersOf reads a bundle as Tekton's resolver does.
func layersOf(t *testing.T, image v1.Image) (all []layered) {
	t.Helper()
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, descriptor := range manifest.Layers {
		kind := descriptor.Annotations["dev.tekton.image.kind"]
		object := layered{kind: kind, annotated: kind + " " + descriptor.Annotations["dev.tekton.image.name"] + " " + descriptor.Annotations["dev.tekton.image.apiVersion"]}
		layer, err := image.LayerByDigest(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		files, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		archive := tar.NewReader(files)
		if _, err := archive.Next(); err != nil {
			t.Fatal(err)
		}
		if object.content, err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: reading a second file: %v; want only one", object.annotated, err)
		}
		if err := files.Close(); err != nil {
			t.Error(err)
		}
		all = append(all, object)
	}
	return all
}

func TestTektonBundleRefuses(t *testing.T) {
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
		{"an image by tag", []*unstructured.Unstructured{task("say", "registry.example/steps:v1")}, `adding task say to a Tekton bundle: image "registry.example/steps:v1": want it by digest`},
		{"an unknown key", []*unstructured.Unstructured{object("{apiVersion: tekton.dev/v1, kind: Task, metadata: {name: say}, spec: {stps: []}}")}, `unknown field "stps"`},
		{"another kind", []*unstructured.Unstructured{object("{apiVersion: v1, kind: Pod, metadata: {name: say}}")}, "want a Task or a Pipeline"},
		{"an older version", []*unstructured.Unstructured{object("{apiVersion: tekton.dev/v1beta1, kind: Task, metadata: {name: say}}")}, "want a Task or a Pipeline"},
		{"a pipeline without an image", []*unstructured.Unstructured{object("{apiVersion: tekton.dev/v1, kind: Pipeline, metadata: {name: say}, spec: {}}")}, `image ""`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := bundle.Source{}.TektonBundle(test.objects)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
