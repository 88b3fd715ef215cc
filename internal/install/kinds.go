package install

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Resource is where the API server keeps objects of a kind. The table is fixed,
// so that nothing is asked of the API server to find out.
func Resource(object *unstructured.Unstructured) (schema.GroupVersionResource, error) {
	kind := object.GroupVersionKind()
	var name string
	switch kind.Kind {
	case "ConfigMap":
		name = "configmaps"
	case "ServiceAccount":
		name = "serviceaccounts"
	case "Role":
		name = "roles"
	case "RoleBinding":
		name = "rolebindings"
	case "ClusterRole":
		name = "clusterroles"
	case "ClusterRoleBinding":
		name = "clusterrolebindings"
	case "Task":
		name = "tasks"
	case "Pipeline":
		name = "pipelines"
	case "CronJob":
		name = "cronjobs"
	case "SecurityContextConstraints":
		name = "securitycontextconstraints"
	case "NetworkAttachmentDefinition":
		name = "network-attachment-definitions"
	case "MachineConfig":
		name = "machineconfigs"
	default:
		return schema.GroupVersionResource{}, fmt.Errorf("applying %s %s: it is not of a kind that is installed", kind, object.GetName())
	}
	return kind.GroupVersion().WithResource(name), nil
}

// places are where a namespace's installed objects may be, in the order in which to
// take them away: what starts runs first, what runs need last.
func places() []schema.GroupVersionResource {
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

// objectsOf is the client for objects of a resource; namespace is "" for those of the cluster.
func objectsOf(client dynamic.Interface, where schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return client.Resource(where)
	}
	return client.Resource(where).Namespace(namespace)
}

// Live is the object as the cluster has it, nil where it has none.
func Live(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	where, err := Resource(object)
	if err != nil {
		return nil, err
	}
	live, err := objectsOf(client, where, object.GetNamespace()).Get(ctx, object.GetName(), metav1.GetOptions{})
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
