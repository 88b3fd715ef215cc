// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
)

// globalNamespace is the namespace whose attachments Multus on OpenShift offers to pods of every namespace.
const globalNamespace = "default"

func (r Request) foreign() []string {
	var found []string
	for _, full := range r.Cluster.Network.RDMA.AttachmentsIn(r.Namespace) {
		if namespace, _, _ := strings.Cut(full, "/"); namespace != globalNamespace && namespace != r.Namespace {
			found = append(found, full)
		}
	}
	return found
}

// originals are the attachments to copy, as namespace/name. The names alone, which mean the environment's namespace, are of namespace
// default there.
func (r Request) originals() []string { return r.Cluster.Network.RDMA.AttachmentsIn(globalNamespace) }

// attachments reads the originals of the cluster file's attachments, in its order. Errors: InvalidInput with all that are missing.
func (r Request) attachments(ctx context.Context, client dynamic.Interface) (
	objects []*unstructured.Unstructured, definitions []attachment.Definition, err error,
) {
	var missing []string
	for _, full := range r.originals() {
		namespace, name, _ := strings.Cut(full, "/")
		object, err := client.Resource(attachment.Resource()).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, full)
		case err != nil:
			return nil, nil, kube.Problem(fmt.Errorf("reading attachment %s: %w", full, err))
		default:
			objects, definitions = append(objects, object), append(definitions, attachment.Read(object))
		}
	}
	if len(missing) > 0 {
		return nil, nil, fail.Advise(fail.Becausef(fail.InvalidInput,
			"reading the attachments of the cluster file: not found: %s", strings.Join(missing, ", ")),
			"oc get network-attachment-definitions -A")
	}
	return objects, definitions, nil
}

// copyTo copies an attachment's configuration and resource into a namespace, without the marks of its operator.
// The ranges stay: whereabouts allocates addresses by range, so the original and the copy share one range.
func copyTo(namespace string, original *unstructured.Unstructured) *unstructured.Unstructured {
	duplicate := &unstructured.Unstructured{}
	duplicate.SetAPIVersion(original.GetAPIVersion())
	duplicate.SetKind(original.GetKind())
	duplicate.SetNamespace(namespace)
	duplicate.SetName(original.GetName())
	duplicate.SetLabels(map[string]string{"app.kubernetes.io/part-of": "ml-dev-env"})
	if resource := original.GetAnnotations()[attachment.ResourceAnnotation]; resource != "" {
		duplicate.SetAnnotations(map[string]string{attachment.ResourceAnnotation: resource})
	}
	if config, found, _ := unstructured.NestedString(original.Object, "spec", "config"); found {
		duplicate.Object["spec"] = map[string]any{"config": config}
	}
	return duplicate
}

func (r Request) warnings(definitions []attachment.Definition) []string {
	var found []string
	for _, overlap := range attachment.Overlaps(definitions) {
		found = append(found, overlap+": give each its own subnet (ipam in its spec.config), otherwise ranks hang")
	}
	for _, d := range definitions {
		switch {
		case d.Resource == "" && !d.OnShared() && len(r.Cluster.Network.RDMA.Resources) > 0:
			found = append(found, fmt.Sprintf("attachment %s names no resource: its annotation %s is missing",
				d.Name, attachment.ResourceAnnotation))
		case d.Resource != "" && r.Cluster.Network.RDMA.Resources[d.Resource] == 0:
			found = append(found, fmt.Sprintf("attachment %s needs resource %s, which network.rdma.resources of the cluster file does not request",
				d.Name, d.Resource))
		}
	}
	return found
}
