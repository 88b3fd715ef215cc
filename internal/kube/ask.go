package kube

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Ask decodes what the API server answers at a path for which there is no typed client. It reports whether there was an answer;
// client-go's fake has none.
func Ask(ctx context.Context, client kubernetes.Interface, answer any, path ...string) bool {
	server, ok := client.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok || server == nil {
		return false
	}
	content, err := server.Get().AbsPath(path...).DoRaw(ctx)
	return err == nil && json.Unmarshal(content, answer) == nil
}

// NoNamespace returns an error, InvalidInput, if the namespace does not exist, and nil if it exists or may not be read. Callers use it
// after an empty answer, because the API server answers for a missing namespace as for an empty one.
func NoNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return nil
	}
	return fail.Advise(fail.Becausef(fail.InvalidInput, "looking for namespace %s: it does not exist on this cluster", name),
		"oc get projects (then name one with -n), or oc new-project %s", name)
}
