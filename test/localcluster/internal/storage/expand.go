// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// expand stands in for the CSI project's external-resizer: it writes what that writes to a claim whose request has grown, and to its
// volume. The folder itself needs no action. The API server has refused claims whose class does not allow it.
func expand(ctx context.Context, client kubernetes.Interface, obj any) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return
	}
	size, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	allocated := claim.Status.AllocatedResources[corev1.ResourceStorage]
	if size.Cmp(has) <= 0 || size.Cmp(allocated) == 0 && claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] != "" {
		return // it has the size, or the kubelet has to go on
	}
	if err := expandTo(ctx, client, claim, size); err != nil {
		log.Printf("expanding claim %s/%s to %s: %v", claim.Namespace, claim.Name, size.String(), err)
	}
}

func expandTo(ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim, size resource.Quantity) error {
	volumes := client.CoreV1().PersistentVolumes()
	volume, err := volumes.Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil || volume.Spec.CSI == nil {
		return err
	}
	at := slices.IndexFunc(Drivers, func(d Driver) bool { return d.Name == volume.Spec.CSI.Driver })
	if at < 0 {
		return nil
	}
	if err := patchStatus(ctx, client, claim, growing(size, corev1.PersistentVolumeClaimControllerResizeInProgress,
		corev1.PersistentVolumeClaimResizing)); err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":{"capacity":{"storage":%q}}}`, size.String())
	if _, err := volumes.Patch(ctx, volume.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	if Drivers[at].Shared {
		return patchStatus(ctx, client, claim, grown(size))
	}
	// The kubelet of a node that mounts the volume ends the expansion.
	return patchStatus(ctx, client, claim, growing(size, corev1.PersistentVolumeClaimNodeResizePending,
		corev1.PersistentVolumeClaimFileSystemResizePending))
}

func growing(size resource.Quantity, state corev1.ClaimResourceStatus, condition corev1.PersistentVolumeClaimConditionType) map[string]any {
	return map[string]any{
		"allocatedResources":        map[string]any{"storage": size.String()},
		"allocatedResourceStatuses": map[string]any{"storage": state},
		"conditions":                []any{map[string]any{"type": condition, "status": "True", "lastTransitionTime": metav1.Now()}},
	}
}

func grown(size resource.Quantity) map[string]any {
	return map[string]any{
		"capacity":                  map[string]any{"storage": size.String()},
		"allocatedResources":        map[string]any{"storage": size.String()},
		"allocatedResourceStatuses": nil,
		"conditions":                nil,
	}
}

func patchStatus(ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{},
		"status")
	return err
}
