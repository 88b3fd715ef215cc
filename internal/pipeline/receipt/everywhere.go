// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Sources are the places that were read, and what is missing.
type Sources struct{ Read, Missing []string }

// UsagesEverywhere returns the usage in all namespaces that the user may read.
func UsagesEverywhere(ctx context.Context, clients *kube.Clients) (all UsageSums, from Sources, err error) {
	from.Read = []string{"all namespaces"}
	if all, err = from.Add(ctx, clients, metav1.NamespaceAll); fail.ReasonOf(err) != fail.PermissionDenied {
		return all, from, err
	}
	denied := err
	from.Read = nil
	visible := kube.VisibleNamespaces(ctx, clients)
	if len(visible) == 0 {
		visible = []string{clients.Namespace}
	}
	for _, namespace := range visible {
		some, err := from.Add(ctx, clients, namespace)
		switch {
		case fail.ReasonOf(err) == fail.PermissionDenied:
			from.Missing = append(from.Missing, fmt.Sprintf("namespace %s: you may not list configmaps in it", namespace))
		case err != nil:
			return all, from, err
		default:
			from.Read = append(from.Read, namespace)
			all.Merge(some)
		}
	}
	if len(from.Read) == 0 {
		return all, from, denied
	}
	return all, from, nil
}

// Add returns the usage in a namespace, and notes what is not valid.
func (s *Sources) Add(ctx context.Context, clients *kube.Clients, namespace string) (UsageSums, error) {
	all, err := Usages(ctx, clients.Kube, namespace)
	if err != nil && len(all.Runs) == 0 && fail.ReasonOf(err) != fail.InvalidInput {
		return all, err
	}
	if err != nil {
		s.Missing = append(s.Missing, err.Error())
	}
	return all, nil
}
