package admin

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
)

// accesses are all that applying the plan needs.
func (r Request) accesses(plan Plan) ([]kube.Access, error) {
	var needed []kube.Access
	for _, object := range plan.objects() {
		where, err := install.Resource(object)
		if err != nil {
			return nil, err
		}
		// Server-side apply of what does not exist asks for create as well.
		needed = append(needed, kube.Access{Resource: where.GroupResource(), Namespace: object.GetNamespace(), Name: object.GetName(), Verbs: []string{"get", "create", "patch"}})
	}
	if scc := r.scc(); scc != "" && scc != OwnSCC {
		needed = append(needed, kube.Access{Resource: schema.GroupResource{Group: sccGroup, Resource: sccResource}, Name: scc, Verbs: []string{"get"}})
	}
	if r.Reboot {
		needed = append(needed, kube.Access{Resource: poolResource().GroupResource(), Name: r.Pool, Verbs: []string{"get"}})
	}
	if !r.CopyAttachments {
		return needed, nil
	}
	for _, full := range r.Cluster.Network.RDMA.Attachments {
		namespace, name, _ := strings.Cut(full, "/")
		resource := attachment.Resource().GroupResource()
		needed = append(needed, kube.Access{Resource: resource, Namespace: namespace, Name: name, Verbs: []string{"get"}},
			kube.Access{Resource: resource, Namespace: r.Namespace, Name: name, Verbs: []string{"get", "create", "patch"}})
	}
	return needed, nil
}

// checkRights asks for every right before anything is used.
func checkRights(ctx context.Context, client kubernetes.Interface, needed []kube.Access) error {
	if err := kube.CheckAccess(ctx, client, "applying", needed); err != nil {
		return fail.Advise(err, "log in as a cluster administrator, or give one the output of the same command without --apply and with --output=yaml")
	}
	return nil
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
