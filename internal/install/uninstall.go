// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// buildSelector selects what builds leave: BuildConfigs and ImageStreams.
const buildSelector = "app.kubernetes.io/managed-by=ml-dev-env,app.kubernetes.io/part-of=ml-dev-env"

// Removal is what to remove from a namespace.
type Removal struct {
	Namespace string
	Receipts  bool
	// Admin also deletes what install --admin created: the namespace's binding, and with the last binding the ClusterRole.
	Admin bool
	// EndRuns cancels runs and deletes environments. Without it, they are an error.
	EndRuns bool
	DryRun  bool
}

// Uninstall deletes what Install and builds created in the namespace. It never deletes claims. It can be repeated.
// Errors: EnvironmentBusy if runs or environments exist; PermissionDenied with all refusals, before it changes anything.
func Uninstall(ctx context.Context, c *kube.Clients, r Removal) (Report, error) {
	report := Report{Namespace: r.Namespace, DryRun: r.DryRun, Changes: []Change{}}
	doomed, users, err := r.find(ctx, c.Objects)
	if err != nil {
		return report, err
	}
	if names := users.names(); len(names) > 0 && !r.EndRuns {
		return report,
			fail.Advise(fail.Becausef(fail.EnvironmentBusy, "uninstalling from namespace %s: want no run in progress and no environment, found "+
				"%d:\n  %s",
				r.Namespace, len(names), strings.Join(names, "\n  ")),
				"wait for them, or cancel them; --end-runs ends them at once, without teardown and receipt; claims stay")
	}
	needed := slices.Concat(accesses(doomed, "delete"), accesses(users.environments, "delete"), accesses(users.runs, "patch"))
	if err := kube.CheckAccess(ctx, c.Kube, "uninstalling", needed); err != nil {
		return report, fail.Advise(err, "let an administrator of the namespace do it; --admin needs a cluster administrator")
	}
	if r.DryRun {
		report.Changes = slices.Concat(report.Changes, outcomes(users.runs, Cancelled), outcomes(users.environments, Deleted),
			outcomes(doomed, Deleted))
	} else {
		ended, err := users.end(ctx, c.Objects)
		report.Changes = append(report.Changes, ended...)
		if err != nil {
			return report, err
		}
		deleted, err := deleteAll(ctx, c.Objects, doomed)
		report.Changes = append(report.Changes, deleted...)
		if err != nil {
			return report, err
		}
		if r.EndRuns {
			late, err := r.lateEnvironments(ctx, c.Objects)
			report.Changes = append(report.Changes, late...)
			if err != nil {
				return report, err
			}
		}
	}
	report.Notes, err = r.notes(ctx, c, doomed)
	return report, err
}

// lateEnvironments deletes the environments that steps have created since find. Now they have lost the rights, also to tear down.
func (r Removal) lateEnvironments(ctx context.Context, client dynamic.Interface) ([]Change, error) {
	found, err := environments(ctx, client, r.Namespace)
	if err != nil {
		return nil, err
	}
	return deleteAll(ctx, client, slices.DeleteFunc(found, func(l *unstructured.Unstructured) bool { return l.GetDeletionTimestamp() != nil }))
}

func environments(ctx context.Context, client dynamic.Interface, namespace string) ([]*unstructured.Unstructured, error) {
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	return listObjects(ctx, client, leases, namespace, objects.EnvironmentLabel)
}

func (r Removal) find(ctx context.Context, client dynamic.Interface) (doomed []*unstructured.Unstructured, users usage, err error) {
	var problems []error
	away := func() bool { return fail.ReasonOf(errors.Join(problems...)) == fail.APIServerUnreachable }
	find := func(resource schema.GroupVersionResource, selector string) {
		if away() {
			return
		}
		some, err := listObjects(ctx, client, resource, r.Namespace, selector)
		problems = append(problems, err)
		doomed = append(doomed, some...)
	}
	for _, resource := range installedResources() {
		find(resource, PartLabel)
	}
	find(schema.GroupVersionResource{Group: "build.openshift.io", Version: "v1", Resource: "buildconfigs"}, buildSelector)
	find(schema.GroupVersionResource{Group: "image.openshift.io", Version: "v1", Resource: "imagestreams"}, buildSelector)
	if away() {
		return nil, users, errors.Join(problems...)
	}
	users, err = usageOf(ctx, client, r.Namespace, doomed)
	problems = append(problems, err)
	if r.Receipts {
		find(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, receipt.Label)
	}
	if r.Admin {
		some, err := adminPart(ctx, client, r.Namespace)
		problems = append(problems, err)
		doomed = append(doomed, some...)
	}
	return doomed, users, errors.Join(problems...)
}

// adminPart returns what install --admin created for the namespace. All namespaces share the ClusterRole: it goes with
// the last binding.
func adminPart(ctx context.Context, client dynamic.Interface, namespace string) ([]*unstructured.Unstructured, error) {
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	bindings, err := listObjects(ctx, client, rbac.WithResource("clusterrolebindings"), "", PartLabel+"="+AdminPart)
	if err != nil {
		return nil, err
	}
	own := slices.DeleteFunc(slices.Clone(bindings), func(b *unstructured.Unstructured) bool {
		return b.GetName() != ObserverBinding(namespace)
	})
	if len(own) < len(bindings) {
		return own, nil
	}
	roles, err := listObjects(ctx, client, rbac.WithResource("clusterroles"), "", PartLabel+"="+AdminPart)
	return append(own, roles...), err
}

func (r Removal) notes(ctx context.Context, c *kube.Clients, doomed []*unstructured.Unstructured) ([]string, error) {
	claims, err := c.Kube.CoreV1().PersistentVolumeClaims(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: objects.EnvironmentLabel})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing claims in %s: %w", r.Namespace, err))
	}
	var notes []string
	if len(claims.Items) > 0 {
		notes = append(notes, fmt.Sprintf("not deleted: claims %s; to delete one: mlenv claims delete NAME -n %s", claimNames(claims.Items),
			r.Namespace))
	}
	if left := r.pastRuns(ctx, c.Objects); left != "" {
		notes = append(notes, left)
	}
	receipts, err := c.Kube.CoreV1().ConfigMaps(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: receipt.Label})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing receipts in %s: %w", r.Namespace, err))
	}
	if n := len(receipts.Items); n > 0 && !r.Receipts {
		notes = append(notes, fmt.Sprintf("not deleted: %s; --receipts deletes them", humanize.Count(n, "receipt")))
	}
	for _, account := range foreignAccounts(doomed) {
		notes = append(notes, fmt.Sprintf("not deleted: serviceaccount/%s, which install did not create; it has lost the rights", account))
	}
	if !r.Admin {
		name := ObserverBinding(r.Namespace)
		if _, err := c.Kube.RbacV1().ClusterRoleBindings().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			notes = append(notes, fmt.Sprintf("not deleted: clusterrolebinding/%s, if it exists; a cluster administrator deletes it: mlenv "+
				"uninstall --admin -n %s", name, r.Namespace))
		}
	}
	return notes, nil
}

// pastRuns describes the runs of the pipelines with the pods of their tasks, which install has not created. It needs no right to read
// them: without it there is no note.
func (r Removal) pastRuns(ctx context.Context, client dynamic.Interface) string {
	const of = "tekton.dev/pipeline"
	selector := of + " in (" + strings.Join([]string{launch.Pipeline, "dev-environment"}, ",") + ")"
	tekton := schema.GroupVersionResource{Group: "tekton.dev", Version: "v1", Resource: "pipelineruns"}
	runs, err := listObjects(ctx, client, tekton, r.Namespace, selector)
	if err != nil || len(runs) == 0 {
		return ""
	}
	text := "not deleted: " + humanize.Count(len(runs), "PipelineRun")
	if pods, err := listObjects(ctx, client, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, r.Namespace, selector); err == nil {
		text += " with " + humanize.Count(len(pods), "pod")
	}
	return fmt.Sprintf("%s; mlenv fetch and mlenv logs need them; to delete them: oc delete pipelineruns -n %s -l '%s'",
		text, r.Namespace, selector)
}

func claimNames(claims []corev1.PersistentVolumeClaim) string {
	var names []string
	for _, claim := range claims {
		names = append(names, fmt.Sprintf("%s (%s)", claim.Name, kube.ClaimSize(&claim)))
	}
	return strings.Join(names, ", ")
}

// foreignAccounts returns the service accounts that install bound to the Role but did not create.
func foreignAccounts(doomed []*unstructured.Unstructured) []string {
	return slices.DeleteFunc(boundAccounts(doomed), func(name string) bool { return contains(doomed, "ServiceAccount", name) })
}

// boundAccounts returns the service accounts that RoleBindings among the objects name.
func boundAccounts(objects []*unstructured.Unstructured) []string {
	var names []string
	for _, binding := range objects {
		if binding.GetKind() != "RoleBinding" {
			continue
		}
		subjects, _, _ := unstructured.NestedSlice(binding.Object, "subjects")
		for _, subject := range subjects {
			fields, _ := subject.(map[string]any)
			if name, _ := fields["name"].(string); fields["kind"] == "ServiceAccount" {
				names = append(names, name)
			}
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

type usage struct {
	// runs are PipelineRuns of installed pipelines that are in progress, and the other TaskRuns of installed tasks.
	runs []*unstructured.Unstructured
	// environments are Leases, which own everything of their environment except claims.
	environments []*unstructured.Unstructured
}

// usageOf finds the namespace's environments, and its runs of the installed pipelines and tasks.
func usageOf(ctx context.Context, client dynamic.Interface, namespace string, installed []*unstructured.Unstructured) (usage, error) {
	var u usage
	for _, kind := range []struct{ resource, of, label string }{
		{"pipelineruns", "Pipeline", "tekton.dev/pipeline"}, {"taskruns", "Task", "tekton.dev/task"},
	} {
		runs, err := listObjects(ctx, client, schema.GroupVersionResource{Group: "tekton.dev", Version: "v1", Resource: kind.resource}, namespace,
			kind.label)
		if err != nil {
			return u, err
		}
		for _, run := range runs {
			labels := run.GetLabels()
			if kind.of == "Task" && contains(u.runs, "PipelineRun", labels["tekton.dev/pipelineRun"]) {
				continue
			}
			if !hasEnded(run) && contains(installed, kind.of, labels[kind.label]) {
				u.runs = append(u.runs, run)
			}
		}
	}
	var err error
	u.environments, err = environments(ctx, client, namespace)
	return u, err
}

func hasEnded(run *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(run.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(condition any) bool {
		fields, _ := condition.(map[string]any)
		return fields["type"] == "Succeeded" && fields["status"] != "Unknown"
	})
}

func (u usage) names() []string {
	var names []string
	for _, run := range u.runs {
		names = append(names, ObjectName(run))
	}
	for _, environment := range u.environments {
		name := "environment " + environment.GetName()
		if holder := environment.GetAnnotations()[lease.HolderName]; holder != "" {
			name += ", held by " + holder
		}
		names = append(names, name)
	}
	return names
}

// end cancels the runs without their teardown, which would lose its rights midway, and deletes the environments'
// Leases; the garbage collector deletes the rest.
func (u usage) end(ctx context.Context, client dynamic.Interface) ([]Change, error) {
	for i, run := range u.runs {
		status := "Cancelled"
		if run.GetKind() == "TaskRun" {
			status = "TaskRunCancelled"
		}
		_, err := clientOf(client, run).Patch(ctx, run.GetName(), types.MergePatchType, fmt.Appendf(nil, `{"spec":{"status":%q}}`, status),
			metav1.PatchOptions{FieldManager: fieldManager})
		if err != nil {
			return outcomes(u.runs[:i], Cancelled), kube.Problem(fmt.Errorf("cancelling %s: %w", ObjectName(run), err))
		}
	}
	deleted, err := deleteAll(ctx, client, u.environments)
	return append(outcomes(u.runs, Cancelled), deleted...), err
}
