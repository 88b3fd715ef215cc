// SPDX-License-Identifier: Apache-2.0

package install

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Resource returns the API resource of an object's kind. It is derived from the kind's name, without asking the API server.
func Resource(object *unstructured.Unstructured) schema.GroupVersionResource {
	resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	return resource
}

// installedResources returns the resources of what install creates in a namespace, in the order in which to delete it:
// what starts runs comes first, what runs need comes last.
func installedResources() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		{Group: "batch", Version: "v1", Resource: "cronjobs"},
		{Group: "tekton.dev", Version: "v1", Resource: "pipelines"},
		{Group: "tekton.dev", Version: "v1", Resource: "tasks"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
		{Version: "v1", Resource: "configmaps"},
		{Version: "v1", Resource: "serviceaccounts"},
	}
}

func clientOf(client dynamic.Interface, object *unstructured.Unstructured) dynamic.ResourceInterface {
	return inNamespace(client.Resource(Resource(object)), object.GetNamespace())
}

// inNamespace limits a client to a namespace; "" is for objects of the whole cluster.
func inNamespace(client dynamic.NamespaceableResourceInterface, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return client
	}
	return client.Namespace(namespace)
}

// ObjectName returns the name that oc prints for an object.
func ObjectName(object *unstructured.Unstructured) string {
	return strings.ToLower(object.GetKind()) + "/" + object.GetName()
}

func accesses(objects []*unstructured.Unstructured, verbs ...string) []kube.Access {
	var needed []kube.Access
	for _, o := range objects {
		needed = append(needed, kube.Access{Resource: Resource(o).GroupResource(), Namespace: o.GetNamespace(), Name: o.GetName(), Verbs: verbs})
	}
	return needed
}
