// SPDX-License-Identifier: Apache-2.0

package envflags

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Allowed refuses a command that its user may begin but not see to its end, before it creates anything. needed are the rights without which
// it fails; without others it only explains less. Errors: PermissionDenied with all that is missing, and what grants it.
func Allowed(ctx context.Context, clients *kube.Clients, doing string, needed ...kube.Access) error {
	return allowed(ctx, clients, doing, "", needed)
}

// allowed is Allowed, for a user who needs another Role, too; "" for none.
func allowed(ctx context.Context, clients *kube.Clients, doing, role string, needed []kube.Access) error {
	err := kube.CheckAccess(ctx, clients.Kube, doing, needed)
	if fail.ReasonOf(err) != fail.PermissionDenied {
		return nil // nobody knows, and the API server decides
	}
	subject, next := kube.Subject(kube.WhoAsks(ctx, clients.Kube)), ""
	if role != "" {
		next = fmt.Sprintf("oc create rolebinding mlenv-user-steps -n %s --role=%s %s\n", clients.Namespace, role, subject)
	}
	return fail.Advise(err, next+"oc apply -f docs/examples/rights/user.yaml -n %[1]s   # a file of mlenv's repository\n"+
		"oc create rolebinding mlenv-user-more -n %[1]s --role=mlenv-user %[2]s", clients.Namespace, subject)
}

// MayProvision is Allowed for a user who starts an environment as provision does.
func MayProvision(ctx context.Context, clients *kube.Clients) error {
	rights := install.StepRights(clients.Namespace, "leases", "statefulsets", "services", "secrets", "persistentvolumeclaims", "pods")
	for i := range rights {
		if rights[i].Resource.Resource != "leases" { // the others are deleted only to take over what an earlier holder left
			rights[i].Verbs = slices.DeleteFunc(slices.Clone(rights[i].Verbs), func(verb string) bool { return verb == "delete" })
		}
	}
	return allowed(ctx, clients, "starting an environment", install.RoleName,
		append(rights, AccessTo(clients, "", "pods/portforward", "", "create")))
}

// AccessTo returns verbs on one object of the clients' namespace or, for the name "", on all of a resource.
func AccessTo(clients *kube.Clients, group, resource, name string, verbs ...string) kube.Access {
	of := schema.GroupResource{Group: group, Resource: resource}
	return kube.Access{Resource: of, Namespace: clients.Namespace, Name: name, Verbs: verbs}
}
