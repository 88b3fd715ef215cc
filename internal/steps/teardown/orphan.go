// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Orphan is an environment that its holder does not need any more.
type Orphan struct {
	Lease *coordinationv1.Lease
	// Why it is abandoned, a clause of a message.
	Why string
	// Timeout is how long pods and GPUs may take to become free.
	Timeout time.Duration
}

// Release does for an abandoned environment what the teardown of its run would have done, without asking the nodes: that
// needs the right to read Secrets. It deletes this very Lease, waits for the pods, and completes the run's receipt.
//
// Errors: lease.ErrChanged, and then nothing was done; PermissionDenied and TeardownIncomplete, with which the receipt is
// written nevertheless.
func Release(ctx context.Context, clients *kube.Clients, log *slog.Logger, now func() time.Time, a Orphan) error {
	t := &teardown{options: Options{Name: a.Lease.Name, Timeout: a.Timeout}, clients: clients, log: log, now: now, reaps: true}
	err := t.release(ctx, a.Lease, func(ctx context.Context) error { return t.lease().DeleteSeen(ctx, a.Lease) })
	outcome := "all pods and GPUs were released by the reaper, because " + a.Why
	if until := t.savingUntil(context.WithoutCancel(ctx)); fail.ReasonOf(err) == fail.TeardownIncomplete && until.After(now()) {
		outcome = fmt.Sprintf("the reaper released the environment, because %s; its ranks may save until %s, when the last pod ends", a.Why,
			until.UTC().Format(time.RFC3339))
		log.Info(fmt.Sprintf("The pods of environment %s/%s end when their ranks have saved, at %s at the latest.", a.Lease.Namespace,
			a.Lease.Name, until.UTC().Format(time.RFC3339)))
		err = nil
	}
	holder := lease.HolderOf(a.Lease)
	if errors.Is(err, lease.ErrChanged) || !holder.Run {
		return err
	}
	t.options.Run = run.Flags{Name: holder.Display, UID: holder.ID}
	if err != nil {
		outcome = fmt.Sprintf("the reaper released the environment, because %s: %v", a.Why, err)
	}
	return errors.Join(err, t.complete(ctx, outcome))
}

// Finish writes the receipt of a run that has ended, or was deleted, while nothing holds an environment for it: neither a teardown nor
// the release of its environment has written one. An error of a ConfigMap that has changed meanwhile is a conflict.
func Finish(ctx context.Context, clients *kube.Clients, log *slog.Logger, now func() time.Time, m receipt.Journal, why string) error {
	t := &teardown{options: Options{Name: m.Environment, Run: run.Flags{Name: m.Run, UID: m.RunUID}}, clients: clients, log: log, now: now}
	r, err := t.recollect(ctx, m)
	if err != nil || r == nil {
		return err
	}
	if !m.Kept {
		r.Teardown = "no teardown ran, because " + why + "; no environment is held for the run"
	}
	return m.Finish(ctx, clients.Kube, *r)
}

// complete writes the outcome of the teardown to the run's receipt. A run that is gone gets none if its steps have noted nothing.
func (t *teardown) complete(ctx context.Context, outcome string) error {
	m, err := receipt.ReadJournal(ctx, t.clients.Kube, t.clients.Namespace, t.options.Run.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	r := m.Receipt
	if err != nil || m.RunUID != t.options.Run.UID || r == nil {
		if r, err = t.recollect(ctx, m); err != nil || r == nil {
			return err
		}
	}
	r.Teardown = outcome
	if r.Ended.IsZero() { // a teardown that did not come to its end wrote it
		r.Ended = t.now().UTC()
	}
	return receipt.Write(ctx, t.clients.Kube, *r)
}

// recollect returns the receipt of a run by what its steps have noted, and by its tasks unless it was deleted; nil if nothing is left.
func (t *teardown) recollect(ctx context.Context, m receipt.Journal) (*receipt.Receipt, error) {
	found, err := run.Get(ctx, t.clients.Tekton, t.clients.Namespace, t.options.Run.Name)
	var r receipt.Receipt
	switch gone := apierrors.IsNotFound(err) || err == nil && string(found.UID) != t.options.Run.UID; {
	case gone && m.RunUID != t.options.Run.UID:
		return nil, nil
	case gone && m.Kept:
		r = m.End(fail.Cancelled, "mlenv train was killed, or its environment released, before it wrote the receipt", t.now())
	case gone, err == nil && found.Deleted:
		r = m.End(fail.Cancelled, receipt.Deleted, t.now())
	case err != nil:
		return nil, err
	default:
		if m.RunUID == t.options.Run.UID {
			t.journal = m
		}
		r = t.summarize(ctx, nil)
		r.Ended = t.now().UTC()
	}
	return &r, nil
}
