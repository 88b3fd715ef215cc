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
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
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
	t := &teardown{
		options: Options{Name: a.Lease.Name, Timeout: a.Timeout}, clients: clients, log: log, now: now, failure: lease.FailureOf(a.Lease),
		leases: lease.Client{Kube: clients.Kube, Tekton: clients.Tekton, Namespace: clients.Namespace, Now: now, Log: log},
	}
	err := t.release(ctx, a.Lease, func(ctx context.Context) error { return t.leases.DeleteSeen(ctx, a.Lease) })
	holder := lease.HolderOf(a.Lease)
	if errors.Is(err, lease.ErrChanged) || !holder.Run {
		return err
	}
	t.options.Run = run.Flags{Name: holder.Display, UID: holder.ID}
	outcome := "all pods and GPUs were released by the reaper, because " + a.Why
	if err != nil {
		outcome = fmt.Sprintf("the reaper released the environment, because %s: %v", a.Why, err)
	}
	return errors.Join(err, t.complete(ctx, outcome))
}

// complete writes the outcome of the teardown to the run's receipt. A run that is gone without a receipt gets none.
func (t *teardown) complete(ctx context.Context, outcome string) error {
	r, err := receipt.Read(ctx, t.clients.Kube, t.clients.Namespace, t.options.Run.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil || r.RunUID != t.options.Run.UID {
		found, err := run.Get(ctx, t.clients.Tekton, t.clients.Namespace, t.options.Run.Name)
		if apierrors.IsNotFound(err) || err == nil && string(found.UID) != t.options.Run.UID {
			return nil
		}
		r = t.summarize(ctx, nil)
		r.Ended = t.now().UTC()
	}
	r.Teardown = outcome
	return receipt.Write(ctx, t.clients.Kube, r)
}
