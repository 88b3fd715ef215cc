// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// A claim whose request has grown gets its size at once from a driver that many nodes share, and from the other one once a pod mounts it.
func TestExpand(t *testing.T) {
	list := func(size string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
	for _, tc := range []struct {
		driver, request, has string
		capacity, volume     string
		status               corev1.ClaimResourceStatus
		condition            corev1.PersistentVolumeClaimConditionType
	}{
		{driver: "nfs.csi.k8s.io", request: "2Gi", has: "1Gi", capacity: "2Gi", volume: "2Gi"},
		{driver: "openshift-storage.rbd.csi.ceph.com", request: "2Gi", has: "1Gi", capacity: "1Gi", volume: "2Gi",
			status: corev1.PersistentVolumeClaimNodeResizePending, condition: corev1.PersistentVolumeClaimFileSystemResizePending},
		{driver: "nfs.csi.k8s.io", request: "1Gi", has: "1Gi", capacity: "1Gi", volume: "1Gi"},
		{driver: "another", request: "2Gi", has: "1Gi", capacity: "1Gi", volume: "1Gi"},
	} {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv", Resources: corev1.VolumeResourceRequirements{Requests: list(tc.request)}},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: list(tc.has)},
		}
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			Capacity: list(tc.has), PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: tc.driver}},
		}}
		client := fake.NewClientset(claim, volume)
		for range 2 { // its own changes are events, too
			expand(t.Context(), client, claim)
			var err error
			if claim, err = client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "claim", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		volume, err := client.CoreV1().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var condition corev1.PersistentVolumeClaimConditionType
		for _, c := range claim.Status.Conditions {
			condition = c.Type
		}
		if capacity := claim.Status.Capacity.Storage().String(); capacity != tc.capacity ||
			volume.Spec.Capacity.Storage().String() != tc.volume ||
			claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] != tc.status || condition != tc.condition {
			t.Errorf("%s to %s: claim %+v, volume %v", tc.driver, tc.request, claim.Status, volume.Spec.Capacity)
		}
	}
}
