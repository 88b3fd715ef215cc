package kube

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Access are verbs on one object or, without a name, on all objects of a resource.
type Access struct {
	Resource        schema.GroupResource
	Namespace, Name string
	Verbs           []string
}

func (a Access) String() string {
	text := a.Resource.String()
	if a.Name != "" {
		text += " " + a.Name
	}
	if a.Namespace != "" {
		text += " in " + a.Namespace
	}
	return text
}

// CheckAccess checks every right before any is used, so that a missing one does not leave half of the work done. doing is
// the work, as in "applying".
//
// Errors: PermissionDenied with all that is refused.
func CheckAccess(ctx context.Context, client kubernetes.Interface, doing string, needed []Access) error {
	var refused []string
	for _, one := range needed {
		var verbs []string
		for _, verb := range one.Verbs {
			allowed, err := IMay(ctx, client, authorizationv1.ResourceAttributes{
				Verb: verb, Group: one.Resource.Group, Resource: one.Resource.Resource, Namespace: one.Namespace, Name: one.Name,
			})
			if err != nil {
				return Problem(fmt.Errorf("asking for the right to %s %s: %w", verb, one, err))
			}
			if !allowed {
				verbs = append(verbs, verb)
			}
		}
		if len(verbs) > 0 {
			refused = append(refused, fmt.Sprintf("%s: may not %s", one, strings.Join(verbs, ", ")))
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return fail.Becausef(fail.PermissionDenied, "%s: nothing was changed: %d of %d objects are refused:\n  %s",
		doing, len(refused), len(needed), strings.Join(refused, "\n  "))
}
