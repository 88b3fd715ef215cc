// Package run reads facts about a PipelineRun: its deadlines, how it is ending,
// and what its tasks did.
package run

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// defaultTimeout is Tekton's for a PipelineRun that names none, unless the
// cluster's administrator set another; then the run says it by itself.
const defaultTimeout = time.Hour

// ScheduleLabel of a PipelineRun, and of its receipt, is the name of the schedule that started it.
const ScheduleLabel = "ml-dev-env/schedule"

// Run is a PipelineRun.
type Run struct {
	Namespace string
	Name      string
	UID       types.UID
	// Started is zero before Tekton started it.
	Started  time.Time
	Timeouts Timeouts
	// ChecksFabric is true where the network is measured before the training.
	ChecksFabric bool
	// Cancelled is true where somebody asked for its end, with or without finally tasks. A run that was
	// stopped is not: its running tasks may finish.
	Cancelled bool
	// NoFinally is true of a run that was cancelled without its finally tasks.
	NoFinally bool
	// Deleted is true where the run is on its way out of the cluster.
	Deleted bool
	// Schedule is the name of the one that started it, "" for none.
	Schedule string
	// Done is true where it has ended, finally tasks included.
	Done bool
	// Skipped are the tasks that were to run and did not, with Tekton's words why. A task that its own when
	// leaves out is not among them.
	Skipped []SkippedTask
	// Reason is Tekton's word for where it is, as Running, Failed or PipelineRunTimeout; Message says more.
	Reason  string
	Message string
}

// SkippedTask is a task that did not run though it should have.
type SkippedTask struct {
	Task string
	// Reason is Tekton's word.
	Reason string
}

// Timeouts of a PipelineRun, counted from its start; zero is none.
type Timeouts struct {
	// Pipeline ends everything, finally tasks too.
	Pipeline time.Duration
	// Tasks ends the tasks, so that finally tasks run. Finally is counted from their start.
	Tasks   time.Duration
	Finally time.Duration
}

// Get reads a PipelineRun. A run that does not exist is an error that
// apierrors.IsNotFound knows; else PermissionDenied.
func Get(ctx context.Context, client versioned.Interface, namespace, name string) (*Run, error) {
	found, err := client.TektonV1().PipelineRuns(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", namespace, name, err))
	}
	return fromPipelineRun(found), nil
}

func fromPipelineRun(found *v1.PipelineRun) *Run {
	r := &Run{
		Namespace: found.Namespace,
		Name:      found.Name,
		UID:       found.UID,
		Timeouts:  timeoutsOf(found),
		Cancelled: found.IsCancelled() || found.IsGracefullyCancelled(),
		NoFinally: found.IsCancelled(),
		Deleted:   found.DeletionTimestamp != nil,
		Schedule:  found.Labels[ScheduleLabel],
		Done:      found.IsDone(),

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

// fabricTask measures the network; the pipeline's param of this name leaves it out.
const fabricTask = "check-fabric"

// checksFabric is known once Tekton has read the pipeline.
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

// timeoutsOf has Tekton's own arithmetic: of tasks and finally, the one that is
// not set is what the other leaves of the pipeline's.
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

// OwnerReference makes a run the owner of an object, which is deleted with it. It does not block the
// owner's deletion: that would need the right to update the owner's finalizers.
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
