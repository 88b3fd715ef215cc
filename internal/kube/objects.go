// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// HasEnded reports whether a pod has succeeded or failed, and so holds nothing any more.
func HasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// IsReady reports whether a pod is ready and not being deleted.
func IsReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// LastTime returns when an event was reported last: repeated events have their times in several fields.
func LastTime(event *corev1.Event) (last time.Time) {
	times := []time.Time{event.FirstTimestamp.Time, event.LastTimestamp.Time, event.EventTime.Time}
	if event.Series != nil {
		times = append(times, event.Series.LastObservedTime.Time)
	}
	return slices.MaxFunc(times, time.Time.Compare)
}

// ClaimSize returns the capacity of a claim's volume, or what an unbound claim requests.
func ClaimSize(claim *corev1.PersistentVolumeClaim) string {
	size := claim.Status.Capacity[corev1.ResourceStorage]
	if size.IsZero() {
		size = claim.Spec.Resources.Requests[corev1.ResourceStorage]
	}
	return size.String()
}
