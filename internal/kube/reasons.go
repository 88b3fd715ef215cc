// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strings"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TimedOutRunningFinally is the reason of a PipelineRun whose tasks have timed out while its finally tasks run, in Tekton 1.15.
// Tekton 1.9 has no reason of its own for that.
const TimedOutRunningFinally = "PipelineRunTimeoutRunningFinally"

// reasons translates the reasons of Kubernetes and Tekton into this project's. Those that name no cause, such as Failed, are missing.
var reasons = map[string]fail.Reason{
	// The kubelet and the container runtime: a container that waits or has terminated.
	"CrashLoopBackOff":           fail.ContainerFailed,
	"ContainerCannotRun":         fail.ContainerFailed,
	"CreateContainerConfigError": fail.ContainerFailed, // Tekton uses it too
	"CreateContainerError":       fail.ContainerFailed,
	"PostStartHookError":         fail.ContainerFailed,
	"PreCreateHookError":         fail.ContainerFailed,
	"PreStartHookError":          fail.ContainerFailed,
	"RunContainerError":          fail.ContainerFailed,
	"StartError":                 fail.ContainerFailed,
	"ErrImageNeverPull":          fail.ImageUnavailable,
	"ErrImagePull":               fail.ImageUnavailable,
	"ImageInspectError":          fail.ImageUnavailable,
	"ImagePullBackOff":           fail.ImageUnavailable,
	"InvalidImageName":           fail.ImageUnavailable,
	"RegistryUnavailable":        fail.ImageUnavailable,
	"SignatureValidationFailed":  fail.ImageUnavailable,
	"OOMKilled":                  fail.OutOfMemory,

	// The kubelet and the scheduler: a pod that its node refused or ended.
	"Evicted":                  fail.NodesUnavailable,
	"NodeShutdown":             fail.NodesUnavailable,
	"UnexpectedAdmissionError": fail.NodesUnavailable,
	"TopologyAffinityError":    fail.NodesUnavailable,
	"SMTAlignmentError":        fail.NodesUnavailable,
	"Preempted":                fail.GPUsUnavailable,

	// Tekton, about the pod of a TaskRun. Versions later than the types of go.mod have the words in quotes: Tekton 1.15 does.
	"ExceededNodeResources":                       fail.NodesUnavailable,
	"ExceededResourceQuota":                       fail.QuotaExceeded,
	"PodAdmissionFailed":                          fail.SecurityRefused,
	"PullImageFailed":                             fail.ImageUnavailable,
	string(v1.TaskRunReasonImagePullFailed):       fail.ImageUnavailable,
	"InitContainerFailed":                         fail.ContainerFailed,
	"InitContainerOOM":                            fail.OutOfMemory,
	string(v1.TaskRunReasonPodCreationFailed):     fail.ContainerFailed,
	"PodEvicted":                                  fail.NodesUnavailable,
	"SidecarFailed":                               fail.ContainerFailed,
	"SidecarOOM":                                  fail.OutOfMemory,
	"StepOOM":                                     fail.OutOfMemory,
	string(v1.PipelineRunReasonInvalidParamValue): fail.InvalidInput, // of a TaskRun too

	// Tekton, of a TaskRun.
	string(v1.TaskRunReasonCancelled):            fail.Cancelled,
	string(v1.TaskRunReasonTimedOut):             fail.TrainingTimeout,
	string(v1.TaskRunReasonFailedResolution):     fail.InvalidInput,
	string(v1.TaskRunReasonFailedValidation):     fail.InvalidInput,
	string(v1.TaskRunReasonTaskFailedValidation): fail.InvalidInput,

	// Tekton, of a PipelineRun.
	string(v1.PipelineRunReasonCancelled):                 fail.Cancelled,
	string(v1.PipelineRunReasonCancelledRunningFinally):   fail.Cancelled,
	string(v1.PipelineRunReasonTimedOut):                  fail.TrainingTimeout,
	TimedOutRunningFinally:                                fail.TrainingTimeout,
	string(v1.PipelineRunReasonCouldntGetPipeline):        fail.InvalidInput,
	string(v1.PipelineRunReasonCouldntGetTask):            fail.InvalidInput,
	string(v1.PipelineRunReasonFailedValidation):          fail.InvalidInput,
	string(v1.PipelineRunReasonInvalidWorkspaceBinding):   fail.InvalidInput,
	string(v1.PipelineRunReasonParamArrayIndexingInvalid): fail.InvalidInput,
	string(v1.PipelineRunReasonParameterMissing):          fail.InvalidInput,
	string(v1.PipelineRunReasonParameterTypeMismatch):     fail.InvalidInput,

	// Tekton, of a task that it skipped.
	string(v1.FinallyTimedOutSkip):     fail.TrainingTimeout,
	string(v1.PipelineTimedOutSkip):    fail.TrainingTimeout,
	string(v1.TasksTimedOutSkip):       fail.TrainingTimeout,
	string(v1.GracefullyCancelledSkip): fail.Cancelled,
}

// ReasonFor translates the reason that Kubernetes or Tekton gives for a condition, a waiting or terminated
// container, a pod, or a skipped task. It returns "" for a reason that names no cause.
func ReasonFor(reason string) fail.Reason {
	// The kubelet refuses a pod with OutOf and the name of the resource.
	if resource, found := strings.CutPrefix(reason, "OutOf"); found && resource != "" {
		return fail.NodesUnavailable
	}
	return reasons[reason]
}
