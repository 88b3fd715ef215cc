// SPDX-License-Identifier: Apache-2.0

package run

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Labels that Tekton puts on TaskRuns and their pods.
const (
	// Label is the name of the PipelineRun.
	Label     = "tekton.dev/pipelineRun"
	taskLabel = "tekton.dev/pipelineTask"
)

// repoParam is the param of sync-repo that names the repository.
const repoParam = "repo-url"

// Status is the state of a task.
type Status string

// The states of a task.
const (
	// Running includes tasks that wait for their pods.
	Running   Status = "running"
	Succeeded Status = "succeeded"
	Failed    Status = "failed"
)

// TaskRun is one task of a run. A task that was skipped or has not started has none.
type TaskRun struct {
	// Task is the name in the pipeline, Name the TaskRun's.
	Task   string
	Name   string
	Pod    string
	Status Status
	// Started is the start of the first attempt.
	Started time.Time
	Ended   time.Time
	// Retries is the number of earlier attempts. An attempt that only repeats a final failure does not count: Pod, Ended and
	// Retries then describe the attempt before it.
	Retries int
	// Image is the first step's image, Account the service account.
	Image, Account string
	// RepoURL is the param repo-url, "" for a task without it.
	RepoURL string
	// Results by name; an array or object as JSON.
	Results map[string]string
	// Earlier are the results of the previous attempt.
	Earlier map[string]string
	// Reason and Message of a failure are the step's results of these names, or else Tekton's.
	Reason  fail.Reason
	Message string
}

// finalReasons show that a training has ended or could not start. With others, such as AgentUnreachable, the next
// attempt may find the training running.
var finalReasons = []fail.Reason{
	fail.RankFailed, fail.OutOfMemory, fail.TrainingTimeout, fail.Hang, fail.NoRendezvous, fail.TransportWrong, fail.NodeLost,
	fail.StopCondition, fail.ContainerRestarted,
	fail.ContainerFailed, fail.ScriptNotFound, fail.InvalidInput, fail.DiskFull,
}

// Final reports whether the previous attempt ended with a failure that this one only repeats: Tekton retries a step whatever its
// reason was.
func (t TaskRun) Final() bool { return IsFinalReason(fail.Reason(t.Earlier["reason"])) }

// IsFinalReason reports whether a training that ended for this reason cannot continue: a retried step only repeats the failure.
func IsFinalReason(reason fail.Reason) bool { return slices.Contains(finalReasons, reason) }

// TaskRuns returns the tasks of a run in the order of their start; tasks that have not started come last. Errors:
// PermissionDenied.
func TaskRuns(ctx context.Context, client versioned.Interface, namespace, name string, uid types.UID) ([]TaskRun, error) {
	children, err := taskRunsOf(ctx, client, namespace, name, uid)
	if err != nil {
		return nil, err
	}
	tasks := make([]TaskRun, 0, len(children))
	for i := range children {
		tasks = append(tasks, TaskRunOf(&children[i]))
	}
	slices.SortFunc(tasks, func(a, b TaskRun) int {
		if a.Started.IsZero() != b.Started.IsZero() {
			if a.Started.IsZero() {
				return 1
			}
			return -1
		}
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Task, b.Task))
	})
	return tasks, nil
}

// taskRunsOf leaves out the TaskRuns of an earlier run of the same name.
func taskRunsOf(ctx context.Context, client versioned.Interface, namespace, name string, uid types.UID) ([]v1.TaskRun, error) {
	list, err := client.TektonV1().TaskRuns(namespace).List(ctx, metav1.ListOptions{LabelSelector: Label + "=" + name})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing the taskruns of pipelinerun %s/%s: %w", namespace, name, err))
	}
	return slices.DeleteFunc(list.Items, func(child v1.TaskRun) bool {
		return !slices.ContainsFunc(child.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == uid })
	}), nil
}

// TaskOf returns the name of a TaskRun's task in the pipeline.
func TaskOf(found *v1.TaskRun) string { return found.Labels[taskLabel] }

// TaskRunOf reads a TaskRun.
func TaskRunOf(found *v1.TaskRun) TaskRun {
	t := TaskRun{
		Task:    TaskOf(found),
		Name:    found.Name,
		Pod:     found.Status.PodName,
		Status:  Running,
		Retries: len(found.Status.RetriesStatus),
		Results: results(found.Status.Results),
		Account: found.Spec.ServiceAccountName,
	}
	if spec := found.Status.TaskSpec; spec != nil && len(spec.Steps) > 0 {
		t.Image = spec.Steps[0].Image
	}
	for _, param := range found.Spec.Params {
		if param.Name == repoParam {
			t.RepoURL = param.Value.StringVal
		}
	}
	started, ended := found.Status.StartTime, found.Status.CompletionTime
	if t.Retries > 0 {
		last := found.Status.RetriesStatus[t.Retries-1]
		started = cmp.Or(found.Status.RetriesStatus[0].StartTime, started)
		if t.Earlier = results(last.Results); t.Final() {
			t.Pod = last.PodName
			t.Retries--
			if ended != nil {
				ended = last.CompletionTime
			}
		}
	}
	if started != nil {
		t.Started = started.Time
	}
	if ended != nil {
		t.Ended = ended.Time
	}
	if condition := found.Status.GetCondition("Succeeded"); condition != nil {
		switch condition.Status {
		case corev1.ConditionTrue:
			t.Status = Succeeded
		case corev1.ConditionFalse:
			t.Status = Failed
			t.Reason = cmp.Or(fail.Reason(t.Results["reason"]), tektonReason(found, condition.Reason), fail.Internal)
			// Tekton names an image by its ID, and an image that was not pulled has none.
			of := "its image."
			if t.Image != "" {
				of = fmt.Sprintf("the image %q.", t.Image)
			}
			t.Message = cmp.Or(t.Results["message"], strings.Replace(condition.Message, `the image "".`, of, 1))
		}
	}
	return t
}

// Unpulled reports whether the task failed because the image of its step could not be pulled.
func (t TaskRun) Unpulled() bool {
	return t.Status == Failed && t.Reason == fail.ImageUnavailable && t.Results["reason"] == ""
}

// tektonReason translates Tekton's reason. Tekton cancels the tasks of a run that timed out.
func tektonReason(found *v1.TaskRun, word string) fail.Reason {
	if found.Spec.StatusMessage == v1.TaskRunCancelledByPipelineTimeoutMsg && word == string(v1.TaskRunReasonCancelled) {
		word = string(v1.TaskRunReasonTimedOut)
	}
	return kube.ReasonFor(word)
}

func results(found []v1.TaskRunResult) map[string]string {
	texts := map[string]string{}
	for _, result := range found {
		texts[result.Name] = result.Value.StringVal
		if result.Value.Type == v1.ParamTypeArray || result.Value.Type == v1.ParamTypeObject {
			text, _ := json.Marshal(result.Value) // strings can always be written
			texts[result.Name] = string(text)
		}
	}
	return texts
}
