package run

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
)

// Cause is why a step's pod was told to end.
type Cause string

// The causes.
const (
	// Cancelled: somebody cancelled the run, or this task of it.
	Cancelled Cause = "cancelled"
	// TimedOut: a deadline of the run or of the task has passed.
	TimedOut Cause = "timed out"
	// Deleted: the run is gone or going.
	Deleted Cause = "deleted"
	// Evicted: the run goes on; only the pod is taken away, as by a drained node.
	Evicted Cause = "evicted"
)

// Final is true where nobody comes back for the work, so that it should stop.
func (c Cause) Final() bool { return c != Evicted }

// Ending is why a pod was told to end, with a sentence for people.
type Ending struct {
	Cause   Cause
	Message string
	// NoFinally is true where the run's finally tasks will not run: nobody else gives
	// back what it holds.
	NoFinally bool
}

// EndingOf tells, after SIGTERM, why the pod of a run's task is to end. task is the
// task's name in the pipeline.
//
// Tekton writes down that it ends a task before it deletes the task's pod where the
// run is cancelled or times out, but not where the task's own timeout passes; so
// deadlines are computed too. now is compared with Tekton's clock on another
// machine: a deadline that passes within five seconds counts as passed.
func EndingOf(ctx context.Context, client versioned.Interface, namespace, name string, uid types.UID, task string, now time.Time) (Ending, error) {
	r, err := Get(ctx, client, namespace, name)
	switch {
	case apierrors.IsNotFound(err), err == nil && r.UID != uid:
		return Ending{Deleted, fmt.Sprintf("pipelinerun %s was deleted", name), true}, nil
	case err != nil:
		return Ending{}, err
	case r.Deleted:
		return Ending{Deleted, fmt.Sprintf("pipelinerun %s is being deleted", name), true}, nil
	case r.Cancelled:
		return Ending{Cancelled, fmt.Sprintf("pipelinerun %s was cancelled", name), r.NoFinally}, nil
	case r.Reason == string(v1.PipelineRunReasonTimedOut), r.Reason == string(v1.PipelineRunReasonTimedOutRunningFinally):
		return Ending{TimedOut, fmt.Sprintf("pipelinerun %s timed out: %s", name, r.Message), r.Reason == string(v1.PipelineRunReasonTimedOut)}, nil
	case passed(r.Started, r.Timeouts.Pipeline, now):
		return Ending{TimedOut, fmt.Sprintf("pipelinerun %s reached its pipeline timeout of %s", name, compact(r.Timeouts.Pipeline)), true}, nil
	}
	children, err := taskRunsOf(ctx, client, namespace, name, uid)
	if err != nil {
		return Ending{}, err
	}
	for _, child := range children {
		if child.Labels[taskLabel] != task {
			continue
		}
		switch {
		case child.Spec.StatusMessage == v1.TaskRunCancelledByPipelineTimeoutMsg:
			return Ending{TimedOut, fmt.Sprintf("pipelinerun %s reached its tasks timeout of %s", name, compact(r.Timeouts.Tasks)), false}, nil
		case child.Spec.Status == v1.TaskRunSpecStatusCancelled:
			return Ending{Cancelled, fmt.Sprintf("taskrun %s was cancelled", child.Name), false}, nil
		case child.Spec.Timeout != nil && child.Status.StartTime != nil &&
			passed(child.Status.StartTime.Time, child.Spec.Timeout.Duration, now):
			return Ending{TimedOut, fmt.Sprintf("taskrun %s reached its timeout of %s", child.Name, compact(child.Spec.Timeout.Duration)), false}, nil
		}
	}
	return Ending{Evicted, fmt.Sprintf("the pod was taken away while pipelinerun %s goes on", name), false}, nil
}

// clockSkew is how far apart two machines' clocks may be.
const clockSkew = 5 * time.Second

// passed is true after a timeout; one of zero never passes.
func passed(start time.Time, timeout time.Duration, now time.Time) bool {
	return !start.IsZero() && timeout != 0 && now.Add(clockSkew).Sub(start) >= timeout
}
