package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// The limits and annotations of Tekton's resolver (tektoncd/pipeline:pkg/resolution/resolver/bundle).
const (
	mostObjects          = 20
	nameAnnotation       = "dev.tekton.image.name"
	kindAnnotation       = "dev.tekton.image.kind"
	apiVersionAnnotation = "dev.tekton.image.apiVersion"
)

// stepsImageParam is the param of each Task and Pipeline that names the image.
const stepsImageParam = "steps-image"

// TektonRelease are the two bundles of a release: the Pipelines of one find their Tasks in the other, by digest, so that
// every run gets the same Tasks.
type TektonRelease struct {
	// Tasks has the Tasks alone, for the tag TasksName.
	Tasks     v1.Image
	TasksName name.Tag
	// All has the Tasks and the Pipelines, which find their Tasks in the first.
	All     v1.Image
	AllName name.Tag
}

// NewTektonRelease builds the bundles of the objects for the tag at. It changes the objects: their steps run in the image,
// and the Pipelines refer to bundles.
func (s Source) NewTektonRelease(objects []*unstructured.Unstructured, at name.Tag, stepsImage name.Digest) (TektonRelease, error) {
	release := TektonRelease{AllName: at, TasksName: at.Context().Tag(at.TagStr() + "-tasks")}
	var tasks, pipelines []*unstructured.Unstructured
	for _, object := range objects {
		if err := SetDefaults(object, map[string]string{stepsImageParam: stepsImage.Name()}); err != nil {
			return TektonRelease{}, err
		}
		if object.GetKind() == "Task" {
			tasks = append(tasks, object)
		} else {
			pipelines = append(pipelines, object)
		}
	}
	var err error
	if release.Tasks, err = s.TektonBundle(tasks); err != nil {
		return TektonRelease{}, err
	}
	digest, err := release.Tasks.Digest()
	if err != nil {
		return TektonRelease{}, err
	}
	for _, pipeline := range pipelines {
		if err := tasksFrom(pipeline, at.Context().Digest(digest.String())); err != nil {
			return TektonRelease{}, err
		}
	}
	release.All, err = s.TektonBundle(append(tasks, pipelines...))
	return release, err
}

// Push pushes both bundles and returns the reference by digest of the one with everything.
func (r TektonRelease) Push(ctx context.Context) (string, error) {
	if _, err := Push(ctx, r.TasksName, r.Tasks); err != nil {
		return "", err
	}
	return Push(ctx, r.AllName, r.All)
}

// Layout writes both bundles as an OCI layout into the folder dir.
func (r TektonRelease) Layout(dir string) error {
	return WriteLayout(dir, Artefact{r.Tasks, r.TasksName.TagStr()}, Artefact{r.All, r.AllName.TagStr()})
}

// TektonBundle builds a bundle for Tekton's resolver: an annotated layer for each object, a tar archive of one JSON file
// (tektoncd/pipeline:docs/tekton-bundle-contracts.md). It names every image by digest, and is reproducible.
func (s Source) TektonBundle(objects []*unstructured.Unstructured) (v1.Image, error) {
	if len(objects) > mostObjects {
		return nil, fmt.Errorf("building a Tekton bundle: %d objects: Tekton reads at most %d of a bundle", len(objects), mostObjects)
	}
	labels := s.labels("ml-dev-env Tasks and Pipelines")
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Config(image, v1.Config{Labels: labels})
	if err != nil {
		return nil, fmt.Errorf("building a Tekton bundle: %w", err)
	}
	for _, object := range objects {
		if image, err = addObject(image, object); err != nil {
			return nil, fmt.Errorf("adding %s %s to a Tekton bundle: %w", strings.ToLower(object.GetKind()), object.GetName(), err)
		}
	}
	return mutate.Annotations(image, labels).(v1.Image), nil
}

func addObject(image v1.Image, object *unstructured.Unstructured) (v1.Image, error) {
	if err := checkObject(object); err != nil {
		return nil, err
	}
	content, err := json.Marshal(object.Object)
	if err != nil {
		return nil, err
	}
	layer, err := newLayer([]entry{file(object.GetName(), content, 0o600)})
	if err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, Annotations: map[string]string{
		nameAnnotation: object.GetName(),
		// The version without the group, as tkn writes it.
		apiVersionAnnotation: object.GroupVersionKind().Version,
		kindAnnotation:       strings.ToLower(object.GetKind()),
	}})
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
