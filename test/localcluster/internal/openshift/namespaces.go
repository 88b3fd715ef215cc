// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	securityv1 "github.com/openshift/api/security/v1"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/openshift/scc"
)

// Each namespace gets a block of IDs, as on OpenShift.
const (
	firstUID  = 1000650000
	blockSize = 10000
)

// ordinary reports whether a namespace belongs to users. The server ignores the cluster's own namespaces, as OpenShift
// ignores namespaces with a run level.
func ordinary(namespace string) bool {
	switch namespace {
	case "default", "tekton-pipelines", "tekton-pipelines-resolvers":
		return false
	}
	return !strings.HasPrefix(namespace, "kube-") && !strings.HasPrefix(namespace, "openshift")
}

// namespaceAnnotations returns the annotations that a namespace with that block gets.
func namespaceAnnotations(first int64) map[string]string {
	block := fmt.Sprintf("%d/%d", first, blockSize)
	n := (first - firstUID) / blockSize
	return map[string]string{
		securityv1.UIDRangeAnnotation:           block,
		securityv1.SupplementalGroupsAnnotation: block,
		securityv1.MCSAnnotation:                fmt.Sprintf("s0:c%d,c%d", 26+n/26, n%26),
	}
}

func (s *server) admitNamespace(_ context.Context, request *admissionv1.AdmissionRequest) ([]byte, error) {
	if !ordinary(request.Name) {
		return nil, nil
	}
	var ns corev1.Namespace
	if err := json.Unmarshal(request.Object.Raw, &ns); err != nil {
		return nil, err
	}
	if ns.Annotations[securityv1.UIDRangeAnnotation] != "" {
		return nil, nil
	}
	first, err := s.allocate(request.DryRun != nil && *request.DryRun)
	if err != nil {
		return nil, err
	}
	annotations := namespaceAnnotations(first)
	maps.Copy(annotations, ns.Annotations)
	return json.Marshal([]patchOperation{{Op: "add", Path: "/metadata/annotations", Value: annotations}})
}

// allocate returns a block that no namespace has. The field next counts the blocks of this process, and the cluster's
// namespaces have the blocks of earlier processes. A dry run returns a block without reserving it.
func (s *server) allocate(dryRun bool) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.clients.Kube.CoreV1().Namespaces().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("allocating UIDs: %w", err)
	}
	for _, ns := range list.Items {
		if block, err := scc.ParseBlock(ns.Annotations[securityv1.UIDRangeAnnotation]); err == nil && block.Min >= s.next {
			s.next = block.Min + blockSize
		}
	}
	first := s.next
	if !dryRun {
		s.next += blockSize
	}
	return first, nil
}
