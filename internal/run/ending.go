// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Cause is why a step's pod ends.
type Cause string

const (
	// CancelledByUser means that a user cancelled the run, or this task of it.
	CancelledByUser Cause = "cancelled"
	// TimedOut means that a deadline of the run or of the task has passed.
	TimedOut Cause = "timed out"
	// RunDeleted means that the run was deleted.
	RunDeleted Cause = "deleted"
	// Evicted means that the run continues without this pod, for example because its node is drained.
	Evicted Cause = "evicted"
)

// EndsWork reports whether the work should stop, because no other pod will continue it.
func (c Cause) EndsWork() bool { return c != Evicted }

// Ending is why a pod ends.
type Ending struct {
	Cause   Cause
	Message string
	// NoFinally reports that no finally task will release what the run holds.
	NoFinally bool
	// Now reports that the ranks get no time to save.
	Now bool
}

// EndingOf returns, after SIGTERM, why the pod of a run's task ends. task is its name in the pipeline.
//
// Tekton records the end of a task before it deletes the pod if the run is cancelled or times out, but not if the task's
// own timeout passes. So EndingOf computes deadlines too; a deadline within five seconds counts as passed.
func EndingOf(ctx context.Context, client versioned.Interface, namespace, name string, uid types.UID, task string, now time.Time) (
	Ending, error) {
	r, err := Get(ctx, client, namespace, name)
	switch {
	case apierrors.IsNotFound(err), err == nil && r.UID != uid:
		return Ending{Cause: RunDeleted, Message: fmt.Sprintf("pipelinerun %s was deleted", name), NoFinally: true}, nil
	case err != nil:
		return Ending{}, err
	case r.Deleted:
		return Ending{Cause: RunDeleted, Message: fmt.Sprintf("pipelinerun %s is being deleted", name), NoFinally: true, Now: r.Now}, nil
	case r.Cancelled:
		return Ending{CancelledByUser, fmt.Sprintf("pipelinerun %s was cancelled", name), r.NoFinally, r.Now}, nil
	case r.Reason == string(v1.PipelineRunReasonTimedOut), r.Reason == kube.TimedOutRunningFinally:
		return Ending{TimedOut, fmt.Sprintf("pipelinerun %s timed out: %s", name, r.Message),
			r.Reason == string(v1.PipelineRunReasonTimedOut), r.Now}, nil
	case passed(r.Started, r.Timeouts.Pipeline, now):
		return Ending{TimedOut, fmt.Sprintf("pipelinerun %s reached its pipeline timeout of %s", name, compact(r.Timeouts.Pipeline)),
			true, r.Now}, nil
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
			return Ending{TimedOut, fmt.Sprintf("pipelinerun %s reached its tasks timeout of %s", name, compact(r.Timeouts.Tasks)),
				false, r.Now}, nil
		case child.Spec.Status == v1.TaskRunSpecStatusCancelled:
			return Ending{CancelledByUser, fmt.Sprintf("taskrun %s was cancelled", child.Name), false, r.Now}, nil
		case child.Spec.Timeout != nil && child.Status.StartTime != nil &&
			passed(child.Status.StartTime.Time, child.Spec.Timeout.Duration, now):
			return Ending{TimedOut, fmt.Sprintf("taskrun %s reached its timeout of %s", child.Name, compact(child.Spec.Timeout.Duration)),
				false, r.Now}, nil
		}
	}
	return Ending{Evicted, fmt.Sprintf("the pod was evicted while pipelinerun %s continues", name), false, false}, nil
}

// clockSkew is the allowed difference to Tekton's clock on another machine.
const clockSkew = 5 * time.Second

// passed reports whether a timeout has passed; a timeout of zero never does.
func passed(start time.Time, timeout time.Duration, now time.Time) bool {
	return !start.IsZero() && timeout != 0 && now.Add(clockSkew).Sub(start) >= timeout
}
