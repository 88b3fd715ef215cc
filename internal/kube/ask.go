// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// GetRaw decodes what the API server answers at a path for which there is no typed client. It reports whether there was an answer;
// client-go's fake has none.
func GetRaw(ctx context.Context, client kubernetes.Interface, answer any, path ...string) bool {
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

// VisibleNamespaces returns the namespaces that the user may see: OpenShift lists a user's own as projects. It returns none if the user may
// list neither.
func VisibleNamespaces(ctx context.Context, clients *Clients) []string {
	if found, err := clients.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err == nil {
		return humanize.Each(found.Items, func(n corev1.Namespace) string { return n.Name })
	}
	if clients.Objects == nil {
		return nil
	}
	projects := schema.GroupVersionResource{Group: "project.openshift.io", Version: "v1", Resource: "projects"}
	found, err := clients.Objects.Resource(projects).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	return humanize.Each(found.Items, func(n unstructured.Unstructured) string { return n.GetName() })
}
