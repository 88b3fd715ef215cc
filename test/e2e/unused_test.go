// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/install"
)

// unusedRight is a right of the Role that no request in the audit log of the end-to-end tests uses, with the reason.
type unusedRight struct {
	group, resource string
	verbs           []string
	why             string
}

// Reasons of several rights.
const (
	byApply     = "server-side apply of a missing object needs create too, and the audit log has only the patch"
	nightlyOnly = "only nightly scenarios use it"
	byOwner     = "OpenShift requires it for changing an object's owner, when a run takes over from a deleted run; the local cluster does not"
)

// unusedRights lists these rights. The end-to-end tests fail if a right is missing here, and report a listed right that
// is used.
func unusedRights() []unusedRight {
	return []unusedRight{
		{"apps", "statefulsets", []string{"create"}, byApply},
		{"apps", "statefulsets", []string{"watch"}, "waiting until a deleted StatefulSet is gone: it mostly is when the wait begins"},
		{"", "services", []string{"create"}, byApply},
		{"", "services", []string{"delete"}, "the Service of development services that are no longer requested: " + nightlyOnly},
		{"", "serviceaccounts", []string{"delete"}, byOwner},
		{"", "serviceaccounts", []string{"create", "patch"}, "an account of the nodes that install has not created: " + nightlyOnly},
		{"k8s.cni.cncf.io", "network-attachment-definitions", []string{"get"}, "attachments of the cluster file: " + nightlyOnly},
		{"authorization.k8s.io", "localsubjectaccessreviews", []string{"create"}, "a constraint that the nodes need: " + nightlyOnly},
		{"", "configmaps", []string{"delete"}, "receipts beyond the 30 newest of an environment"},
		{"", "persistentvolumeclaims", []string{"create"}, byApply},
		{"", "persistentvolumeclaims", []string{"watch"}, "waiting until storage has expanded a claim: the local cluster's mostly is faster"},
		{"", "secrets", []string{"create"}, byApply},
		{"", "secrets", []string{"delete"}, byOwner},
		{"route.openshift.io", "routes", []string{"create"}, byApply},
		{"route.openshift.io", "routes", []string{"patch"}, "routes to services, on request"},
		{"route.openshift.io", "routes", []string{"delete"}, byOwner},
		{"build.openshift.io", "buildconfigs", []string{"create"}, byApply},
		{"image.openshift.io", "imagestreams", []string{"create"}, byApply},
		{"image.openshift.io", "imagestreams/layers", []string{"get"}, "the registry requires it of steps that read an image stream, and asks " +
			"the API server under its own account"},
	}
}

// TestUnusedRightsAreGiven fails if unusedRights lists a right that no role grants, or lists a right without a reason.
func TestUnusedRightsAreGiven(t *testing.T) {
	needed, looking := install.RoleRules()
	for _, u := range unusedRights() {
		for _, verb := range u.verbs {
			given := slices.ContainsFunc(slices.Concat(needed, looking), func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.APIGroups, u.group) && slices.Contains(r.Resources, u.resource) && slices.Contains(r.Verbs, verb)
			})
			if !given || u.why == "" {
				t.Errorf("%s %s.%s: given %v, reason %q", verb, u.resource, u.group, given, u.why)
			}
		}
	}
}
