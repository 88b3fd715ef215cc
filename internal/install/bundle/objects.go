// SPDX-License-Identifier: Apache-2.0

// Package bundle reads the Tasks and Pipelines, and sets their defaults.
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
			object := &unstructured.Unstructured{}
			if err := Read(files, folder, entry.Name(), &object.Object); err != nil {
				return nil, err
			}
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// Read reads one Task or Pipeline, from FOLDER/NAME/NAME.yaml.
func Read(files fs.FS, folder, name string, object any) error {
	name = path.Join(folder, name, name+".yaml")
	content, err := fs.ReadFile(files, name)
	if err != nil {
		return fmt.Errorf("reading the bundle: %w", err)
	}
	if err := yaml.Unmarshal(content, object); err != nil {
		return fmt.Errorf("reading %s of the bundle: %w", name, err)
	}
	return nil
}

// SetDefaults sets the defaults of a Task's or Pipeline's params, by name. A param without a default stays required.
func SetDefaults(object *unstructured.Unstructured, defaults map[string]string) error {
	params, _, err := unstructured.NestedSlice(object.Object, "spec", "params")
	if err != nil {
		return fmt.Errorf("reading the params of %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	for _, item := range params {
		param, _ := item.(map[string]any)
		name, _ := param["name"].(string)
		value, set := defaults[name]
		if _, optional := param["default"].(string); set && optional {
			param["default"] = value
		}
	}
	return unstructured.SetNestedSlice(object.Object, params, "spec", "params")
}
