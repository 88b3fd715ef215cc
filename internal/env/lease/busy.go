// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// RunState is the state of a holder's run, as a clause of a message; "" for a user.
type RunState string

// The states of a holder's run.
const (
	RunActive  RunState = "which is still running"
	RunDone    RunState = "which has ended"
	RunGone    RunState = "which does not exist any more"
	RunUnknown RunState = "whose state cannot be read"
)

// Busy is the state of an environment that another run or user holds, and the error for it.
type Busy struct {
	Namespace string
	Name      string
	Holder    Holder
	// Since is zero if the Lease does not contain it.
	Since time.Time
	// Ends is when the Lease expires unless it is renewed, zero if the Lease does not contain it.
	Ends time.Time
	Run  RunState

	now time.Time
}

// Error implements error.
func (b *Busy) Error() string {
	return fmt.Sprintf("taking environment %s/%s: %s", b.Namespace, b.Name, b.Describe())
}

// Replaceable reports whether the Lease has expired and no run of its holder could come back.
func (b *Busy) Replaceable() bool {
	expired := !b.Ends.IsZero() && b.Ends.Before(b.now)
	return expired && b.Run != RunActive && b.Run != RunUnknown
}

// Describe names the holder, since when, and until when.
func (b *Busy) Describe() string {
	text := "it is held by " + b.Holder.String()
	if !b.Since.IsZero() {
		text += " since " + b.Since.UTC().Format(time.RFC3339)
	}
	if b.Run != "" {
		text += ", " + string(b.Run)
	}
	if b.Run != RunActive && b.Ends.After(b.now) {
		text += "; it becomes free at " + b.Ends.UTC().Format(time.RFC3339)
	}
	return text
}

// NextStep returns what a caller that needs the environment can do.
func (b *Busy) NextStep() string {
	const other = "use another environment with --name=NAME, or wait with --on-busy=wait, or "
	switch {
	case b.Run == RunActive:
		return other + fmt.Sprintf("end the other run: mlenv cancel %s -n %s", b.Holder.Display, b.Namespace)
	case b.Holder.Run:
		return other + fmt.Sprintf("release it: mlenv down %s -n %s --force", b.Name, b.Namespace)
	}
	return other + "ask " + b.Holder.Display
}

func (b *Busy) problem() error {
	return fail.Advise(fail.Because(fail.EnvironmentBusy, b), "%s", b.NextStep())
}

// ReadHolder reads who holds a Lease, and the state of the holder's run. The holder may be the caller.
func (c Client) ReadHolder(ctx context.Context, lease *coordinationv1.Lease) *Busy {
	b := &Busy{Namespace: lease.Namespace, Name: lease.Name, Holder: HolderOf(lease), Ends: Ends(lease), now: c.Now()}
	if lease.Spec.AcquireTime != nil {
		b.Since = lease.Spec.AcquireTime.Time
	}
	if !b.Holder.Run {
		return b
	}
	switch found, err := run.Get(ctx, c.tekton, lease.Namespace, b.Holder.Display); {
	case apierrors.IsNotFound(err), err == nil && string(found.UID) != b.Holder.ID:
		b.Run = RunGone
	case err != nil:
		b.Run = RunUnknown
	case found.Done:
		b.Run = RunDone
	default:
		b.Run = RunActive
	}
	return b
}
