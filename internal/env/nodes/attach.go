package nodes

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// Attach is Connect for a step. The Lease is renewed until detach is called, which also closes the connections, and deletes
// the Lease if ctx has ended because the run ends without its finally tasks, so that no teardown follows. The error is
// EnvironmentMissing if the run does not hold the environment; a person works with any.
func Attach(ctx context.Context, clients *kube.Clients, log *slog.Logger, name, certs string, of run.Flags) (set Set, detach func(), err error) {
	leases := lease.Client{Kube: clients.Kube, Tekton: clients.Tekton, Namespace: clients.Namespace, Now: clients.Now, Log: log}
	hold, err := holdOf(ctx, leases, name, of)
	if err != nil {
		return nil, nil, err
	}
	if set, err = Connect(ctx, clients, name, certs); err != nil {
		return nil, nil, err
	}
	if hold == nil {
		return set, set.Close, nil
	}
	stop := hold.Renewing(ctx)
	return set, func() {
		set.Close()
		stop()
		if ctx.Err() == nil || of.UID == "" {
			return
		}
		// The rest of the 30 s between SIGTERM and SIGKILL.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		ending, err := run.EndingOf(ctx, clients.Tekton, clients.Namespace, of.Name, types.UID(of.UID), of.Task, clients.Now())
		if err != nil || !ending.NoFinally {
			return // a teardown follows, or may
		}
		log.Info(fmt.Sprintf("No teardown follows because %s: environment %s is released now; its claims stay.", ending.Message, name), "why", ending.Message, "environment", name)
		if err := leases.Delete(ctx, name, hold.UID()); err != nil {
			log.Warn(fmt.Sprintf("The environment was not released: %v", err), "environment", name, "error", err)
		}
	}, nil
}

// holdOf returns the hold of the run, or of the user who runs the step by hand. It is nil if another run or user holds the environment.
func holdOf(ctx context.Context, leases lease.Client, name string, of run.Flags) (*lease.Hold, error) {
	if of.UID != "" {
		return leases.StillHeld(ctx, name, of.UID)
	}
	me, err := leases.Person(ctx)
	if err != nil {
		return nil, err
	}
	hold, err := leases.StillHeld(ctx, name, me.ID)
	switch fail.ReasonOf(err) {
	case fail.EnvironmentMissing, fail.PermissionDenied:
		return nil, nil
	}
	return hold, err
}
