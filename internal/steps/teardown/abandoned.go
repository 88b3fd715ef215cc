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

// Abandoned is an environment that its holder does not need any more.
type Abandoned struct {
	Lease *coordinationv1.Lease
	// Why nobody needs it, a clause for people.
	Why string
	// Timeout is how long pods and GPUs may take to become free.
	Timeout time.Duration
}

// GiveBack does for an abandoned environment what the teardown of its run would have
// done, but asks the nodes nothing: that would want the right to read Secrets. It
// deletes this very Lease, waits for the pods, and says so in the run's receipt, which it
// writes where there is none.
//
// Errors: lease.ErrChanged, and then nothing was done; PermissionDenied and TeardownIncomplete, with which
// the receipt is written all the same.
func GiveBack(ctx context.Context, clients *kube.Clients, log *slog.Logger, now func() time.Time, a Abandoned) error {
	t := &teardown{
		options: Options{Name: a.Lease.Name, Timeout: a.Timeout}, clients: clients, log: log, now: now,
		leases: lease.Client{Kube: clients.Kube, Tekton: clients.Tekton, Namespace: clients.Namespace, Now: now, Log: log},
	}
	began := now()
	err := t.leases.DeleteSeen(ctx, a.Lease)
	switch {
	case errors.Is(err, lease.ErrChanged):
		return err
	case err == nil:
		err = t.waitReleased(ctx, a.Lease, began)
	}
	holder := lease.HolderOf(a.Lease)
	if !holder.Run {
		return err
	}
	t.options.Run = run.Flags{Name: holder.Display, UID: holder.ID}
	told := "all pods and GPUs were given back by the reaper, because " + a.Why
	if err != nil {
		told = fmt.Sprintf("the reaper gave the environment back, because %s: %v", a.Why, err)
	}
	return errors.Join(err, t.tell(ctx, told))
}

// tell puts what was given back into the run's receipt. Of a run that is gone and left
// none nothing is known.
func (t *teardown) tell(ctx context.Context, told string) error {
	r, err := receipt.Read(ctx, t.clients.Kube, t.clients.Namespace, t.options.Run.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil || r.RunUID != t.options.Run.UID {
		found, err := run.Get(ctx, t.clients.Tekton, t.clients.Namespace, t.options.Run.Name)
		if apierrors.IsNotFound(err) || err == nil && string(found.UID) != t.options.Run.UID {
			return nil
		}
		r = t.account(ctx, nil)
		r.Ended = t.now().UTC()
	}
	r.Teardown = told
	return receipt.Write(ctx, t.clients.Kube, r)
}
