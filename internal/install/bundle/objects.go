// Package bundle builds the steps image and the Tekton bundles of Tasks and Pipelines.
package bundle

import (
	"fmt"
	"io/fs"
	"path"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Objects reads the Tasks and then the Pipelines from tasks/NAME/NAME.yaml and pipelines/NAME/NAME.yaml, sorted by name.
func Objects(files fs.FS) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, folder := range []string{"tasks", "pipelines"} {
		entries, err := fs.ReadDir(files, folder)
		if err != nil {
			return nil, fmt.Errorf("reading the bundle: %w", err)
		}
		for _, entry := range entries {
			if !entry.IsDir() {
				continue
			}
			name := path.Join(folder, entry.Name(), entry.Name()+".yaml")
			content, err := fs.ReadFile(files, name)
			if err != nil {
				return nil, fmt.Errorf("reading the bundle: %w", err)
			}
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(content, &object.Object); err != nil {
				return nil, fmt.Errorf("reading %s of the bundle: %w", name, err)
			}
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// Default is the default of a param of a Task or Pipeline.
type Default struct {
	Param string
	Value string
}

// SetDefaults sets the defaults of the object's params. A param without a default stays required.
func SetDefaults(object *unstructured.Unstructured, defaults []Default) error {
	params, _, err := unstructured.NestedSlice(object.Object, "spec", "params")
	if err != nil {
		return fmt.Errorf("reading the params of %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	for _, item := range params {
		param, _ := item.(map[string]any)
		if _, ok := param["default"].(string); !ok {
			continue
		}
		for _, d := range defaults {
			if param["name"] == d.Param {
				param["default"] = d.Value
			}
		}
	}
	return unstructured.SetNestedSlice(object.Object, params, "spec", "params")
}
