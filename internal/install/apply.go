// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// fieldManager differs from the steps' field manager, which owns what the steps apply.
const fieldManager = "ml-dev-env-install"

// Outcome is what applying an object changed.
type Outcome string

// The outcomes.
const (
	Created   Outcome = "created"
	Changed   Outcome = "changed"
	Unchanged Outcome = "unchanged"
	Deleted   Outcome = "deleted"
	// Cancelled is the outcome of a run.
	Cancelled Outcome = "cancelled"
)

// Change is the change of one object, or what it would be in a dry run.
type Change struct {
	Object  string  `json:"object"`
	Outcome Outcome `json:"outcome"`
	// Diff is the change of a Changed object's YAML, in the unified format.
	Diff string `json:"diff,omitempty"`
}

// isForeign reports whether a live object, of the name of one that belongs to mlenv, belongs to someone else: to apply it would change it,
// and to uninstall would delete it. A Task that was applied by hand has only its annotation. An administrator may have made the account, to
// give it pull secrets, and a build or an administrator the ConfigMap of certificates or of the cluster file.
func isForeign(object, live *unstructured.Unstructured) bool {
	switch {
	case object.GetLabels()[PartLabel] == "", object.GetKind() == "ServiceAccount", object.GetName() == cluster.TrustedCA,
		isClusterFile(object):
		return false
	}
	return live.GetLabels()[PartLabel] == "" && live.GetAnnotations()["artifacthub.io/provider"] != "ml-dev-env"
}

// Apply applies an object by server-side apply. With dryRun the API server only checks it and reports what would change. Errors:
// PermissionDenied; InvalidInput if the namespace, or what provides the kind, such as Tekton, is missing, or for an object of that name
// that mlenv did not create.
func Apply(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured, dryRun bool) (Change, error) {
	change := Change{Object: ObjectName(object)}
	objects := clientOf(client, object)
	before, err := objects.Get(ctx, object.GetName(), metav1.GetOptions{})
	isNew := apierrors.IsNotFound(err)
	if err != nil && !isNew {
		return change, problem(object, fmt.Errorf("reading %s: %w", ObjectName(object), err))
	}
	if !isNew && isForeign(object, before) {
		where := ""
		if namespace := object.GetNamespace(); namespace != "" {
			where = " -n " + namespace
		}
		return change, fail.Advise(fail.Becausef(fail.InvalidInput, "applying %s: it exists, and mlenv did not create it: want the name free",
			change.Object), "oc get %s%s -o yaml (whose is it? rename or delete it)", change.Object, where)
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

// ApplyAll applies the objects and reports each to done: CronJobs last, once the accounts among the objects have their pull
// secrets, because their pods may start at once. It ends when every account has them, so that a run can start, and calls say
// if it waits for that. An error names what was applied before it.
func ApplyAll(ctx context.Context, c *kube.Clients, objects []*unstructured.Unstructured, say func(string), done func(Change)) error {
	var applied []string
	apply := func(jobs bool) error {
		for _, object := range objects {
			if (object.GetKind() == "CronJob") != jobs {
				continue
			}
			change, err := Apply(ctx, c.Objects, object, false)
			switch {
			case err != nil && len(applied) > 0:
				return fail.Advise(fail.Because(fail.ReasonOf(err), fmt.Errorf("%w; applied before it: %s", err, strings.Join(applied, ", "))),
					"fix that, then run the same command again: applied objects stay as they are")
			case err != nil:
				return err
			}
			applied = append(applied, change.Object)
			done(change)
		}
		return nil
	}
	if err := apply(false); err != nil {
		return err
	}
	for _, object := range objects {
		if object.GetKind() != "ServiceAccount" {
			continue
		}
		// A user who may not read the account has what was applied.
		if _, err := c.AccountWithPullSecrets(ctx, object.GetNamespace(), object.GetName(), say); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return apply(true)
}

// tryAll lets the API server check all objects without changing anything, including admission and RBAC's rule
// that a user cannot grant rights that they lack. Its error joins all errors of Apply.
func tryAll(ctx context.Context, client dynamic.Interface, objects []*unstructured.Unstructured) ([]Change, error) {
	var changes []Change
	var problems []error
	for _, object := range objects {
		change, err := Apply(ctx, client, object, true)
		switch {
		case err != nil && bindsOneOf(object, objects) && apierrors.IsNotFound(err):
			// The API server compares the rights of a user who may not bind freely with the role's, and the role
			// does not exist yet. It makes the same comparison for the role itself.
			change.Outcome = Created
		case err != nil:
			problems = append(problems, err)
			continue
		}
		changes = append(changes, change)
	}
	if len(problems) > 0 {
		return nil, fail.Because(fail.ReasonOf(problems[0]), fmt.Errorf("nothing was changed: %w", errors.Join(problems...)))
	}
	return changes, nil
}

func bindsOneOf(binding *unstructured.Unstructured, objects []*unstructured.Unstructured) bool {
	kind, _, _ := unstructured.NestedString(binding.Object, "roleRef", "kind")
	name, _, _ := unstructured.NestedString(binding.Object, "roleRef", "name")
	return kind != "" && contains(objects, kind, name)
}

func contains(objects []*unstructured.Unstructured, kind, name string) bool {
	return slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
}

func problem(object *unstructured.Unstructured, err error) error {
	if kind := object.GroupVersionKind(); kind.Group == "tekton.dev" && kube.UnknownKind(err) {
		return fail.Advise(fail.Because(fail.InvalidInput, err),
			"the cluster has no %s: install Tekton (on OpenShift the operator Red Hat OpenShift Pipelines)", kind.GroupVersion())
	}
	return kube.Problem(err)
}

// difference returns the unified diff of two states of an object without the API server's own fields, or "".
func difference(before, after *unstructured.Unstructured) (string, error) {
	old, err := readable(before)
	if err != nil {
		return "", err
	}
	now, err := readable(after)
	if err != nil {
		return "", err
	}
	return string(diff.Diff("live "+ObjectName(before), old, "installed "+ObjectName(after), now)), nil
}

// readable returns an object's YAML without the fields that change by themselves.
func readable(object *unstructured.Unstructured) ([]byte, error) {
	object = object.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(object.Object, "status")
	text, err := yaml.Marshal(object.Object)
	if err != nil {
		return nil, fmt.Errorf("printing %s: %w", ObjectName(object), err)
	}
	return text, nil
}
