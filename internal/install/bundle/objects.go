// Package bundle makes what a cluster is given of ml-dev-env: the Tasks, the
// Pipelines and the image of their steps.
package bundle

import (
	"fmt"
	"io/fs"
	"path"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Objects reads the Tasks and then the Pipelines from tasks/NAME/NAME.yaml and
// pipelines/NAME/NAME.yaml, sorted by name.
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

// Default is what a param of a Task or Pipeline is given where nobody says anything.
type Default struct {
	Param string
	Value string
	// Replaces limits it to params whose default is this one now, and keeps that
	// where there is no value; empty is any.
	Replaces string
}

// SetDefaults puts the defaults into the params that the object has. A param
// without a default stays without: it is for people to give.
func SetDefaults(object *unstructured.Unstructured, defaults []Default) error {
	params, _, err := unstructured.NestedSlice(object.Object, "spec", "params")
	if err != nil {
		return fmt.Errorf("reading the params of %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	for _, item := range params {
		param, ok := item.(map[string]any)
		if !ok {
			return fmt.Errorf("reading the params of %s %s: %v: want name and default", object.GetKind(), object.GetName(), item)
		}
		now, ok := param["default"].(string)
		if !ok {
			continue
		}
		for _, d := range defaults {
			if param["name"] == d.Param && (d.Replaces == "" || d.Replaces == now && d.Value != "") {
				param["default"] = d.Value
			}
		}
	}
	return unstructured.SetNestedSlice(object.Object, params, "spec", "params")
}
