// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"encoding/json"
	"testing"

	securityv1 "github.com/openshift/api/security/v1"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// This test relies on the fake clientset only for storing objects.
func TestNamespacesGetBlocksOfTheirOwn(t *testing.T) {
	taken := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "taken", Annotations: namespaceAnnotations(firstUID + 4*blockSize)}}
	s := &server{clients: Clients{Kube: fake.NewClientset(taken)}, next: firstUID}
	seen := map[string]bool{taken.Annotations[securityv1.UIDRangeAnnotation]: true}
	for _, name := range []string{"a", "b", "c"} {
		raw, err := json.Marshal(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"kept": "yes"}}})
		if err != nil {
			t.Fatal(err)
		}
		request := &admissionv1.AdmissionRequest{Name: name}
		request.Object.Raw = raw
		patch, err := s.admitNamespace(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		var operations []struct {
			Path  string
			Value map[string]string
		}
		if err := json.Unmarshal(patch, &operations); err != nil {
			t.Fatal(err)
		}
		annotations := operations[0].Value
		if r := annotations[securityv1.UIDRangeAnnotation]; r == "" || seen[r] {
			t.Errorf("%s was given the range %q; taken: %v", name, r, seen)
		}
		seen[annotations[securityv1.UIDRangeAnnotation]] = true
		if annotations["kept"] != "yes" {
			t.Errorf("%s lost its own annotation: %v", name, annotations)
		}
	}
	request := &admissionv1.AdmissionRequest{Name: "openshift-monitoring"}
	if patch, err := s.admitNamespace(t.Context(), request); patch != nil || err != nil {
		t.Errorf("the cluster's own namespace was changed: %s, %v", patch, err)
	}
}

func TestADryRunTakesNoBlock(t *testing.T) {
	s := &server{clients: Clients{Kube: fake.NewClientset()}, next: firstUID}
	request := &admissionv1.AdmissionRequest{Name: "a", DryRun: new(true)}
	request.Object.Raw = []byte("{}")
	first, err := s.admitNamespace(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	request.DryRun = new(false)
	second, err := s.admitNamespace(t.Context(), request)
	if err != nil || string(first) != string(second) {
		t.Errorf("after a dry run that saw %s a namespace was given %s (%v)", first, second, err)
	}
}
