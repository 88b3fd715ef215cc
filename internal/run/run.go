// SPDX-License-Identifier: Apache-2.0

// Package run reads facts about a PipelineRun: its deadlines, how it is ending,
// and what its tasks did.
package run

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

// defaultTimeout is Tekton's for a PipelineRun without one. If the administrator set another, Tekton writes it to the run.
const defaultTimeout = time.Hour

// ScheduleLabel on a PipelineRun and on its receipt is the schedule that started the run.
const ScheduleLabel = project.LabelPrefix + "schedule"

// CancelAnnotation on a PipelineRun that was cancelled is CancelNow if its ranks get only some seconds to end.
const (
	CancelAnnotation = project.LabelPrefix + "cancel"
	CancelNow        = "now"
)

// UserAnnotation on a PipelineRun is the user that the API server authenticated when mlenv started the run. Anyone who may change the run
// may change it.
const UserAnnotation = project.LabelPrefix + "user"

// Run is a PipelineRun.
type Run struct {
	Namespace string
	Name      string
	UID       types.UID
	// Started is zero if Tekton has not started the run.
	Started  time.Time
	Timeouts Timeouts
	// ChecksFabric reports whether the run measures the network before the training.
	ChecksFabric bool
	// Cancelled reports a cancellation with or without finally tasks. A stopped run, whose running tasks may finish,
	// is not cancelled.
	Cancelled bool
	// Now reports a cancellation that leaves the ranks no time to save.
	Now bool
	// NoFinally reports a cancellation without finally tasks.
	NoFinally bool
	// Deleted reports that the run is being deleted.
	Deleted bool
	// Schedule is the schedule that started the run, "" for none.
	Schedule string
	// User is who started the run with mlenv, "" if that is not known.
	User string
	// Done reports that the run has ended, finally tasks included, and Succeeded that it has with success.
	Done, Succeeded bool
	// Skipped are the tasks that did not run, except those that their own when leaves out.
	Skipped []SkippedTask
	// Reason is Tekton's reason, such as Running, Failed or PipelineRunTimeout.
	Reason  string
	Message string
}

// SkippedTask is a task that did not run.
type SkippedTask struct {
	Task string
	// Reason is Tekton's.
	Reason string
}

// Timeouts of a PipelineRun, counted from its start; zero is none.
type Timeouts struct {
	// Pipeline bounds everything, including finally tasks.
	Pipeline time.Duration
	// Tasks bounds the other tasks. Finally counts from the start of the finally tasks.
	Tasks   time.Duration
	Finally time.Duration
}

// Get reads a PipelineRun. Errors: apierrors.IsNotFound, PermissionDenied.
func Get(ctx context.Context, client versioned.Interface, namespace, name string) (*Run, error) {
	found, err := client.TektonV1().PipelineRuns(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", namespace, name, err))
	}
	return FromPipelineRun(found), nil
}

// FromPipelineRun reads a PipelineRun.
func FromPipelineRun(found *v1.PipelineRun) *Run {
	r := &Run{
		Namespace: found.Namespace,
		Name:      found.Name,
		UID:       found.UID,
		Timeouts:  timeoutsOf(found),
		Cancelled: found.IsCancelled() || found.IsGracefullyCancelled(),
		Now:       found.Annotations[CancelAnnotation] == CancelNow,
		NoFinally: found.IsCancelled(),
		Deleted:   found.DeletionTimestamp != nil,
		Schedule:  found.Labels[ScheduleLabel],
		User:      found.Annotations[UserAnnotation],
		Done:      found.IsDone(),
		Succeeded: found.IsSuccessful(),

		ChecksFabric: checksFabric(found),
	}
	if found.Status.StartTime != nil {
		r.Started = found.Status.StartTime.Time
	}
	for _, skipped := range found.Status.SkippedTasks {
		if skipped.Reason != v1.WhenExpressionsSkip {
			r.Skipped = append(r.Skipped, SkippedTask{Task: skipped.Name, Reason: string(skipped.Reason)})
		}
	}
	if condition := found.Status.GetCondition("Succeeded"); condition != nil {
		r.Reason, r.Message = condition.Reason, condition.Message
	}
	return r
}

// fabricTask is the task that measures the network, and the param that can leave it out.
const fabricTask = "check-fabric"

// checksFabric returns false before Tekton has read the pipeline.
func checksFabric(found *v1.PipelineRun) bool {
	spec := found.Status.PipelineSpec
	if spec == nil || !slices.ContainsFunc(spec.Tasks, func(t v1.PipelineTask) bool { return t.Name == fabricTask }) {
		return false
	}
	for _, param := range found.Spec.Params {
		if param.Name == fabricTask {
			return param.Value.StringVal == "true"
		}
	}
	return slices.ContainsFunc(spec.Params, func(p v1.ParamSpec) bool {
		return p.Name == fabricTask && p.Default != nil && p.Default.StringVal == "true"
	})
}

// timeoutsOf computes as Tekton does: if only one of tasks and finally is set, the other one gets the rest.
func timeoutsOf(found *v1.PipelineRun) Timeouts {
	t := Timeouts{Pipeline: defaultTimeout}
	if set := found.Spec.Timeouts; set != nil && set.Pipeline != nil {
		t.Pipeline = set.Pipeline.Duration
	}
	if tasks := found.TasksTimeout(); tasks != nil {
		t.Tasks = tasks.Duration
	}
	if finally := found.FinallyTimeout(); finally != nil {
		t.Finally = finally.Duration
	}
	return t
}

// OwnerReference makes a run the owner of an object. It does not block the deletion of the owner, which would need the
// right to update the owner's finalizers.
func OwnerReference(name string, uid types.UID) metav1.OwnerReference {
	block := false
	return metav1.OwnerReference{
		APIVersion:         v1.SchemeGroupVersion.String(),
		Kind:               "PipelineRun",
		Name:               name,
		UID:                uid,
		BlockOwnerDeletion: &block,
	}
}

// Flags name the PipelineRun of a step. Without them a person runs the step.
type Flags struct {
	Name string
	UID  string
	// Task is the name of the step's task in the pipeline.
	Task string
}

// AddTo adds --run-name, --run-uid and --task-name.
func (f *Flags) AddTo(flags *pflag.FlagSet) {
	flags.StringVar(&f.Name, "run-name", "", "name of the PipelineRun of this step (default: none, run by hand)")
	flags.StringVar(&f.UID, "run-uid", "", "UID of that PipelineRun")
	flags.StringVar(&f.Task, "task-name", "", "name of this task in the pipeline")
}

// Check fails if only one of --run-name and --run-uid is given.
func (f *Flags) Check() error {
	return command.Want((f.Name == "") == (f.UID == ""), "--run-name and --run-uid go together: want both or none")
}
