// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	securityv1 "github.com/openshift/api/security/v1"
	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/openshift/scc"
)

// admitPod chooses the constraints for a new pod, sets their defaults in the pod, and annotates the pod with their
// name.
func (s *server) admitPod(ctx context.Context, request *admissionv1.AdmissionRequest) ([]byte, error) {
	pod, ignored, err := podOf(request.Object.Raw, request.Namespace)
	if err != nil || ignored {
		return nil, err
	}
	answer, err := s.choose(ctx, request, pod, false)
	if err != nil {
		return nil, forbidden(pod, err)
	}
	if answer.Pod.Annotations == nil {
		answer.Pod.Annotations = map[string]string{}
	}
	answer.Pod.Annotations[securityv1.ValidatedSCCAnnotation] = answer.Name
	answer.Pod.Annotations[securityv1.ValidatedSCCSubjectTypeAnnotation] = string(answer.Subject)
	namespace, err := s.namespace(ctx, request.Namespace)
	if err != nil {
		return nil, err
	}
	if namespace.Annotations[noPodIndex] == "true" {
		delete(answer.Pod.Labels, appsv1.PodIndexLabel)
	}
	return podPatch(pod, answer.Pod)
}

// noPodIndex is the annotation of namespaces whose pods have no label with their index, as before Kubernetes 1.28.
const noPodIndex = "localcluster/no-pod-index"

// checkPod checks a pod after all other admission plugins have changed it, and after updates of its spec. Constraints
// must then allow the pod without changes.
func (s *server) checkPod(ctx context.Context, request *admissionv1.AdmissionRequest) ([]byte, error) {
	pod, ignored, err := podOf(request.Object.Raw, request.Namespace)
	if err != nil || ignored {
		return nil, err
	}
	required := pod.Annotations[securityv1.RequiredSCCAnnotation]
	if request.Operation == admissionv1.Update {
		old, _, err := podOf(request.OldObject.Raw, request.Namespace)
		if err != nil {
			return nil, err
		}
		if required != old.Annotations[securityv1.RequiredSCCAnnotation] {
			return nil,
				forbidden(pod, fmt.Errorf("invalid change of required security context constraint annotation: %s", securityv1.RequiredSCCAnnotation))
		}
		if equality.Semantic.DeepEqual(pod.Spec, old.Spec) {
			return nil, nil
		}
	}
	if stamp := pod.Annotations[securityv1.ValidatedSCCAnnotation]; required != "" && required != stamp {
		return nil, forbidden(pod, fmt.Errorf("required scc/%s does not match the suggested scc/%s", required, stamp))
	}
	if _, err := s.choose(ctx, request, pod, true); err != nil {
		return nil, forbidden(pod, err)
	}
	return nil, nil
}

// podOf reads a pod. ignored reports whether the constraints do not apply to it.
func podOf(raw []byte, namespace string) (pod *corev1.Pod, ignored bool, err error) {
	if err := json.Unmarshal(raw, &pod); err != nil {
		return nil, false, err
	}
	windows := pod.Spec.OS != nil && pod.Spec.OS.Name == corev1.Windows
	return pod, windows || !ordinary(namespace), nil
}

// forbidden returns the error in the API server's form. The API server itself does not bring a webhook's error into
// this form.
func forbidden(pod *corev1.Pod, err error) error {
	name := pod.Name
	if name == "" {
		name = pod.GenerateName
	}
	return fmt.Errorf("pods %q is forbidden: %w", name, err)
}

func (s *server) choose(ctx context.Context, request *admissionv1.AdmissionRequest, pod *corev1.Pod, unchanged bool) (scc.Answer, error) {
	namespace, err := s.namespace(ctx, request.Namespace)
	if err != nil {
		return scc.Answer{}, err
	}
	question := scc.Question{Pod: pod, Namespace: namespace, Unchanged: unchanged, May: s.asker(request, pod.Spec.ServiceAccountName).may}
	for _, object := range s.constraints.GetStore().List() {
		constraints, ok := object.(*securityv1.SecurityContextConstraints)
		if !ok {
			return scc.Answer{}, errors.New("the store of constraints holds something else")
		}
		question.Constraints = append(question.Constraints, constraints)
	}
	return scc.Choose(ctx, question)
}

// namespace asks the API server if the watch does not have the namespace yet, as for the first pod of a new namespace.
func (s *server) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns, err := s.namespaces.Get(name)
	if err != nil || ns.Annotations[securityv1.UIDRangeAnnotation] == "" {
		ns, err = s.clients.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	}
	return ns, err
}

// patchOperation is one operation of a JSON patch (RFC 6902).
type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// podPatch returns the patch from before to after, for the fields that this package changes.
func podPatch(before, after *corev1.Pod) ([]byte, error) {
	var patch []patchOperation
	add := func(path string, old, value any) {
		if !equality.Semantic.DeepEqual(old, value) {
			patch = append(patch, patchOperation{Op: "add", Path: path, Value: value})
		}
	}
	add("/metadata/labels", before.Labels, after.Labels)
	add("/metadata/annotations", before.Annotations, after.Annotations)
	add("/spec/securityContext", before.Spec.SecurityContext, after.Spec.SecurityContext)
	for i := range after.Spec.InitContainers {
		add(fmt.Sprintf("/spec/initContainers/%d/securityContext", i),
			before.Spec.InitContainers[i].SecurityContext, after.Spec.InitContainers[i].SecurityContext)
	}
	for i := range after.Spec.Containers {
		add(fmt.Sprintf("/spec/containers/%d/securityContext", i),
			before.Spec.Containers[i].SecurityContext, after.Spec.Containers[i].SecurityContext)
	}
	if len(patch) == 0 {
		return nil, nil
	}
	return json.Marshal(patch)
}
