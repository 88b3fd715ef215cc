// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	buildv1 "github.com/openshift/api/build/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildapi"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildstatus"
)

// outcome is the phase of a build, as derived from its pod.
type outcome struct {
	phase   buildv1.BuildPhase
	reason  buildv1.StatusReason
	message string
	report  buildstatus.Report
}

func outcomeFor(phase buildv1.BuildPhase, reason buildv1.StatusReason) outcome {
	return outcome{phase: phase, reason: reason, message: buildstatus.Message(reason)}
}

// observe reads the pod of a build that is Pending or Running.
func observe(pod *corev1.Pod) outcome {
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		return observeSuccess(pod)
	case corev1.PodFailed:
		return observeFailure(pod)
	case corev1.PodRunning:
		return outcomeFor(buildv1.BuildPhaseRunning, "")
	}
	// A pod is not Running before its init containers have ended. Its build is Running as soon as the first init
	// container fetches the source.
	for _, s := range pod.Status.InitContainerStatuses {
		if s.Name == buildapi.SourceContainer && (s.State.Running != nil || s.State.Terminated != nil) {
			return outcomeFor(buildv1.BuildPhaseRunning, "")
		}
	}
	return outcomeFor(buildv1.BuildPhasePending, "")
}

func observeSuccess(pod *corev1.Pod) outcome {
	if len(pod.Status.ContainerStatuses) == 0 {
		return outcomeFor(buildv1.BuildPhaseError, buildv1.StatusReasonNoBuildContainerStatus)
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Terminated != nil && s.State.Terminated.ExitCode != 0 {
			return outcomeFor(buildv1.BuildPhaseError, buildv1.StatusReasonFailedContainer)
		}
	}
	result := outcomeFor(buildv1.BuildPhaseComplete, "")
	result.report = reportOf(pod)
	return result
}

func observeFailure(pod *corev1.Pod) outcome {
	report := reportOf(pod)
	result := outcomeFor(buildv1.BuildPhaseFailed, buildv1.StatusReasonGenericBuildFailed)
	switch {
	case report.Reason != "":
		// On OpenShift the builder writes this to the Build itself.
		result = outcomeFor(buildv1.BuildPhaseFailed, report.Reason)
	case killedForMemory(pod):
		result = outcomeFor(buildv1.BuildPhaseFailed, buildv1.StatusReasonOutOfMemoryKilled)
	case pod.Status.Reason == "Evicted":
		result = outcome{phase: buildv1.BuildPhaseFailed, reason: buildv1.StatusReasonBuildPodEvicted, message: pod.Status.Message}
	case pod.DeletionTimestamp != nil:
		result = outcomeFor(buildv1.BuildPhaseError, buildv1.StatusReasonBuildPodDeleted)
	}
	result.report = report
	return result
}

func killedForMemory(pod *corev1.Pod) bool {
	for _, s := range statusesOf(pod) {
		if s.State.Terminated != nil && s.State.Terminated.Reason == "OOMKilled" {
			return true
		}
	}
	return pod.Status.Reason == "OOMKilled"
}

func statusesOf(pod *corev1.Pod) []corev1.ContainerStatus {
	return append(append([]corev1.ContainerStatus{}, pod.Status.InitContainerStatuses...), pod.Status.ContainerStatuses...)
}

// reportOf joins the reports of the pod's containers: the stages of all, the reason and log of the one that failed, and
// the digest of the image.
func reportOf(pod *corev1.Pod) buildstatus.Report {
	var joined buildstatus.Report
	for _, s := range statusesOf(pod) {
		if s.State.Terminated == nil {
			continue
		}
		report := buildstatus.Decode(s.State.Terminated.Message)
		if s.State.Terminated.ExitCode != 0 {
			joined.Reason, joined.LogTail = report.Reason, report.LogTail
		}
		joined.Stages = append(joined.Stages, report.Stages...)
		if report.ImageDigest != "" {
			joined.ImageDigest = report.ImageDigest
		}
	}
	return joined
}
