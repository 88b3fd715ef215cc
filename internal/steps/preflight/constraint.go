package preflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// The annotation of a pod that OpenShift admitted that says whose right to the constraint counted:
// "user" for whoever made the pod or "serviceaccount" for the pod's own
// (openshift/apiserver-library-go:pkg/securitycontextconstraints/sccadmission).
const (
	admittedFor   = "security.openshift.io/validated-scc-subject-type"
	forPodAccount = "serviceaccount"
)

var constraints = schema.GroupVersionResource{Group: securityGroup, Version: "v1", Resource: "securitycontextconstraints"}

// neededConstraint is the one that the pod is pinned to, and else the least that would
// admit it.
func neededConstraint(t trial) string {
	return cmp.Or(t.asked.Annotations[objects.SCCAnnotation], kube.NeededSCC(t.answer))
}

func grantConstraint(scc, account, namespace string) string {
	return fmt.Sprintf("oc adm policy add-scc-to-user %s -z %s -n %s", scc, account, namespace)
}

func (p *probe) mayUse(ctx context.Context, account, scc string) (bool, error) {
	return p.may(ctx, account, authorizationv1.ResourceAttributes{Verb: "use", Group: securityGroup, Resource: "securitycontextconstraints", Name: scc})
}

// constraint says which security context constraint admits the pod, and why. A dry
// run is admitted by the rights of whoever asks too; the StatefulSet's pods have
// only their service account's.
func (p *probe) constraint(ctx context.Context, t trial, blocked Verdict) Check {
	account, scc := p.file.Security.ServiceAccount, t.answered.Annotations[objects.AdmittedByAnnotation]
	check := Check{Name: "security", Verdict: OK}
	if scc == "" {
		check.Seen = "no security context constraint is named: the cluster admits by pod security levels"
		return check
	}
	why := "the first that admits the pod, of those that may be used"
	if t.asked.Annotations[objects.SCCAnnotation] == scc {
		why = "the pod is pinned to it by " + objects.SCCAnnotation
	}
	check.Seen = fmt.Sprintf("security context constraint %s: %s", scc, why)
	if t.account == account && t.answered.Annotations[admittedFor] == forPodAccount {
		check.Seen += "; service account " + account + " may use it"
		return check
	}
	allowed, err := p.mayUse(ctx, account, scc)
	switch {
	case err != nil:
		return unread(check.Name, fmt.Sprintf("the pod is admitted by %s; whether service account %s may use it", scc, account), err)
	case allowed:
		check.Seen += fmt.Sprintf("; service account %s may use it", account)
		return check
	}
	mine, err := p.mayUse(ctx, "", scc)
	itself, hidden := p.named(ctx, scc, account)
	switch {
	case itself:
		check.Seen += fmt.Sprintf("; it names service account %s itself", account)
	case hidden != nil && err == nil && !mine:
		// Whoever asks has no right to it either, so it is the constraint that names one of the two.
		check.Verdict, check.Seen = Unknown, check.Seen+fmt.Sprintf("; whether it names service account %s itself may not be read", account)
		check.Fix = grantConstraint(scc, account, p.Request.Namespace)
	default:
		check.Verdict, check.Fix = blocked, grantConstraint(scc, account, p.Request.Namespace)
		check.Seen += fmt.Sprintf(", but by the rights of whoever asks: service account %s, which the nodes' pods have, may not use it", account)
		if blocked == Blocked {
			check.Reason = fail.SecurityRefused
		}
	}
	return check
}

// named is true where a constraint lists the account or its groups itself, as
// constraints could before RBAC.
func (p *probe) named(ctx context.Context, scc, account string) (bool, error) {
	found, err := p.Dynamic.Resource(constraints).Get(ctx, scc, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	users, _, _ := unstructured.NestedStringSlice(found.Object, "users")
	groups, _, _ := unstructured.NestedStringSlice(found.Object, "groups")
	return slices.Contains(users, p.user(account)) || slices.ContainsFunc(groups, func(group string) bool {
		return slices.Contains([]string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + p.Request.Namespace}, group)
	}), nil
}

// memoryLock says whether the admitted pod may pin memory, which RDMA needs. An
// added capability counts only for a process of root: there is no ambient set.
func (p *probe) memoryLock(pod *corev1.Pod) Check {
	check := Check{Name: "locked memory", Verdict: OK}
	for _, container := range pod.Spec.Containers {
		if container.Name != objects.TrainContainer {
			continue
		}
		c := container.SecurityContext
		if c == nil {
			break
		}
		user := c.RunAsUser
		if user == nil && pod.Spec.SecurityContext != nil {
			user = pod.Spec.SecurityContext.RunAsUser
		}
		// An image's own user is not known here; whoever must not be root, is not.
		root := user == nil && !notRoot(pod, c) || user != nil && *user == 0
		switch {
		case c.Privileged != nil && *c.Privileged && root:
			check.Seen = "the pod is privileged: any amount may be locked"
			return check
		case c.Capabilities != nil && slices.Contains(c.Capabilities.Add, "IPC_LOCK") && root:
			check.Seen = "IPC_LOCK is effective: any amount may be locked"
			return check
		case c.Capabilities != nil && slices.Contains(c.Capabilities.Add, "IPC_LOCK"):
			check.Verdict = Warning
			check.Seen = "IPC_LOCK is not effective for a user that is not root: as much may be locked as CRI-O's limit allows"
			check.Fix = "use a constraint that lets the pod run as root, or have the nodes' memlock raised: " + p.admin()
			return check
		}
	}
	check.Verdict, check.Seen = Unknown, "the pod has no IPC_LOCK: as much may be locked as CRI-O's limit allows, which only a pod sees"
	check.Fix = "mlenv rdma --check, once the nodes are up; security.ipc_lock in the cluster file, or the nodes' memlock raised, makes sure"
	return check
}

func notRoot(pod *corev1.Pod, c *corev1.SecurityContext) bool {
	if c.RunAsNonRoot != nil {
		return *c.RunAsNonRoot
	}
	return pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.RunAsNonRoot != nil && *pod.Spec.SecurityContext.RunAsNonRoot
}
