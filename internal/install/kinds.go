package install

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Resource is the API resource of an object's kind. It is derived from the kind's name, without asking the API server.
func Resource(object *unstructured.Unstructured) schema.GroupVersionResource {
	kind := object.GroupVersionKind()
	switch kind.Kind {
	case "SecurityContextConstraints":
		return kind.GroupVersion().WithResource("securitycontextconstraints")
	case "NetworkAttachmentDefinition":
		return kind.GroupVersion().WithResource("network-attachment-definitions")
	}
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	return resource
}

// installedResources are the resources of what install creates in a namespace, in the order in which to delete it:
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

// Live is the object as the cluster has it, or nil if it does not exist.
func Live(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	live, err := clientOf(client, object).Get(ctx, object.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, kube.Problem(fmt.Errorf("reading %s: %w", Title(object), err))
	}
	return live, nil
}

// Title is an object as oc names it.
func Title(object *unstructured.Unstructured) string {
	return strings.ToLower(object.GetKind()) + "/" + object.GetName()
}

func accesses(objects []*unstructured.Unstructured, verbs ...string) []kube.Access {
	var needed []kube.Access
	for _, o := range objects {
		needed = append(needed, kube.Access{Resource: Resource(o).GroupResource(), Namespace: o.GetNamespace(), Name: o.GetName(), Verbs: verbs})
	}
	return needed
}

// Accesses are all rights that applying the objects needs. Server-side apply of a missing object also needs create.
func Accesses(objects []*unstructured.Unstructured) []kube.Access {
	return accesses(objects, "get", "create", "patch")
}
