// SPDX-License-Identifier: Apache-2.0

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

// OpenShift's annotation of an admitted pod with the owner of the right to the constraint:
// "user" for the caller or "serviceaccount" for the pod's own account
// (openshift/apiserver-library-go:pkg/securitycontextconstraints/sccadmission).
const (
	admittedFor   = "security.openshift.io/validated-scc-subject-type"
	forPodAccount = "serviceaccount"
)

var constraints = schema.GroupVersionResource{Group: securityGroup, Version: "v1", Resource: "securitycontextconstraints"}

// neededConstraint returns the constraint that the pod is pinned to, else the least one that would admit it.
func neededConstraint(t trial) string {
	return cmp.Or(t.asked.Annotations[objects.SCCAnnotation], kube.NeededSCC(t.answer))
}

func grantConstraint(scc, account, namespace string) string {
	return fmt.Sprintf("oc adm policy add-scc-to-user %s -z %s -n %s", scc, account, namespace)
}

func (p *probe) mayUse(ctx context.Context, account, scc string) (bool, error) {
	return p.isAllowed(ctx, account, authorizationv1.ResourceAttributes{
		Verb: "use", Group: securityGroup, Resource: "securitycontextconstraints", Name: scc})
}

// constraint names the security context constraint that admits the pod, and checks that the nodes' pods may use it. A
// dry run is also admitted by the caller's rights; the StatefulSet's pods have only their service account's.
func (p *probe) constraint(ctx context.Context, t trial, blocked Status) Check {
	const name = "security"
	account, scc := p.file.Security.ServiceAccount, t.answered.Annotations[objects.AdmittedByAnnotation]
	if scc == "" {
		return p.user(ctx, name, t.answered)
	}
	seen := "security context constraint " + scc + ": the first that admits the pod, of those that may be used"
	if t.asked.Annotations[objects.SCCAnnotation] == scc {
		seen = "security context constraint " + scc + ": the pod is pinned to it by " + objects.SCCAnnotation
	}
	allowed, err := t.account == account && t.answered.Annotations[admittedFor] == forPodAccount, error(nil)
	if !allowed {
		allowed, err = p.mayUse(ctx, account, scc)
	}
	switch {
	case err != nil:
		return unread(name, fmt.Sprintf("the pod is admitted by %s; whether service account %s may use it", scc, account), err)
	case allowed:
		return newCheck(name, OK, "", "%s; service account %s may use it", seen, account)
	}
	mine, err := p.mayUse(ctx, "", scc)
	itself, hidden := p.named(ctx, scc, account)
	grant := grantConstraint(scc, account, p.Request.Namespace)
	switch {
	case itself:
		return newCheck(name, OK, "", "%s; it names service account %s itself", seen, account)
	case hidden != nil && err == nil && !mine:
		// The caller has no right to it either, so the constraint itself names one of the two.
		return newCheck(name, Unknown, grant, "%s; whether it names service account %s itself may not be read", seen, account)
	}
	return newCheck(name, blocked, grant, "%s, but by the caller's rights: service account %s, which the nodes' pods have, may not use it",
		seen, account).because(fail.SecurityRefused)
}

// user checks the user of a pod that no constraint gives one: the kubelet refuses to start a pod that must not be root with an image that
// may run as root, and nothing makes the claims writable for it.
func (p *probe) user(ctx context.Context, name string, pod *corev1.Pod) Check {
	const none = "no security context constraint is named, so pod security levels decide"
	if context := pod.Spec.SecurityContext; context == nil || context.RunAsUser != nil || context.RunAsNonRoot == nil {
		return newCheck(name, OK, "", none)
	}
	const next = "security.run_as_user: 1001 in the cluster file (OpenShift would choose a user), then mlenv install it again"
	check := newCheck(name, Warning, next, "%s, and no user: the kubelet refuses an image that runs as root, and claims may not be writable",
		none)
	if p.Registry == nil || p.building {
		return check
	}
	if root, err := p.Registry.RunsAsRoot(ctx, p.Request.Image); err == nil && root {
		return newCheck(name, Blocked, next, "%s, and no user: the pod must not run as root, and image %s does", none, p.Request.Image).because(
			fail.SecurityRefused)
	}
	return check
}

func (p *probe) named(ctx context.Context, scc, account string) (bool, error) {
	found, err := p.Clients.Objects.Resource(constraints).Get(ctx, scc, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	users, _, _ := unstructured.NestedStringSlice(found.Object, "users")
	groups, _, _ := unstructured.NestedStringSlice(found.Object, "groups")
	return slices.Contains(users, kube.Account(p.Request.Namespace, account)) || slices.ContainsFunc(groups, func(group string) bool {
		return slices.Contains([]string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + p.Request.Namespace}, group)
	}), nil
}
