package run

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
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

// repoParam of sync-repo says what is trained from.
const repoParam = "repo-url"

// Status is where a task is.
type Status string

// The states of a task.
const (
	// Running includes a task that waits for its pod.
	Running   Status = "running"
	Succeeded Status = "succeeded"
	Failed    Status = "failed"
)

// TaskRun is one task of a run. A task that was skipped or not reached has none.
type TaskRun struct {
	// Task is its name in the pipeline, Name the TaskRun's own.
	Task   string
	Name   string
	Pod    string
	Status Status
	// Started and Ended are zero before they happened.
	Started time.Time
	Ended   time.Time
	// Retries is how often it was tried again.
	Retries int
	// RepoURL is its param repo-url, "" for a task without.
	RepoURL string
	// Results by name; an array or object as JSON.
	Results map[string]string
	// Earlier are the results of the attempt before this one, if it was tried again.
	Earlier map[string]string
	// Reason and Message of a failure are the step's own results of these names. If the step wrote none,
	// they are Tekton's, the reason translated.
	Reason  fail.Reason
	Message string
}

// TaskRuns are the tasks of a run in the order of their start, those that have
// not started last. Errors: PermissionDenied.
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

// taskRunsOf leaves out those of an earlier run of the same name.
func taskRunsOf(ctx context.Context, client versioned.Interface, namespace, name string, uid types.UID) ([]v1.TaskRun, error) {
	list, err := client.TektonV1().TaskRuns(namespace).List(ctx, metav1.ListOptions{LabelSelector: Label + "=" + name})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing the taskruns of pipelinerun %s/%s: %w", namespace, name, err))
	}
	return slices.DeleteFunc(list.Items, func(child v1.TaskRun) bool {
		return !slices.ContainsFunc(child.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == uid })
	}), nil
}

// TaskOf is a TaskRun's task, by its name in the pipeline.
func TaskOf(found *v1.TaskRun) string { return found.Labels[taskLabel] }

// TaskRunOf is what a TaskRun says of itself.
func TaskRunOf(found *v1.TaskRun) TaskRun {
	t := TaskRun{
		Task:    TaskOf(found),
		Name:    found.Name,
		Pod:     found.Status.PodName,
		Status:  Running,
		Retries: len(found.Status.RetriesStatus),
		Results: results(found.Status.Results),
	}
	for _, param := range found.Spec.Params {
		if param.Name == repoParam {
			t.RepoURL = param.Value.StringVal
		}
	}
	if t.Retries > 0 {
		t.Earlier = results(found.Status.RetriesStatus[t.Retries-1].Results)
	}
	if found.Status.StartTime != nil {
		t.Started = found.Status.StartTime.Time
	}
	if found.Status.CompletionTime != nil {
		t.Ended = found.Status.CompletionTime.Time
	}
	if condition := found.Status.GetCondition("Succeeded"); condition != nil {
		switch condition.Status {
		case corev1.ConditionTrue:
			t.Status = Succeeded
		case corev1.ConditionFalse:
			t.Status = Failed
			t.Reason = cmp.Or(fail.Reason(t.Results["reason"]), tektonReason(found, condition.Reason), fail.Internal)
			t.Message = cmp.Or(t.Results["message"], condition.Message)
		}
	}
	return t
}

// tektonReason translates Tekton's word for a failure. Tekton cancels a task if the time of the whole run is over.
func tektonReason(found *v1.TaskRun, word string) fail.Reason {
	if found.Spec.StatusMessage == v1.TaskRunCancelledByPipelineTimeoutMsg && word == string(v1.TaskRunReasonCancelled) {
		word = string(v1.TaskRunReasonTimedOut)
	}
	return kube.ReasonFor(word)
}

func results(found []v1.TaskRunResult) map[string]string {
	texts := map[string]string{}
	for _, result := range found {
		texts[result.Name] = resultText(result.Value)
	}
	return texts
}

func resultText(value v1.ResultValue) string {
	if value.Type == v1.ParamTypeString || value.Type == "" {
		return value.StringVal
	}
	// An array or object of strings can always be written.
	text, _ := json.Marshal(value)
	return string(text)
}
