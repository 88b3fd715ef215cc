package install

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	Deleted   Outcome = "deleted"
)

// Change is what was done to an object, or in a dry run would be.
type Change struct {
	Object  string  `json:"object"`
	Outcome Outcome `json:"outcome"`
	// Diff is the change of the object's YAML, in the unified format: that of a Changed object only.
	Diff string `json:"diff,omitempty"`
}

// Apply makes the cluster have the object, by server-side apply. With dryRun the
// API server only checks it, and says what would change.
//
// Errors: PermissionDenied, or InvalidInput where the namespace or what brings the kind,
// as Tekton, is missing.
func Apply(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured, dryRun bool) (Change, error) {
	change := Change{Object: Title(object)}
	where, err := Resource(object)
	if err != nil {
		return change, err
	}
	objects := objectsOf(client, where, object.GetNamespace())
	before, err := objects.Get(ctx, object.GetName(), metav1.GetOptions{})
	isNew := apierrors.IsNotFound(err)
	if err != nil && !isNew {
		return change, problem(object, fmt.Errorf("reading %s: %w", Title(object), err))
	}
	after, err := kube.ApplyTo(ctx, objects, object, kube.ApplyOptions{Manager: fieldManager, DryRun: dryRun})
	if err != nil {
		return change, problem(object, err)
	}
	if isNew {
		change.Outcome = Created
		return change, nil
	}
	if change.Diff, err = difference(before, after); err != nil {
		return change, err
	}
	change.Outcome = Changed
	if change.Diff == "" {
		change.Outcome = Unchanged
	}
	return change, nil
}

// TryAll has the API server check all objects and change nothing, admission and the
// rule that nobody gives rights that they lack included.
//
// Errors: those of Apply, all of them at once.
func TryAll(ctx context.Context, client dynamic.Interface, objects []*unstructured.Unstructured) ([]Change, error) {
	var changes []Change
	var problems []error
	for _, object := range objects {
		change, err := Apply(ctx, client, object, true)
		switch {
		case err != nil && bindsOneOf(object, objects) && apierrors.IsNotFound(err):
			// Whoever may not bind at will is asked whether they have the rights of the role, which
			// is not there yet: the same is asked of them for the role itself.
			change.Outcome = Created
		case err != nil:
			problems = append(problems, err)
			continue
		}
		changes = append(changes, change)
	}
	if len(problems) > 0 {
		return nil, fail.Advise(fail.Because(fail.ReasonOf(problems[0]), fmt.Errorf("nothing was changed: %w", errors.Join(problems...))), "%s", fail.NextOf(problems[0]))
	}
	return changes, nil
}

// bindsOneOf is true for the binding of a role that is among the objects.
func bindsOneOf(binding *unstructured.Unstructured, objects []*unstructured.Unstructured) bool {
	kind, _, _ := unstructured.NestedString(binding.Object, "roleRef", "kind")
	name, _, _ := unstructured.NestedString(binding.Object, "roleRef", "name")
	for _, object := range objects {
		if kind != "" && object.GetKind() == kind && object.GetName() == name {
			return true
		}
	}
	return false
}

// problem gives the API server's error its reason.
func problem(object *unstructured.Unstructured, err error) error {
	kind := object.GroupVersionKind()
	if next := bringer(kind.Group); next != "" && missingResource(err) {
		return fail.Advise(fail.Because(fail.InvalidInput, err), "the cluster has no %s: %s", kind.GroupVersion(), next)
	}
	return kube.Problem(err)
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
	var status apierrors.APIStatus
	return errors.As(err, &status) && apierrors.IsNotFound(err) && (status.Status().Details == nil || status.Status().Details.Name == "")
}
