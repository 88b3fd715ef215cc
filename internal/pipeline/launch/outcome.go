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
	// Run is the last known state of the PipelineRun.
	Run     *v1.PipelineRun
	Verdict receipt.Verdict
	// Reason and Message are set if the run failed.
	Reason  fail.Reason
	Message string
	// Cancelled reports whether the run was cancelled or deleted.
	Cancelled bool
	// Receipt is nil if the run has left no valid one, or if it may not be read.
	Receipt *receipt.Receipt
	// failed is the name of the TaskRun that has the message.
	failed string
}

// OutcomeOf returns how a run has ended. Errors: PermissionDenied.
func OutcomeOf(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun) (Outcome, error) {
	o := Outcome{Run: of, Verdict: receipt.Failed, Cancelled: of.IsCancelled() || of.IsGracefullyCancelled() || !of.IsDone()}
	left, err := receipt.Read(ctx, clients.Kube, of.Namespace, of.Name)
	switch {
	case err == nil && left.RunUID == string(of.UID):
		o.Receipt = &left
	case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) && fail.ReasonOf(err) != fail.InvalidInput:
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
	condition := of.Status.GetCondition("Succeeded") // a run that is done has one
	o.Reason, o.Message = cmp.Or(kube.ReasonFor(condition.Reason), fail.Internal), condition.Reason+": "+condition.Message
	if o.Cancelled {
		o.Reason = fail.Cancelled
	}
	if first := run.FirstFailed(tasks); first != nil && first.Status == run.Failed {
		o.Message, o.failed = first.Task+": "+first.Message, first.Name
		if first.Reason != fail.Internal {
			o.Reason = first.Reason
		}
	}
	return o, nil
}
