package install

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Clients talk to the cluster.
type Clients struct {
	Kube    kubernetes.Interface
	Objects dynamic.Interface
}

// Report is what an install did, or in a dry run would do.
type Report struct {
	Namespace string   `json:"namespace"`
	DryRun    bool     `json:"dryRun,omitempty"`
	Changes   []Change `json:"changes"`
	// Notes are what was left alone, and why.
	Notes []string `json:"notes,omitempty"`
}

// Install makes the namespace have the objects, and deletes those that an earlier
// install made and that are not among them. Before anything is changed it asks for all
// rights, and has the API server check every object; a dry run ends there.
//
// Errors: PermissionDenied with all that is refused; InvalidInput where the namespace or
// Tekton is missing. Where an object fails after all checks the report has what was done.
func Install(ctx context.Context, c Clients, namespace string, objects []*unstructured.Unstructured, dryRun bool) (Report, error) {
	report := Report{Namespace: namespace, DryRun: dryRun, Changes: []Change{}}
	needed, err := accesses(objects)
	if err != nil {
		return report, err
	}
	leftovers, unread := marked(ctx, c.Objects, namespace, PartLabel+"="+NamespacePart)
	report.Notes = append(report.Notes, unread...)
	leftovers = slices.DeleteFunc(leftovers, func(one found) bool { return contains(objects, one.object) || isClusterFile(one.object) })
	if err := checkRights(ctx, c.Kube, append(needed, deletions(leftovers)...)); err != nil {
		return report, err
	}
	tried, err := TryAll(ctx, c.Objects, objects)
	if err != nil {
		return report, err
	}
	if dryRun {
		report.Changes = tried
		for _, one := range leftovers {
			report.Changes = append(report.Changes, Change{Object: Title(one.object), Outcome: Deleted})
		}
		return report, nil
	}
	for _, object := range objects {
		change, err := Apply(ctx, c.Objects, object, false)
		if err != nil {
			return report, halfway(err, len(report.Changes), len(objects))
		}
		report.Changes = append(report.Changes, change)
	}
	deleted, err := deleteAll(ctx, c.Objects, leftovers)
	report.Changes = append(report.Changes, deleted...)
	return report, err
}

func checkRights(ctx context.Context, client kubernetes.Interface, needed []kube.Access) error {
	if err := kube.CheckAccess(ctx, client, "installing", needed); err != nil {
		return fail.Advise(err, "have it installed by somebody who administrates the namespace (oc adm policy add-role-to-user admin USER -n NAMESPACE); what --admin adds wants a cluster administrator, who can be given the output of --output=yaml")
	}
	return nil
}

// halfway says how far it went when an object fails after all checks.
func halfway(err error, done, all int) error {
	return fail.Advise(fail.Because(fail.ReasonOf(err), fmt.Errorf("%w; %d of %d objects were applied before it", err, done, all)),
		"the same command again, once that is mended: what is applied stays as it is")
}

// accesses are all that applying the objects needs. Server-side apply of what does not
// exist asks for create as well.
func accesses(objects []*unstructured.Unstructured) ([]kube.Access, error) {
	var needed []kube.Access
	for _, object := range objects {
		where, err := Resource(object)
		if err != nil {
			return nil, err
		}
		needed = append(needed, kube.Access{
			Resource: where.GroupResource(), Namespace: object.GetNamespace(), Name: object.GetName(), Verbs: []string{"get", "create", "patch"},
		})
	}
	return needed, nil
}

// found is an object that is in the cluster.
type found struct {
	where  schema.GroupVersionResource
	object *unstructured.Unstructured
}

// deletions are what deleting them needs.
func deletions(all []found) []kube.Access {
	var needed []kube.Access
	for _, one := range all {
		needed = append(needed, kube.Access{
			Resource: one.where.GroupResource(), Namespace: one.object.GetNamespace(), Name: one.object.GetName(), Verbs: []string{"delete"},
		})
	}
	return needed
}

// marked are the namespace's installed objects that a label selector takes. What may not
// be listed is said in notes: nobody who can list nothing has installed it.
func marked(ctx context.Context, client dynamic.Interface, namespace, selector string) (all []found, notes []string) {
	for _, where := range places() {
		some, err := listed(ctx, client, where, namespace, selector)
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s of an earlier install are not known: %v", where.Resource, err))
		}
		all = append(all, some...)
	}
	return all, notes
}

// listed are the objects of one resource; none where the cluster does not have it.
func listed(ctx context.Context, client dynamic.Interface, where schema.GroupVersionResource, namespace, selector string) ([]found, error) {
	list, err := objectsOf(client, where, namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing %s: %w", where.Resource, err))
	}
	var all []found
	for i := range list.Items {
		all = append(all, found{where, &list.Items[i]})
	}
	return all, nil
}

// deleteAll deletes the very objects that were found. One that is gone is no error.
func deleteAll(ctx context.Context, client dynamic.Interface, all []found) ([]Change, error) {
	var changes []Change
	for _, one := range all {
		err := deleteOne(ctx, client, one)
		if err != nil {
			return changes, err
		}
		changes = append(changes, Change{Object: Title(one.object), Outcome: Deleted})
	}
	return changes, nil
}

func deleteOne(ctx context.Context, client dynamic.Interface, one found) error {
	uid := one.object.GetUID()
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: new(metav1.DeletePropagationBackground)}
	err := objectsOf(client, one.where, one.object.GetNamespace()).Delete(ctx, one.object.GetName(), options)
	if err != nil && !apierrors.IsNotFound(err) {
		return kube.Problem(fmt.Errorf("deleting %s: %w", Title(one.object), err))
	}
	return nil
}

func contains(objects []*unstructured.Unstructured, live *unstructured.Unstructured) bool {
	return slices.ContainsFunc(objects, func(object *unstructured.Unstructured) bool {
		return object.GetName() == live.GetName() && object.GetNamespace() == live.GetNamespace() && object.GroupVersionKind().GroupKind() == live.GroupVersionKind().GroupKind()
	})
}

// isClusterFile is true for a cluster file: a namespace may have several, and a run
// chooses one by its param cluster.
func isClusterFile(object *unstructured.Unstructured) bool {
	return object.GetKind() == "ConfigMap" && strings.HasPrefix(object.GetName(), cluster.ConfigMapPrefix)
}
