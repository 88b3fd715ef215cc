package install

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// fieldManager is not the steps': what they apply is theirs.
const fieldManager = "ml-dev-env-install"

// Outcome is what applying an object changed.
type Outcome string

// The outcomes.
const (
	Created   Outcome = "created"
	Changed   Outcome = "changed"
	Unchanged Outcome = "unchanged"
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

// Apply makes the cluster have the object, by server-side apply. With dryRun the
// API server only checks it.
//
// Errors: PermissionDenied, or InvalidInput where the namespace or what brings the kind,
// as Tekton, is missing.
func Apply(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured, dryRun bool) (Outcome, error) {
	where, err := Resource(object)
	if err != nil {
		return "", err
	}
	var objects dynamic.ResourceInterface = client.Resource(where)
	if namespace := object.GetNamespace(); namespace != "" {
		objects = client.Resource(where).Namespace(namespace)
	}
	before, err := objects.Get(ctx, object.GetName(), metav1.GetOptions{})
	isNew := apierrors.IsNotFound(err)
	if err != nil && !isNew {
		return "", problem(object, err)
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	after, err := objects.Apply(ctx, object.GetName(), object, options)
	switch {
	case err != nil:
		return "", problem(object, err)
	case isNew:
		return Created, nil
	case before.GetResourceVersion() == after.GetResourceVersion():
		return Unchanged, nil
	}
	return Changed, nil
}

// problem gives the API server's error its reason.
func problem(object *unstructured.Unstructured, err error) error {
	kind := object.GroupVersionKind()
	wrapped := fmt.Errorf("applying %s %s: %w", kind.Kind, object.GetName(), err)
	if next := bringer(kind.Group); next != "" && missingResource(err) {
		return fail.Advise(fail.Because(fail.InvalidInput, wrapped), "the cluster has no %s: %s", kind.GroupVersion(), next)
	}
	return kube.Problem(wrapped)
}

// bringer is what a cluster without an API group lacks; "" for groups that all have.
func bringer(group string) string {
	switch group {
	case "tekton.dev":
		return "install Tekton (on OpenShift the operator Red Hat OpenShift Pipelines)"
	case "k8s.cni.cncf.io":
		return "install Multus (on OpenShift, the SR-IOV Network Operator makes the attachments)"
	case "security.openshift.io", "machineconfiguration.openshift.io":
		return "only OpenShift has it"
	}
	return ""
}

// missingResource is true where the API server does not know the kind at all; an
// object or a namespace that is missing has details.
func missingResource(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && apierrors.IsNotFound(err) && (status.Status().Details == nil || status.Status().Details.Name == "")
}
