// SPDX-License-Identifier: Apache-2.0

// Package kueue is what ml-dev-env knows about Kueue: by what it marks an environment that it manages, and how to read its
// objects. Versions differ in both. By Kueue's sources, with names that begin with kueue.x-k8s.io/:
//
//   - Label managed: 0.11.4 to 0.15.5, 0.16.0 and 0.16.1 put it on the pod template; 0.15.6, 0.16.2 and later only on the pods.
//   - Annotation pod-suspending-parent: on the template since 0.10.0.
//   - Queue, group and label priority-class: on the template as long as managed is, and before; later on the pods, soon after they exist.
//     Kueue copies the priority since 0.9.4 and 0.10.2.
//   - The group's name: a label until 0.17, an annotation since 0.18. The feature gate WorkloadIdentifierAnnotations, since 0.17.4 and on
//     since 0.18, makes it an annotation.
//   - Scheduling gates of the pods: admission; since 0.14 also topology, of the feature gate TopologyAwareScheduling.
//   - API: v1beta1 until 0.14; 0.15 and later also serve v1beta2, which is preferred, because v1beta1 is deprecated since 0.15.1.
//
// test/localcluster runs 0.14.8, 0.17.0 and 0.19.2, which differ in these points.
package kueue

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Group and Visibility are Kueue's API groups.
const (
	Group      = "kueue.x-k8s.io"
	Visibility = "visibility.kueue.x-k8s.io"
)

const (
	// QueueLabel on a StatefulSet makes Kueue admit its pods as one group.
	QueueLabel = Group + "/queue-name"
	// PriorityLabel on a StatefulSet names the WorkloadPriorityClass of its pods.
	PriorityLabel = Group + "/priority-class"
	// DefaultQueue is the LocalQueue to which Kueue adds a StatefulSet without a queue, if the namespace has it.
	DefaultQueue = "default"
	// TopologyAnnotation of a pod template names the node label whose values are domains. Kueue places all pods in one
	// domain if it can. No quota is ever enough if the label is not a level of the flavour's topology.
	TopologyAnnotation = Group + "/podset-preferred-topology"
)

const (
	// suspendingParent is an annotation of the pod template, whose pods Kueue's webhook then holds.
	suspendingParent = Group + "/pod-suspending-parent"
	// groupName is a label or an annotation.
	groupName = Group + "/pod-group-name"
)

// Manages reports whether Kueue holds the pods of a template, which its webhook has seen, until it admits them. No label
// shows it: some versions put kueue.x-k8s.io/managed on the template, and others only on the pods.
func Manages(template corev1.PodTemplateSpec) bool {
	return template.Annotations[suspendingParent] != "" || groupOf(template.ObjectMeta) != "" || Holds(&template.Spec)
}

// Holds reports whether a pod has a scheduling gate of Kueue.
func Holds(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.SchedulingGates, func(gate corev1.PodSchedulingGate) bool {
		return strings.HasPrefix(gate.Name, Group+"/")
	})
}

// WorkloadOf returns the name of the Workload to which Kueue counts a pod, "" if the pod has none yet.
func WorkloadOf(pod *corev1.Pod) string { return groupOf(pod.ObjectMeta) }

func groupOf(object metav1.ObjectMeta) string {
	return cmp.Or(object.Annotations[groupName], object.Labels[groupName])
}

// versions of both API groups, the newest first. A version of Kueue serves the last one, or both.
var versions = []string{"v1beta2", "v1beta1"}

// Get reads an object in the newest version that is served. namespace is "" for kinds without.
func Get(ctx context.Context, client dynamic.Interface, resource, namespace, name string) (found *unstructured.Unstructured, err error) {
	for _, version := range versions {
		kind := schema.GroupVersionResource{Group: Group, Version: version, Resource: resource}
		found, err = client.Resource(kind).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			break
		}
	}
	return found, err
}

// GetNewest decodes what the API server answers at a path of a group, in the newest version that is served. It reports whether
// there was an answer.
func GetNewest(ctx context.Context, client kubernetes.Interface, answer any, group string, path ...string) bool {
	return slices.ContainsFunc(versions, func(version string) bool {
		return kube.GetRaw(ctx, client, answer, slices.Concat([]string{"/apis", group, version}, path)...)
	})
}
