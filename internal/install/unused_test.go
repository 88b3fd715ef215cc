package install

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// TestUnusedRightsAreGiven: a reason for a right that nobody has any more misleads.
func TestUnusedRightsAreGiven(t *testing.T) {
	needed, looking := Rules()
	for _, u := range UnusedRights() {
		for _, verb := range u.Verbs {
			given := slices.ContainsFunc(slices.Concat(needed, looking), func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.APIGroups, u.Group) && slices.Contains(r.Resources, u.Resource) && slices.Contains(r.Verbs, verb)
			})
			if !given || u.Why == "" {
				t.Errorf("%s %s.%s: given %v, reason %q", verb, u.Resource, u.Group, given, u.Why)
			}
		}
	}
}
