// SPDX-License-Identifier: Apache-2.0

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
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Report lists what an install changed, or would change in a dry run.
type Report struct {
	Namespace string   `json:"namespace"`
	DryRun    bool     `json:"dryRun,omitempty"`
	Changes   []Change `json:"changes"`
	// Notes name what stays as it is, and why.
	Notes []string `json:"notes,omitempty"`
}

// Install applies the objects to the namespace, and deletes those that an earlier install created and that are no
// longer among them. Before it changes anything, it checks all rights and lets the API server check every object; a
// dry run ends there. Errors: PermissionDenied with all refusals; InvalidInput if the namespace or Tekton is missing. If an
// object fails after all checks, the report has what was changed before it. It calls say if it waits for something.
func Install(ctx context.Context, c *kube.Clients, namespace string, objects []*unstructured.Unstructured, dryRun bool, say func(string)) (
	Report, error) {
	report := Report{Namespace: namespace, DryRun: dryRun, Changes: []Change{}}
	obsolete, notes := labelled(ctx, c.Objects, namespace, PartLabel+"="+NamespacePart)
	report.Notes = append(report.Notes, notes...)
	obsolete = slices.DeleteFunc(obsolete, func(live *unstructured.Unstructured) bool { return isAmong(objects, live) || isClusterFile(live) })
	obsolete = slices.DeleteFunc(obsolete, accountsOfFiles(ctx, c, namespace))
	bound := boundAccounts(objects)
	objects = slices.DeleteFunc(objects, func(object *unstructured.Unstructured) bool {
		return object.GetKind() == "ServiceAccount" && !slices.Contains(bound, object.GetName()) && isOthersAccount(ctx, c.Kube, object)
	})
	if err := kube.CheckAccess(ctx, c.Kube, "installing",
		append(accesses(objects, "get", "create", "patch"), accesses(obsolete, "delete")...)); err != nil {
		return report, fail.Advise(err, "let an administrator of the namespace install it (oc adm policy add-role-to-user admin USER -n "+
			"NAMESPACE); --admin needs a cluster administrator, who can apply the output of --output=yaml")
	}
	changes, err := tryAll(ctx, c.Objects, objects)
	if err != nil {
		return report, err
	}
	if note := runsThatMix(ctx, c.Objects, namespace, objects, changes); note != "" {
		report.Notes = append(report.Notes, note)
	}
	if dryRun {
		report.Changes = slices.Concat(changes, outcomes(obsolete, Deleted))
		return report, nil
	}
	if err := ApplyAll(ctx, c, objects, say, func(change Change) { report.Changes = append(report.Changes, change) }); err != nil {
		return report, err
	}
	deleted, err := deleteAll(ctx, c.Objects, obsolete)
	report.Changes = append(report.Changes, deleted...)
	return report, err
}

// runsThatMix warns about runs in progress if a Task or Pipeline changes or goes, "" for none: Tekton reads a Task when it starts it, and
// the image of the steps when the run starts. What cannot be read is left out.
func runsThatMix(ctx context.Context, client dynamic.Interface, namespace string, objects []*unstructured.Unstructured,
	changes []Change) string {
	changed := func(c Change) bool {
		kind, _, _ := strings.Cut(c.Object, "/")
		return (c.Outcome == Changed || c.Outcome == Deleted) && (kind == "task" || kind == "pipeline")
	}
	if !slices.ContainsFunc(changes, changed) {
		return ""
	}
	users, err := usageOf(ctx, client, namespace, objects)
	if err != nil || len(users.runs) == 0 {
		return ""
	}
	return fmt.Sprintf("runs in progress may fail, because their steps that start later are of the new version, or are gone, and their image "+
		"is not: %s",
		humanize.First(humanize.Each(users.runs, ObjectName), 8))
}

// accountsOfFiles returns a function that reports whether a cluster file that stays installed names the object as its nodes' account.
func accountsOfFiles(ctx context.Context, c *kube.Clients, namespace string) func(*unstructured.Unstructured) bool {
	var names []string
	for _, file := range filesIn(ctx, c, namespace) {
		names = append(names, file.Security.ServiceAccount)
	}
	return func(live *unstructured.Unstructured) bool {
		return live.GetKind() == "ServiceAccount" && slices.Contains(names, live.GetName())
	}
}

// filesIn returns the cluster files that are installed in the namespace and can be read.
func filesIn(ctx context.Context, c *kube.Clients, namespace string) []cluster.File {
	here := *c
	here.Namespace = namespace
	return clusterfile.InstalledFiles(ctx, &here)
}

// isOthersAccount reports whether the nodes' account, which has no rights of ours, exists as another's: an administrator's may have rights
// and pull secrets of its own, which uninstall must not take, and that of running environments goes with them.
func isOthersAccount(ctx context.Context, client kubernetes.Interface, object *unstructured.Unstructured) bool {
	live, err := client.CoreV1().ServiceAccounts(object.GetNamespace()).Get(ctx, object.GetName(), metav1.GetOptions{})
	return err == nil && live.Labels[PartLabel] == ""
}

func outcomes(objects []*unstructured.Unstructured, outcome Outcome) []Change {
	var changes []Change
	for _, object := range objects {
		changes = append(changes, Change{Object: ObjectName(object), Outcome: outcome})
	}
	return changes
}

// labelled returns the namespace's installed objects that a label selector matches. A list that is refused becomes a note:
// a user who may not list objects has not installed them.
func labelled(ctx context.Context, client dynamic.Interface, namespace, selector string) (
	all []*unstructured.Unstructured, notes []string) {
	for _, resource := range installedResources() {
		some, err := listObjects(ctx, client, resource, namespace, selector)
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s of an earlier install are unknown: %v", resource.Resource, err))
		}
		all = append(all, some...)
	}
	return all, notes
}

// listObjects lists objects of one resource. It returns none if the cluster does not have the resource.
func listObjects(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, namespace, selector string) (
	[]*unstructured.Unstructured, error) {
	found, err := inNamespace(client.Resource(resource), namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing %s: %w", resource.Resource, err))
	}
	var objects []*unstructured.Unstructured
	for i := range found.Items {
		objects = append(objects, &found.Items[i])
	}
	return objects, nil
}

// deleteAll deletes objects by UID. A missing one is not an error.
func deleteAll(ctx context.Context, client dynamic.Interface, objects []*unstructured.Unstructured) ([]Change, error) {
	for i, object := range objects {
		options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(object.GetUID())},
			PropagationPolicy: new(metav1.DeletePropagationBackground)}
		if err := kube.Deleted(ObjectName(object), clientOf(client, object).Delete(ctx, object.GetName(), options)); err != nil {
			return outcomes(objects[:i], Deleted), err
		}
	}
	return outcomes(objects, Deleted), nil
}

func isAmong(objects []*unstructured.Unstructured, live *unstructured.Unstructured) bool {
	return slices.ContainsFunc(objects, func(object *unstructured.Unstructured) bool {
		return object.GetName() == live.GetName() && object.GetNamespace() == live.GetNamespace() &&
			object.GroupVersionKind().GroupKind() == live.GroupVersionKind().GroupKind()
	})
}

// isClusterFile reports whether an object is a cluster file. A namespace may have several, from which the param
// cluster of a run chooses.
func isClusterFile(object *unstructured.Unstructured) bool {
	return object.GetKind() == "ConfigMap" && strings.HasPrefix(object.GetName(), cluster.ConfigMapPrefix)
}
