// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"testing"

	buildv1 "github.com/openshift/api/build/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildstatus"
)

func exited(code int32, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: dockerBuild, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message},
	}}
}

func podIn(phase corev1.PodPhase, statuses ...corev1.ContainerStatus) *corev1.Pod {
	return &corev1.Pod{Status: corev1.PodStatus{Phase: phase, ContainerStatuses: statuses}}
}

func TestObserve(t *testing.T) {
	now := metav1.Now()
	report := string(buildstatus.Report{Reason: buildv1.StatusReasonDockerBuildFailed}.Encode(4096))
	fetching := podIn(corev1.PodPending)
	fetching.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		Name: "git-clone", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	evicted := podIn(corev1.PodFailed)
	evicted.Status.Reason, evicted.Status.Message = "Evicted", "too much disk"
	deleted := podIn(corev1.PodFailed, exited(143, "Error", ""))
	deleted.DeletionTimestamp = &now
	deadline := podIn(corev1.PodFailed, exited(143, "Error", ""))
	deadline.Status.Reason = "DeadlineExceeded"
	tests := []struct {
		name   string
		pod    *corev1.Pod
		phase  buildv1.BuildPhase
		reason buildv1.StatusReason
	}{
		{"not begun", podIn(corev1.PodPending), buildv1.BuildPhasePending, ""},
		{"fetching the source", fetching, buildv1.BuildPhaseRunning, ""},
		{"running", podIn(corev1.PodRunning), buildv1.BuildPhaseRunning, ""},
		{"done", podIn(corev1.PodSucceeded, exited(0, "Completed", "{}")), buildv1.BuildPhaseComplete, ""},
		{"done without containers", podIn(corev1.PodSucceeded), buildv1.BuildPhaseError, buildv1.StatusReasonNoBuildContainerStatus},
		{"failed with a report", podIn(corev1.PodFailed, exited(1, "Error", report)), buildv1.BuildPhaseFailed,
			buildv1.StatusReasonDockerBuildFailed},
		{"failed without", podIn(corev1.PodFailed, exited(1, "Error", "panic")), buildv1.BuildPhaseFailed,
			buildv1.StatusReasonGenericBuildFailed},
		{"out of memory", podIn(corev1.PodFailed, exited(137, "OOMKilled", "")), buildv1.BuildPhaseFailed, buildv1.StatusReasonOutOfMemoryKilled},
		{"out of memory, the first of two steps", podIn(corev1.PodFailed, exited(1, "OOMKilled", report)), buildv1.BuildPhaseFailed,
			buildv1.StatusReasonDockerBuildFailed},
		{"evicted", evicted, buildv1.BuildPhaseFailed, buildv1.StatusReasonBuildPodEvicted},
		{"deleted", deleted, buildv1.BuildPhaseError, buildv1.StatusReasonBuildPodDeleted},
		{"deadline", deadline, buildv1.BuildPhaseFailed, buildv1.StatusReasonGenericBuildFailed},
	}
	for _, test := range tests {
		got := observe(test.pod)
		if got.phase != test.phase || got.reason != test.reason {
			t.Errorf("%s: %s %s, want %s %s", test.name, got.phase, got.reason, test.phase, test.reason)
		}
		if (test.reason != "") != (got.message != "") {
			t.Errorf("%s: the message is %q", test.name, got.message)
		}
	}
}
