// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

func TestObjects(t *testing.T) {
	objects, err := bundle.Objects(mldevenv.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, object := range objects {
		got = append(got, object.GetKind()+"/"+object.GetName())
	}
	want := []string{"Task/mlenv-build-image", "Task/mlenv-check-fabric", "Task/mlenv-preflight", "Task/mlenv-provision",
		"Task/mlenv-sync-repo",
		"Task/mlenv-teardown",
		"Task/mlenv-train", "Pipeline/dev-environment", "Pipeline/train-multi-node"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func TestSetDefaults(t *testing.T) {
	params := func(items ...any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"params": items}}}
	}
	param := func(name, value string) any { return map[string]any{"name": name, "default": value} }
	tests := []struct {
		name         string
		object, want *unstructured.Unstructured
	}{
		{"replaced", params(param("cluster", "local")), params(param("cluster", "cairo"))},
		{"another param", params(param("nodes", "1")), params(param("nodes", "1"))},
		{"without default", params(map[string]any{"name": "cluster"}), params(map[string]any{"name": "cluster"})},
		{"an array", params(map[string]any{"name": "cluster", "default": []any{}}),
			params(map[string]any{"name": "cluster", "default": []any{}})},
	}
	defaults := map[string]string{"cluster": "cairo"}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := bundle.SetDefaults(test.object, defaults); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, test.object); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
