// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// mayRun refuses a run that its user could start but not see to its end, or not cancel. With folder the user sends one; a run that is only
// started needs less. Rights without which mlenv only explains less are not among them. Errors: PermissionDenied with all that is missing.
func mayRun(ctx context.Context, clients *kube.Clients, environment string, folder, followed bool) error {
	named := func(group, resource, name string, verbs ...string) kube.Access {
		of := schema.GroupResource{Group: group, Resource: resource}
		return kube.Access{Resource: of, Namespace: clients.Namespace, Name: name, Verbs: verbs}
	}
	right := func(group, resource string, verbs ...string) kube.Access { return named(group, resource, "", verbs...) }
	needed := []kube.Access{right("tekton.dev", "pipelineruns", "create")}
	if followed || folder {
		needed = []kube.Access{right("tekton.dev", "pipelineruns", "create", "get", "list", "watch", "patch"),
			right("tekton.dev", "taskruns", "list", "watch")}
	}
	if folder {
		names := env.Of(clients, environment)
		needed = append(needed, named("apps", "statefulsets", names.Name, "get"), named("", "secrets", names.ClientSecret, "get"),
			right("", "pods/portforward", "create"))
	}
	err := kube.CheckAccess(ctx, clients.Kube, "starting a run", needed)
	if fail.ReasonOf(err) != fail.PermissionDenied {
		return nil // nobody knows, and the API server decides
	}
	return fail.Advise(err, "oc apply -f examples/rights/user.yaml -n %[1]s   # a file of mlenv's repository\n"+
		"oc create rolebinding mlenv-user-more -n %[1]s --role=mlenv-user %[2]s",
		clients.Namespace, kube.Subject(kube.WhoAsks(ctx, clients.Kube)))
}
