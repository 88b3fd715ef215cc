// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// memories returns the memories of the runs of the namespace, or of all namespaces that the user may read, and what is missing.
func memories(ctx context.Context, clients *kube.Clients, everywhere bool) (runs []receipt.Memory, missing []string, err error) {
	add := func(namespace string) error {
		some, err := receipt.Memories(ctx, clients.Kube, namespace)
		if err != nil && len(some) == 0 && fail.ReasonOf(err) != fail.InvalidInput {
			return err
		}
		if err != nil {
			missing = append(missing, err.Error())
		}
		runs = append(runs, some...)
		return nil
	}
	if !everywhere {
		err = add(clients.Namespace)
		return runs, missing, err
	}
	denied := add(metav1.NamespaceAll)
	if fail.ReasonOf(denied) != fail.PermissionDenied {
		return runs, missing, denied
	}
	visible := kube.VisibleNamespaces(ctx, clients)
	if len(visible) == 0 {
		visible = []string{clients.Namespace}
	}
	err = denied
	for _, namespace := range visible {
		switch failed := add(namespace); {
		case fail.ReasonOf(failed) == fail.PermissionDenied:
			missing = append(missing, fmt.Sprintf("namespace %s: you may not list configmaps in it", namespace))
		case failed != nil:
			return runs, missing, failed
		default:
			err = nil
		}
	}
	return runs, missing, err
}
