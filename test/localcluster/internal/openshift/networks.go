// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	networksAnnotation = "k8s.v1.cni.cncf.io/networks"
	resourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"
)

// network is a network that a pod's annotation names.
type network struct{ Name, Namespace string }

// injectResources stands in for OpenShift's network resources injector
// (k8snetworkplumbingwg/network-resources-injector:pkg/webhook): for each attachment that a pod names, it adds a
// request for one of the attachment's resource. It refuses the pod if an attachment is missing. Unlike the real one, it
// adds no volume podnetinfo and no node selectors.
func (s *server) injectResources(ctx context.Context, request *admissionv1.AdmissionRequest) ([]byte, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(request.Object.Raw, &pod); err != nil {
		return nil, err
	}
	networks := parseNetworks(pod.Annotations[networksAnnotation], request.Namespace)
	if len(networks) == 0 || len(pod.Spec.Containers) == 0 {
		return nil, nil
	}
	count := map[corev1.ResourceName]int64{}
	for _, n := range networks {
		name, err := s.resourceOf(ctx, n)
		if err != nil {
			return nil, fmt.Errorf("could not find network attachment definition '%s/%s': could not get Network Attachment Definition "+
				"%[1]s/%[2]s: %w", n.Namespace, n.Name, err)
		}
		if name != "" {
			count[name]++
		}
	}
	return resourcePatch(pod.Spec.Containers[0].Resources, count)
}

// parseNetworks reads "default/eno5np0-network@net1, other" or the same as JSON.
func parseNetworks(annotation, namespace string) []network {
	var networks []network
	if json.Unmarshal([]byte(annotation), &networks) != nil {
		for text := range strings.SplitSeq(annotation, ",") {
			text, _, _ = strings.Cut(strings.TrimSpace(text), "@")
			n := network{Name: text}
			if in, name, ok := strings.Cut(text, "/"); ok {
				n = network{Namespace: in, Name: name}
			}
			if n.Name != "" {
				networks = append(networks, n)
			}
		}
	}
	for i := range networks {
		if networks[i].Namespace == "" {
			networks[i].Namespace = namespace
		}
	}
	return networks
}

// resourceOf returns the resource of an attachment, "" for none.
func (s *server) resourceOf(ctx context.Context, n network) (corev1.ResourceName, error) {
	path := fmt.Sprintf("/apis/k8s.cni.cncf.io/v1/namespaces/%s/network-attachment-definitions/%s", n.Namespace, n.Name)
	content, err := s.clients.Kube.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx)
	if err != nil {
		return "", err
	}
	var attachment metav1.PartialObjectMetadata
	if err := json.Unmarshal(content, &attachment); err != nil {
		return "", err
	}
	return corev1.ResourceName(attachment.Annotations[resourceAnnotation]), nil
}

// resourcePatch returns the patch that makes the container request these amounts, in place of its own amounts of the
// same resources.
func resourcePatch(resources corev1.ResourceRequirements, count map[corev1.ResourceName]int64) ([]byte, error) {
	if len(count) == 0 {
		return nil, nil
	}
	var patch []patchOperation
	for _, list := range []struct {
		path string
		old  corev1.ResourceList
	}{{"/spec/containers/0/resources/requests", resources.Requests}, {"/spec/containers/0/resources/limits", resources.Limits}} {
		wanted := corev1.ResourceList{}
		for name, quantity := range list.old {
			wanted[name] = quantity
		}
		for name, n := range count {
			wanted[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
		patch = append(patch, patchOperation{Op: "add", Path: list.path, Value: wanted})
	}
	return json.Marshal(patch)
}
