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

// globalNamespace is the one whose attachments Multus on OpenShift gives to pods of
// any namespace.
const globalNamespace = "default"

// foreign are the attachments that pods of the namespace cannot name.
func (r Request) foreign() []string {
	var found []string
	for _, full := range r.Cluster.Network.RDMA.Attachments {
		if namespace, _, _ := strings.Cut(full, "/"); namespace != globalNamespace && namespace != r.Namespace {
			found = append(found, full)
		}
	}
	return found
}

// attachments reads those of the cluster file, in its order. Errors: InvalidInput
// with all that are missing.
func (r Request) attachments(ctx context.Context, client dynamic.Interface) ([]*unstructured.Unstructured, []attachment.Definition, error) {
	var objects []*unstructured.Unstructured
	var definitions []attachment.Definition
	var problems []string
	for _, full := range r.Cluster.Network.RDMA.Attachments {
		namespace, name, _ := strings.Cut(full, "/")
		object, err := client.Resource(attachment.Resource()).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			problems = append(problems, fmt.Sprintf("attachment %s is not there", full))
			continue
		} else if err != nil {
			return nil, nil, kube.Problem(fmt.Errorf("reading attachment %s: %w", full, err))
		}
		objects, definitions = append(objects, object), append(definitions, attachment.Read(object))
	}
	if len(problems) > 0 {
		return nil, nil, fail.Advise(fail.Becausef(fail.InvalidInput, "reading the attachments of the cluster file: %s", strings.Join(problems, "; ")),
			"oc get network-attachment-definitions -A")
	}
	return objects, definitions, nil
}

// copyTo is an attachment for another namespace: its configuration and its resource,
// and nothing by which the cluster or an operator would know it as the original. The
// ranges stay: whereabouts keeps account by range, so original and copy share one.
func copyTo(namespace string, original *unstructured.Unstructured) *unstructured.Unstructured {
	made := &unstructured.Unstructured{Object: map[string]any{}}
	made.SetAPIVersion(attachment.Resource().GroupVersion().String())
	made.SetKind("NetworkAttachmentDefinition")
	made.SetNamespace(namespace)
	made.SetName(original.GetName())
	made.SetLabels(commonLabels())
	if resource := original.GetAnnotations()[attachment.ResourceAnnotation]; resource != "" {
		made.SetAnnotations(map[string]string{attachment.ResourceAnnotation: resource})
	}
	if config, found, _ := unstructured.NestedString(original.Object, "spec", "config"); found {
		made.Object["spec"] = map[string]any{"config": config}
	}
	return made
}

// warnings are what is wrong with attachments that are there.
func (r Request) warnings(definitions []attachment.Definition) []string {
	var found []string
	for _, overlap := range attachment.Overlaps(definitions) {
		found = append(found, overlap.String()+": give each a subnet of its own (ipam in its spec.config), or ranks hang")
	}
	for _, d := range definitions {
		switch {
		case d.Resource == "" && len(r.Cluster.Network.RDMA.Resources) > 0:
			found = append(found, fmt.Sprintf("attachment %s names no resource: its annotation %s is missing", d.Name, attachment.ResourceAnnotation))
		case d.Resource != "" && r.Cluster.Network.RDMA.Resources[d.Resource] == 0:
			found = append(found, fmt.Sprintf("attachment %s is of resource %s, which network.rdma.resources of the cluster file does not ask for", d.Name, d.Resource))
		}
	}
	return found
}
