package podagent

import (
	"context"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Allowed asks for the rights that a check needs, all at once. Error: PermissionDenied
// with those that are missing and the commands that grant them. Where it cannot be
// asked, the requests themselves will tell.
func Allowed(ctx context.Context, client kubernetes.Interface, namespace string, s Selection) error {
	look := "get"
	if s.isSelector() {
		look = "list"
	}
	var missing, grants []string
	user := ""
	for _, right := range []struct{ verb, resource string }{{look, "pods"}, {"create", "pods/exec"}, {"create", "pods/portforward"}} {
		resource, sub, _ := strings.Cut(right.resource, "/")
		allowed, err := kube.IMay(ctx, client, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: right.verb, Resource: resource, Subresource: sub})
		if err != nil {
			return ctx.Err()
		}
		if allowed {
			continue
		}
		if user == "" {
			user = kube.WhoAsks(ctx, client)
		}
		missing = append(missing, right.verb+" "+right.resource)
		grants = append(grants, kube.Grant(user, right.verb, right.resource, "", namespace))
	}
	if len(missing) == 0 {
		return nil
	}
	return fail.Advise(fail.Becausef(fail.PermissionDenied, "checking pods %s: %s may not %s in namespace %s", s.Pods, user, strings.Join(missing, ", "), namespace),
		"%s", strings.Join(grants, "\n"))
}
