// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Mounts reports whether a pod mounts a claim.
func Mounts(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}
