package admin

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
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
)

// Apply applies the request's plan and reports each object to done. Before it changes anything, it checks all
// rights and the objects that it uses but does not create, and lets the API server check every object. It can be repeated.
// Errors: InvalidInput if the namespace, a constraint, a pool or an attachment is missing; PermissionDenied with all refusals.
func Apply(ctx context.Context, c *kube.Clients, r Request, say func(string), done func(install.Change)) (Plan, error) {
	if err := checkNamespace(ctx, c.Kube, r.Namespace); err != nil {
		return Plan{}, err
	}
	if err := kube.CheckAccess(ctx, c.Kube, "applying", r.accesses()); err != nil {
		return Plan{}, fail.Advise(err, "log in as a cluster administrator, or give one the output of the same command without --apply and with --output=yaml")
	}
	if err := checkExisting(ctx, c.Objects, r); err != nil {
		return Plan{}, err
	}
	plan, err := planWithCopies(ctx, c.Objects, r)
	if err != nil {
		return Plan{}, err
	}
	var open []*unstructured.Unstructured
	for _, object := range plan.objects() {
		complete, err := addSubjects(ctx, c.Objects, object)
		if err != nil {
			return Plan{}, err
		}
		if complete {
			done(install.Change{Object: install.Title(object), Outcome: install.Unchanged})
		} else {
			open = append(open, object)
		}
	}
	if _, err := install.TryAll(ctx, c.Objects, open); err != nil {
		return Plan{}, err
	}
	return plan, install.ApplyAll(ctx, c, open, say, done)
}

func (r Request) accesses() []kube.Access {
	needed := install.Accesses(NewPlan(r, nil).objects())
	if scc := r.scc(); scc != "" && scc != OwnSCC {
		needed = append(needed, kube.Access{Resource: schema.GroupResource{Group: sccGroup, Resource: sccResource}, Name: scc, Verbs: []string{"get"}})
	}
	if r.Reboot {
		needed = append(needed, kube.Access{Resource: poolResource().GroupResource(), Name: r.Pool, Verbs: []string{"get"}})
	}
	if !r.CopyAttachments {
		return needed
	}
	for _, full := range r.Cluster.Network.RDMA.Attachments {
		namespace, name, _ := strings.Cut(full, "/")
		resource := attachment.Resource().GroupResource()
		needed = append(needed, kube.Access{Resource: resource, Namespace: namespace, Name: name, Verbs: []string{"get"}},
			kube.Access{Resource: resource, Namespace: r.Namespace, Name: name, Verbs: []string{"get", "create", "patch"}})
	}
	return needed
}

// planWithCopies is NewPlan with copies of the cluster's attachments, if the request asks for copies.
func planWithCopies(ctx context.Context, client dynamic.Interface, r Request) (Plan, error) {
	if !r.CopyAttachments {
		return NewPlan(r, nil), nil
	}
	originals, definitions, err := r.attachments(ctx, client)
	if err != nil {
		return Plan{}, err
	}
	var copies []*unstructured.Unstructured
	for _, original := range originals {
		copies = append(copies, copyTo(r.Namespace, original))
	}
	plan := NewPlan(r, copies)
	plan.Warnings = r.warnings(definitions)
	return plan, nil
}

// addSubjects reports whether a role or binding that oc adm policy add-scc-to-user shares with others is
// complete already. If not, it adds the live binding's subjects to the wanted ones, because applying replaces the list.
func addSubjects(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured) (complete bool, err error) {
	if !strings.HasPrefix(object.GetName(), roleOf("")) {
		return false, nil
	}
	live, err := install.Live(ctx, client, object)
	if err != nil || live == nil {
		return false, err
	}
	if object.GetKind() != "RoleBinding" {
		return difference(live.Object, object.Object, "") == "", nil
	}
	missing := missingSubjects(live, object)
	if len(missing) == 0 {
		return true, nil
	}
	return false, unstructured.SetNestedSlice(object.Object, append(subjectsOf(live), missing...), "subjects")
}

func checkNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "preparing namespace %s: it does not exist", name), "oc new-project %s", name)
	} else if err != nil {
		return kube.Problem(fmt.Errorf("preparing namespace %s: %w", name, err))
	}
	return nil
}

// checkExisting checks what the plan uses but does not create: a constraint of the cluster, and the pool to reboot.
func checkExisting(ctx context.Context, client dynamic.Interface, r Request) error {
	if scc := r.scc(); scc != "" && scc != OwnSCC {
		live, err := install.Live(ctx, client, sccNamed(scc))
		if err != nil {
			return err
		}
		if live == nil {
			return fail.Advise(fail.Becausef(fail.InvalidInput, "using SecurityContextConstraints %s: it does not exist", scc), "oc get scc (without --scc and security.scc this command creates %s)", OwnSCC)
		}
		if problems := sccProblems(live, r.Cluster.Security); len(problems) > 0 {
			return fail.Advise(fail.Becausef(fail.InvalidInput, "using SecurityContextConstraints %s: %s", scc, strings.Join(problems, "; ")), "oc edit scc %s", scc)
		}
	}
	if !r.Reboot {
		return nil
	}
	pool, err := getPool(ctx, client, r.Pool)
	if err != nil {
		return err
	}
	if pool.Paused {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "using MachineConfigPool %s: it is paused, so nothing would roll out", pool.Name), "%s", resume(pool.Name))
	}
	return nil
}

func sccNamed(name string) *unstructured.Unstructured {
	return named(sccGroup+"/v1", "SecurityContextConstraints", "", name)
}

func sccProblems(scc *unstructured.Unstructured, security cluster.Security) []string {
	var problems []string
	allowed, _, _ := unstructured.NestedStringSlice(scc.Object, "allowedCapabilities")
	added, _, _ := unstructured.NestedStringSlice(scc.Object, "defaultAddCapabilities")
	allowed = append(allowed, added...)
	for _, name := range security.Adds() {
		if !slices.Contains(allowed, name) && !slices.Contains(allowed, "*") {
			problems = append(problems, fmt.Sprintf("its allowedCapabilities are %v: want %s among them", allowed, name))
		}
	}
	if privileged, _, _ := unstructured.NestedBool(scc.Object, "allowPrivilegedContainer"); security.RequiresPrivilegedSCC && !privileged {
		problems = append(problems, "its allowPrivilegedContainer is false: want true, because security.requires_privileged_scc is")
	}
	if user, _, _ := unstructured.NestedString(scc.Object, "runAsUser", "type"); (len(security.Adds()) > 0 || security.RequiresPrivilegedSCC) && user != "RunAsAny" {
		problems = append(problems, fmt.Sprintf("its runAsUser is %s: want RunAsAny, because a capability is effective for root alone", user))
	}
	return problems
}
