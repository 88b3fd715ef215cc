package lease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// RunState is what became of the holder's run.
type RunState string

// The states of a holder's run.
const (
	// NoRun: the holder is a person.
	NoRun RunState = ""
	// RunLives: the run has not ended.
	RunLives RunState = "running"
	// RunDone: it has ended.
	RunDone RunState = "done"
	// RunGone: it does not exist any more.
	RunGone RunState = "gone"
	// RunUnknown: it cannot be read, for want of permission or because the API server is away.
	RunUnknown RunState = "unknown"
)

// Busy is an environment that somebody else holds.
type Busy struct {
	Namespace string
	Name      string
	Holder    Holder
	// Since is zero where the Lease does not say.
	Since time.Time
	// Ends is when the Lease ends if it is not renewed, zero where it does not say.
	Ends time.Time
	Run  RunState

	now time.Time
}

// Error implements error.
func (b *Busy) Error() string {
	return fmt.Sprintf("taking environment %s/%s: %s", b.Namespace, b.Name, b.State())
}

// Replaceable is true where nobody holds it in earnest: the Lease has ended, and
// the holder has no run that could come back.
func (b *Busy) Replaceable() bool {
	ended := !b.Ends.IsZero() && b.Ends.Before(b.now)
	return ended && (b.Run == NoRun || b.Run == RunDone || b.Run == RunGone)
}

// State says who holds it, in words.
func (b *Busy) State() string {
	text := "it is held by " + b.Holder.String()
	if !b.Since.IsZero() {
		text += " since " + b.Since.UTC().Format(time.RFC3339)
	}
	switch b.Run {
	case RunLives:
		text += ", which is still running"
	case RunDone:
		text += ", which has ended"
	case RunGone:
		text += ", which does not exist any more"
	case RunUnknown:
		text += ", whose state cannot be read"
	}
	if b.Run != RunLives && b.Ends.After(b.now) {
		text += "; it becomes free at " + b.Ends.UTC().Format(time.RFC3339)
	}
	return text
}

// problem is the error with what to do about it.
func (b *Busy) problem() error {
	err := fail.Because(fail.EnvironmentBusy, b)
	switch {
	case b.Run == RunLives:
		return fail.Advise(err, "wait with --on-busy=wait, or end the other run: tkn pipelinerun cancel %s -n %s --grace CancelledRunFinally", b.Holder.Display, b.Namespace)
	case b.Holder.Run:
		return fail.Advise(err, "wait with --on-busy=wait, or take it down: oc delete lease %s -n %s", b.Name, b.Namespace)
	}
	return fail.Advise(err, "wait with --on-busy=wait, take another --name, or ask %s", b.Holder.Display)
}

// Look reads who holds a Lease, and what became of the holder's run. It does not say whether
// whoever asks is the holder.
func (c Client) Look(ctx context.Context, lease *coordinationv1.Lease) *Busy {
	b := &Busy{Namespace: lease.Namespace, Name: lease.Name, Holder: HolderOf(lease), Ends: Ends(lease), now: c.Now()}
	if lease.Spec.AcquireTime != nil {
		b.Since = lease.Spec.AcquireTime.Time
	}
	if b.Holder.Run {
		b.Run = c.runState(ctx, lease.Namespace, b.Holder)
	}
	return b
}

func (c Client) runState(ctx context.Context, namespace string, holder Holder) RunState {
	r, err := run.Get(ctx, c.Tekton, namespace, holder.Display)
	switch {
	case apierrors.IsNotFound(err), err == nil && string(r.UID) != holder.ID:
		return RunGone
	case err != nil:
		return RunUnknown
	case r.Done:
		return RunDone
	}
	return RunLives
}
