package admin

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/attachment"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// access is what is done to one object.
type access struct {
	resource        schema.GroupResource
	namespace, name string
	verbs           []string
}

func (a access) String() string {
	where := ""
	if a.namespace != "" {
		where = " in " + a.namespace
	}
	return fmt.Sprintf("%s %s%s", a.resource, a.name, where)
}

// accesses are all that applying the plan needs.
func (r Request) accesses(plan Plan) ([]access, error) {
	var needed []access
	for _, object := range plan.objects() {
		where, err := install.Resource(object)
		if err != nil {
			return nil, err
		}
		// Server-side apply of what does not exist asks for create as well.
		needed = append(needed, access{where.GroupResource(), object.GetNamespace(), object.GetName(), []string{"get", "create", "patch"}})
	}
	if scc := r.scc(); scc != "" && scc != OwnSCC {
		needed = append(needed, access{schema.GroupResource{Group: sccGroup, Resource: sccResource}, "", scc, []string{"get"}})
	}
	if r.Reboot {
		needed = append(needed, access{poolResource().GroupResource(), "", r.Pool, []string{"get"}})
	}
	if !r.CopyAttachments {
		return needed, nil
	}
	for _, full := range r.Cluster.Network.RDMA.Attachments {
		namespace, name, _ := strings.Cut(full, "/")
		resource := attachment.Resource().GroupResource()
		needed = append(needed, access{resource, namespace, name, []string{"get"}},
			access{resource, r.Namespace, name, []string{"get", "create", "patch"}})
	}
	return needed, nil
}

// checkRights asks for every right before anything is used, so that nobody who lacks
// one leaves half of the work behind. Errors: PermissionDenied with all that is refused.
func checkRights(ctx context.Context, client kubernetes.Interface, needed []access) error {
	var refused []string
	for _, one := range needed {
		var verbs []string
		for _, verb := range one.verbs {
			allowed, err := kube.IMay(ctx, client, authorizationv1.ResourceAttributes{
				Verb: verb, Group: one.resource.Group, Resource: one.resource.Resource, Namespace: one.namespace, Name: one.name,
			})
			if err != nil {
				return kube.Problem(fmt.Errorf("asking whether %s may be applied: %w", one, err))
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
	return fail.Advise(fail.Becausef(fail.PermissionDenied, "applying: nothing was changed: %d of %d objects are refused:\n  %s",
		len(refused), len(needed), strings.Join(refused, "\n  ")),
		"log in as a cluster administrator, or give one the output of the same command without --apply and with --output=yaml")
}

// covers is "" where live has everything that want says, and else the first path at
// which it has not. What want does not say may be anything, and null is absent.
func covers(live, want any, path string) string {
	fields, ok := want.(map[string]any)
	if !ok {
		if list, ok := want.([]any); ok {
			return coversList(live, list, path)
		}
		if fmt.Sprint(live) != fmt.Sprint(want) {
			return path
		}
		return ""
	}
	have, _ := live.(map[string]any)
	for _, key := range sortedKeys(fields) {
		if fields[key] == nil {
			if have[key] != nil {
				return path + "." + key
			}
			continue
		}
		if difference := covers(have[key], fields[key], path+"."+key); difference != "" {
			return difference
		}
	}
	return ""
}

// coversList compares whole lists: order and length count.
func coversList(live any, want []any, path string) string {
	have, _ := live.([]any)
	if len(have) != len(want) {
		return path
	}
	for i := range want {
		if difference := covers(have[i], want[i], fmt.Sprintf("%s[%d]", path, i)); difference != "" {
			return difference
		}
	}
	return ""
}

// difference is the first path at which the live object is not as wanted.
func difference(live, want *unstructured.Unstructured) string {
	return strings.TrimPrefix(covers(live.Object, want.Object, ""), ".")
}
