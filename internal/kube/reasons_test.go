// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestReasons translates each reason of the table once, and names the source file that defines it, in Kubernetes 1.35 and
// Tekton Pipelines 1.15.
func TestReasons(t *testing.T) {
	const (
		images     = "kubelet/images/types.go"
		results    = "kubelet/container/sync_result.go"
		containers = "kubelet/kuberuntime/kuberuntime_container.go"
		runtime    = "cri-api/pkg/errors/errors.go"
		cri        = "containerd and CRI-O, status of a container"
		podStatus  = "tektoncd/pipeline/pkg/pod/status.go"
		taskRun    = "tektoncd/pipeline/pkg/apis/pipeline/v1/taskrun_types.go"
		pipeline   = "tektoncd/pipeline/pkg/apis/pipeline/v1/pipelinerun_types.go"
	)
	table := []struct {
		word string
		want fail.Reason
		read string
	}{
		{"CrashLoopBackOff", fail.ContainerFailed, results},
		{"RunContainerError", fail.ContainerFailed, results},
		{"CreateContainerConfigError", fail.ContainerFailed, containers},
		{"CreateContainerError", fail.ContainerFailed, containers},
		{"PostStartHookError", fail.ContainerFailed, containers},
		{"PreCreateHookError", fail.ContainerFailed, containers},
		{"PreStartHookError", fail.ContainerFailed, containers},
		{"ContainerCannotRun", fail.ContainerFailed, cri},
		{"StartError", fail.ContainerFailed, cri},
		{"OOMKilled", fail.OutOfMemory, cri},
		{"ErrImageNeverPull", fail.ImageUnavailable, images},
		{"ErrImagePull", fail.ImageUnavailable, images},
		{"ImageInspectError", fail.ImageUnavailable, images},
		{"ImagePullBackOff", fail.ImageUnavailable, images},
		{"InvalidImageName", fail.ImageUnavailable, images},
		{"RegistryUnavailable", fail.ImageUnavailable, runtime},
		{"SignatureValidationFailed", fail.ImageUnavailable, runtime},

		{"Evicted", fail.NodesUnavailable, "kubelet/eviction/helpers.go"},
		{"NodeShutdown", fail.NodesUnavailable, "kubelet/nodeshutdown/nodeshutdown_manager.go"},
		{"UnexpectedAdmissionError", fail.NodesUnavailable, "kubelet/cm/admission/errors.go"},
		{"TopologyAffinityError", fail.NodesUnavailable, "kubelet/cm/topologymanager/topology_manager.go"},
		{"SMTAlignmentError", fail.NodesUnavailable, "kubelet/cm/cpumanager/policy_static.go"},
		{"Preempted", fail.GPUsUnavailable, "scheduler/framework/preemption"},

		{"ExceededNodeResources", fail.NodesUnavailable, podStatus},
		{"ExceededResourceQuota", fail.QuotaExceeded, podStatus},
		{"PodAdmissionFailed", fail.SecurityRefused, podStatus},
		{"PullImageFailed", fail.ImageUnavailable, podStatus},
		{"InitContainerFailed", fail.ContainerFailed, taskRun},
		{"InitContainerOOM", fail.OutOfMemory, taskRun},
		{"InvalidParamValue", fail.InvalidInput, taskRun},
		{"PodCreationFailed", fail.ContainerFailed, taskRun},
		{"PodEvicted", fail.NodesUnavailable, taskRun},
		{"SidecarFailed", fail.ContainerFailed, taskRun},
		{"SidecarOOM", fail.OutOfMemory, taskRun},
		{"StepOOM", fail.OutOfMemory, taskRun},
		{"TaskRunCancelled", fail.Cancelled, taskRun},
		{"TaskRunImagePullFailed", fail.ImageUnavailable, taskRun},
		{"TaskRunResolutionFailed", fail.InvalidInput, taskRun},
		{"TaskRunTimeout", fail.TrainingTimeout, taskRun},
		{"TaskRunValidationFailed", fail.InvalidInput, taskRun},
		{"TaskValidationFailed", fail.InvalidInput, taskRun},

		{"Cancelled", fail.Cancelled, pipeline},
		{"CancelledRunningFinally", fail.Cancelled, pipeline},
		{"CouldntGetPipeline", fail.InvalidInput, pipeline},
		{"CouldntGetTask", fail.InvalidInput, pipeline},
		{"InvalidWorkspaceBindings", fail.InvalidInput, pipeline},
		{"ParamArrayIndexingInvalid", fail.InvalidInput, pipeline},
		{"ParameterMissing", fail.InvalidInput, pipeline},
		{"ParameterTypeMismatch", fail.InvalidInput, pipeline},
		{"PipelineRunTimeout", fail.TrainingTimeout, pipeline},
		{"PipelineRunTimeoutRunningFinally", fail.TrainingTimeout, pipeline},
		{"PipelineValidationFailed", fail.InvalidInput, pipeline},
		{"PipelineRun Finally timeout has been reached", fail.TrainingTimeout, pipeline},
		{"PipelineRun Tasks timeout has been reached", fail.TrainingTimeout, pipeline},
		{"PipelineRun timeout has been reached", fail.TrainingTimeout, pipeline},
		{"PipelineRun was gracefully cancelled", fail.Cancelled, pipeline},
	}
	seen := map[string]bool{}
	for _, test := range table {
		if seen[test.word] {
			t.Errorf("%s is here twice", test.word)
		}
		seen[test.word] = true
		if got := ReasonFor(test.word); got != test.want {
			t.Errorf("%s of %s is %q, want %q", test.word, test.read, got, test.want)
		}
	}
	for word := range reasons {
		if !seen[word] {
			t.Errorf("%s has no row: add one with its source file", word)
		}
	}
	for word, want := range map[string]fail.Reason{
		"OutOfcpu": fail.NodesUnavailable, "OutOfnvidia.com/gpu": fail.NodesUnavailable,
		"": "", "Completed": "", "Error": "", "Failed": "", "Running": "", "StepFailed": "", "Results were missing": "",
	} {
		if got := ReasonFor(word); got != want {
			t.Errorf("%q is %q, want %q", word, got, want)
		}
	}
}
