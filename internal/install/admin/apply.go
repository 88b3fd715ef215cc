package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Clients talk to the cluster.
type Clients = install.Clients

// Apply makes the cluster have what the request wants, and tells done of each object.
// Before anything is changed it asks for all rights, looks at what must be there
// already, and has the API server check every object. It can be repeated.
//
// Errors: InvalidInput, where the namespace, a constraint, a pool or an attachment is
// missing; PermissionDenied with all that is refused.
func Apply(ctx context.Context, c Clients, r Request, done func(install.Change)) (Plan, error) {
	if err := checkNamespace(ctx, c.Kube, r.Namespace); err != nil {
		return Plan{}, err
	}
	plan, err := NewPlan(r, nil)
	if err != nil {
		return Plan{}, err
	}
	needed, err := r.accesses(plan)
	if err != nil {
		return Plan{}, err
	}
	if err := checkRights(ctx, c.Kube, needed); err != nil {
		return Plan{}, err
	}
	if err := checkThere(ctx, c.Objects, r); err != nil {
		return Plan{}, err
	}
	if plan, err = planWithCopies(ctx, c.Objects, r); err != nil {
		return Plan{}, err
	}
	var open []*unstructured.Unstructured
	for _, object := range plan.objects() {
		is, err := settled(ctx, c.Objects, object)
		if err != nil {
			return Plan{}, err
		}
		if is {
			done(install.Change{Object: install.Title(object), Outcome: install.Unchanged})
			continue
		}
		open = append(open, object)
	}
	if _, err := install.TryAll(ctx, c.Objects, open); err != nil {
		return Plan{}, err
	}
	var applied []string
	for _, object := range open {
		change, err := install.Apply(ctx, c.Objects, object, false)
		if err != nil {
			return Plan{}, halfway(err, applied)
		}
		applied = append(applied, install.Title(object))
		done(change)
	}
	return plan, nil
}

// planWithCopies is NewPlan with the attachments of the cluster, where copies are
// asked for: they are read for nothing else.
func planWithCopies(ctx context.Context, client dynamic.Interface, r Request) (Plan, error) {
	if !r.CopyAttachments {
		return NewPlan(r, nil)
	}
	originals, definitions, err := r.attachments(ctx, client)
	if err != nil {
		return Plan{}, err
	}
	var copies []*unstructured.Unstructured
	for _, original := range originals {
		copies = append(copies, copyTo(r.Namespace, original))
	}
	plan, err := NewPlan(r, copies)
	plan.Warnings = r.warnings(definitions)
	return plan, err
}

// halfway says what is in place when an object fails after all checks.
func halfway(err error, applied []string) error {
	if len(applied) == 0 {
		return err
	}
	return fail.Advise(fail.Because(fail.ReasonOf(err), fmt.Errorf("%w; applied before it: %s", err, strings.Join(applied, ", "))),
		"the same command again, once that is mended: what is applied stays as it is")
}

func checkNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "preparing namespace %s: there is none: want one made first", name), "oc new-project %s", name)
	} else if err != nil {
		return kube.Problem(fmt.Errorf("preparing namespace %s: %w", name, err))
	}
	return nil
}

// checkThere looks at what is used and not made: a constraint that the cluster has,
// and the pool whose nodes shall reboot.
func checkThere(ctx context.Context, client dynamic.Interface, r Request) error {
	if scc := r.scc(); scc != "" && scc != OwnSCC {
		live, err := getSCC(ctx, client, scc)
		if err != nil {
			return err
		}
		if live == nil {
			return fail.Advise(fail.Becausef(fail.InvalidInput, "using SecurityContextConstraints %s: there is none", scc), "oc get scc (without --scc and security.scc, %s is made)", OwnSCC)
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
		return fail.Advise(fail.Becausef(fail.InvalidInput, "using MachineConfigPool %s: it is paused: want one that rolls out what is applied", pool.Name), "%s", resume(pool.Name))
	}
	return nil
}

// getSCC is nil where there is none.
func getSCC(ctx context.Context, client dynamic.Interface, name string) (*unstructured.Unstructured, error) {
	named := &unstructured.Unstructured{}
	named.SetAPIVersion(sccGroup + "/v1")
	named.SetKind("SecurityContextConstraints")
	named.SetName(name)
	return install.Live(ctx, client, named)
}

// sccProblems are what keeps a constraint that somebody else made from admitting the
// pods of mode RDMA.
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
		problems = append(problems, "its allowPrivilegedContainer is false: want true, for security.requires_privileged_scc is")
	}
	if user, _, _ := unstructured.NestedString(scc.Object, "runAsUser", "type"); (len(security.Adds()) > 0 || security.RequiresPrivilegedSCC) && user != "RunAsAny" {
		problems = append(problems, fmt.Sprintf("its runAsUser is %s: want RunAsAny, for a capability is effective for root alone", user))
	}
	return problems
}
