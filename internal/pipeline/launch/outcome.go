// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"slices"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
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

// OutcomeOf returns how a run has ended: as its receipt says, or else as Tekton does. Errors: PermissionDenied.
func OutcomeOf(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun) (Outcome, error) {
	o := Outcome{Run: of, Cancelled: of.IsCancelled() || of.IsGracefullyCancelled() || !of.IsDone()}
	m, err := receipt.ReadJournal(ctx, clients.Kube, of.Namespace, of.Name)
	switch {
	case err == nil && m.RunUID == string(of.UID):
		o.Receipt = m.Receipt
	case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) && fail.ReasonOf(err) != fail.InvalidInput:
		return o, kube.Problem(err)
	default:
		m = receipt.Journal{}
	}
	seen := receipt.Seen{Run: run.FromPipelineRun(of)}
	if !of.IsDone() {
		seen.End = &receipt.End{Reason: fail.Cancelled, Message: receipt.Deleted}
	}
	v := m.Verdict(seen)
	written := m.Receipt != nil && m.Receipt.Verdict == receipt.Failed
	if v.Verdict == receipt.Failed && of.IsDone() && !written && v.Task == "" { // no step could note why
		if seen.Tasks, err = run.TaskRuns(ctx, clients.Tekton, of.Namespace, of.Name, of.UID); err != nil {
			return o, err
		}
		v = m.Verdict(seen)
	}
	o.Verdict, o.Reason, o.Message = v.Verdict, v.Reason, v.Message
	if v.Task != "" && !written && v.Verdict == receipt.Failed {
		o.Message = v.Task + ": " + v.Message
		if i := slices.IndexFunc(seen.Tasks, func(t run.TaskRun) bool { return t.Task == v.Task }); i >= 0 {
			o.failed = seen.Tasks[i].Name
		}
	}
	return o, nil
}
