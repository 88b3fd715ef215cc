package install

import (
	"fmt"

	"github.com/rogpeppe/go-internal/diff"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// difference is the unified diff of two states of an object without the API server's own fields, or "".
func difference(before, after *unstructured.Unstructured) (string, error) {
	old, err := readable(before)
	if err != nil {
		return "", err
	}
	now, err := readable(after)
	if err != nil {
		return "", err
	}
	return string(diff.Diff("live "+Title(before), old, "installed "+Title(after), now)), nil
}

// readable is an object's YAML without the fields that change by themselves.
func readable(object *unstructured.Unstructured) ([]byte, error) {
	object = object.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(object.Object, "status")
	text, err := yaml.Marshal(object.Object)
	if err != nil {
		return nil, fmt.Errorf("printing %s: %w", Title(object), err)
	}
	return text, nil
}
