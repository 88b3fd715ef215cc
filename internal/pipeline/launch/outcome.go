package launch

import (
	"cmp"
	"context"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// Outcome is how a run ended.
type Outcome struct {
	// Run is the PipelineRun as it was last seen.
	Run     *v1.PipelineRun
	Verdict receipt.Verdict
	// Reason and Message are of a run that failed.
	Reason  fail.Reason
	Message string
	// Cancelled is true where somebody asked for the end, or deleted the run.
	Cancelled bool
	// Receipt is nil where the run has left none, or it may not be read.
	Receipt *receipt.Receipt
}

// OutcomeOf is how a run that has ended did so. Errors: PermissionDenied.
func OutcomeOf(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun) (Outcome, error) {
	o := Outcome{Run: of, Verdict: receipt.Failed, Cancelled: of.IsCancelled() || of.IsGracefullyCancelled() || !of.IsDone()}
	left, err := receipt.Read(ctx, clients.Kube, of.Namespace, of.Name)
	switch {
	case err == nil && left.RunUID == string(of.UID):
		o.Receipt = &left
	case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return o, kube.Problem(err)
	}
	switch {
	case of.IsSuccessful():
		o.Verdict = receipt.Succeeded
		return o, nil
	case o.Receipt != nil && o.Receipt.Verdict == receipt.Failed:
		o.Reason, o.Message = fail.Reason(o.Receipt.Reason), o.Receipt.Message
		return o, nil
	case !of.IsDone():
		o.Reason, o.Message = fail.Cancelled, "the run was deleted"
		return o, nil
	}
	tasks, err := run.TaskRuns(ctx, clients.Tekton, of.Namespace, of.Name, of.UID)
	if err != nil {
		return o, err
	}
	for _, task := range tasks {
		if task.Status == run.Failed {
			o.Reason, o.Message = task.Reason, task.Task+": "+task.Message
			if o.Reason == fail.Internal {
				o.Reason = o.tektonReason()
			}
			return o, nil
		}
	}
	o.Reason = o.tektonReason()
	if condition := of.Status.GetCondition("Succeeded"); condition != nil {
		o.Message = condition.Reason + ": " + condition.Message
	}
	return o, nil
}

// tektonReason translates Tekton's word for the run, for a failure that no task explains.
func (o Outcome) tektonReason() fail.Reason {
	if o.Cancelled {
		return fail.Cancelled
	}
	if condition := o.Run.Status.GetCondition("Succeeded"); condition != nil {
		return cmp.Or(kube.ReasonFor(condition.Reason), fail.Internal)
	}
	return fail.Internal
}
