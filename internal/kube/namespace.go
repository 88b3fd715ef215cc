package kube

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// NoNamespace is InvalidInput where the namespace certainly does not exist, and nil where it
// does or cannot be looked at. It is for whoever has found nothing in it: the API server
// answers for a namespace that is not there as for an empty one.
func NoNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		// What may not be looked at may be there.
		return nil
	}
	return fail.Advise(fail.Becausef(fail.InvalidInput, "looking for namespace %s: there is none of that name on this cluster", name),
		"oc get projects (then name one by -n), or oc new-project %s", name)
}
