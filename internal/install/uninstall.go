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
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// Cancelled is the outcome of a run that was ended.
const Cancelled Outcome = "cancelled"

// builtBy marks what builds leave: the images, and what makes them.
const builtBy = "app.kubernetes.io/managed-by=ml-dev-env,app.kubernetes.io/part-of=ml-dev-env"

// Removal says what of a namespace is to be taken back.
type Removal struct {
	Namespace string
	// Receipts deletes the accounts of runs too.
	Receipts bool
	// Admin deletes what --admin of install made: the namespace's binding, and the ClusterRole
	// with the last one.
	Admin bool
	// EndRuns cancels runs and deletes environments that are there, in place of an error.
	EndRuns bool
	DryRun  bool
}

// Uninstall takes back what Install and builds made in the namespace. Claims are never
// deleted. It can be repeated.
//
// Errors: EnvironmentBusy where runs or environments are there; PermissionDenied with all
// that is refused, before anything is changed.
func Uninstall(ctx context.Context, c Clients, r Removal) (Report, error) {
	report := Report{Namespace: r.Namespace, DryRun: r.DryRun, Changes: []Change{}}
	doomed, busy, err := r.find(ctx, c.Objects)
	if err != nil {
		return report, err
	}
	if texts := busy.texts(); len(texts) > 0 && !r.EndRuns {
		return report, fail.Advise(fail.Becausef(fail.EnvironmentBusy, "uninstalling from namespace %s: %s there: want none:\n  %s",
			r.Namespace, areThere(len(texts)), strings.Join(texts, "\n  ")),
			"wait for them, or cancel them; --end-runs ends them at once, without their teardown: their claims stay, and they get no receipt")
	}
	needed := append(deletions(doomed), busy.accesses()...)
	if err := kube.CheckAccess(ctx, c.Kube, "uninstalling", needed); err != nil {
		return report, fail.Advise(err, "have it done by somebody who administrates the namespace; what --admin takes back wants a cluster administrator")
	}
	if r.DryRun {
		for _, run := range busy.runs {
			report.Changes = append(report.Changes, Change{Object: Title(run.object), Outcome: Cancelled})
		}
		for _, one := range slices.Concat(busy.environments, doomed) {
			report.Changes = append(report.Changes, Change{Object: Title(one.object), Outcome: Deleted})
		}
	} else {
		if report.Changes, err = busy.end(ctx, c.Objects); err != nil {
			return report, err
		}
		deleted, err := deleteAll(ctx, c.Objects, doomed)
		report.Changes = append(report.Changes, deleted...)
		if err != nil {
			return report, err
		}
	}
	report.Notes, err = r.left(ctx, c, doomed)
	return report, err
}

func areThere(n int) string {
	if n == 1 {
		return "1 run or environment is"
	}
	return fmt.Sprintf("%d runs and environments are", n)
}

// find is what is to be deleted, and what stands on it.
func (r Removal) find(ctx context.Context, client dynamic.Interface) (doomed []found, busy inUse, err error) {
	var problems []error
	list := func(where schema.GroupVersionResource, selector string) {
		some, err := listed(ctx, client, where, r.Namespace, selector)
		problems = append(problems, err)
		doomed = append(doomed, some...)
	}
	for _, where := range places() {
		list(where, PartLabel)
	}
	list(schema.GroupVersionResource{Group: "build.openshift.io", Version: "v1", Resource: "buildconfigs"}, builtBy)
	list(schema.GroupVersionResource{Group: "image.openshift.io", Version: "v1", Resource: "imagestreams"}, builtBy)
	if err := errors.Join(problems...); err != nil {
		return nil, busy, err
	}
	if busy, err = use(ctx, client, r.Namespace, doomed); err != nil {
		return nil, busy, err
	}
	if r.Receipts {
		some, err := listed(ctx, client, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, r.Namespace, receipt.Label)
		if err != nil {
			return nil, busy, err
		}
		doomed = append(doomed, some...)
	}
	if r.Admin {
		some, err := adminPart(ctx, client, r.Namespace)
		if err != nil {
			return nil, busy, err
		}
		doomed = append(doomed, some...)
	}
	return doomed, busy, nil
}

// adminPart is what install --admin made for the namespace. The ClusterRole is all
// namespaces': it goes with the last binding.
func adminPart(ctx context.Context, client dynamic.Interface, namespace string) ([]found, error) {
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	bindings, err := listed(ctx, client, rbac.WithResource("clusterrolebindings"), "", PartLabel+"="+AdminPart)
	if err != nil {
		return nil, err
	}
	own := slices.DeleteFunc(slices.Clone(bindings), func(one found) bool { return one.object.GetName() != ObserverBinding(namespace) })
	if len(own) < len(bindings) {
		return own, nil
	}
	roles, err := listed(ctx, client, rbac.WithResource("clusterroles"), "", PartLabel+"="+AdminPart)
	return append(own, roles...), err
}

// left says what stays in the namespace, and how to delete it.
func (r Removal) left(ctx context.Context, c Clients, doomed []found) ([]string, error) {
	claims, err := c.Kube.CoreV1().PersistentVolumeClaims(r.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing claims in %s: %w", r.Namespace, err))
	}
	var notes []string
	if len(claims.Items) > 0 {
		notes = append(notes, fmt.Sprintf("claims stay, and what is on them: %s; oc delete pvc NAME -n %s", claimTexts(claims.Items), r.Namespace))
	}
	receipts, err := c.Kube.CoreV1().ConfigMaps(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: receipt.Label})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing receipts in %s: %w", r.Namespace, err))
	}
	if n := len(receipts.Items); n > 0 && !r.Receipts {
		notes = append(notes, fmt.Sprintf("%s %s, the accounts of runs: --receipts deletes them too", humanize.Count(n, "receipt"), stay(n)))
	}
	for _, account := range foreignAccounts(doomed) {
		notes = append(notes, fmt.Sprintf("serviceaccount/%s stays, without the rights: it is not ours", account))
	}
	if !r.Admin {
		notes = append(notes, r.adminLeft(ctx, c)...)
	}
	return notes, nil
}

func stay(n int) string {
	if n == 1 {
		return "stays"
	}
	return "stay"
}

// adminLeft tells of the administrator's part, as far as it may be read.
func (r Removal) adminLeft(ctx context.Context, c Clients) []string {
	name := ObserverBinding(r.Namespace)
	_, err := c.Kube.RbacV1().ClusterRoleBindings().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return []string{"whether clusterrolebinding/" + name + " is there may not be read; an administrator deletes it: mlenv uninstall --admin -n " + r.Namespace}
	}
	return []string{"clusterrolebinding/" + name + " stays; an administrator deletes it: mlenv uninstall --admin -n " + r.Namespace}
}

func claimTexts(claims []corev1.PersistentVolumeClaim) string {
	var texts []string
	for _, claim := range claims {
		size := claim.Status.Capacity[corev1.ResourceStorage]
		if size.IsZero() {
			size = claim.Spec.Resources.Requests[corev1.ResourceStorage]
		}
		texts = append(texts, fmt.Sprintf("%s (%s)", claim.Name, size.String()))
	}
	return strings.Join(texts, ", ")
}

// foreignAccounts are those that our bindings gave rights to and that we did not make.
func foreignAccounts(doomed []found) []string {
	var names []string
	for _, one := range doomed {
		if one.object.GetKind() != "RoleBinding" {
			continue
		}
		subjects, _, _ := unstructured.NestedSlice(one.object.Object, "subjects")
		for _, subject := range subjects {
			fields, _ := subject.(map[string]any)
			name, _ := fields["name"].(string)
			if fields["kind"] == "ServiceAccount" && !has(doomed, "ServiceAccount", name) {
				names = append(names, name)
			}
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(names)))
}
