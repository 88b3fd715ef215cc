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

// Attach is Connect for a step of a run. The Lease that the run took is renewed
// until detach is called, which closes the connections too. Where ctx has ended by
// then because the run ends without its finally tasks, detach gives the
// environment back: no teardown comes after it.
//
// The error is EnvironmentMissing where the run does not hold the environment.
// A person works with whatever environment there is. One that they hold themselves is
// renewed too, and so lasts from now for as long as it was taken for.
func Attach(ctx context.Context, clients *kube.Clients, log *slog.Logger, name, certs string, of run.Flags) (set Set, detach func(), err error) {
	leases := lease.Client{Kube: clients.Kube, Tekton: clients.Tekton, Namespace: clients.Namespace, Now: time.Now, Log: log}
	if of.UID == "" {
		return attachPerson(ctx, clients, leases, name, certs)
	}
	held, err := leases.StillHeld(ctx, name, of.UID)
	if err != nil {
		return nil, nil, err
	}
	if set, err = Connect(ctx, clients, name, certs); err != nil {
		return nil, nil, err
	}
	stop := held.Renewing(ctx)
	return set, func() {
		set.Close()
		stop()
		if ctx.Err() == nil {
			return
		}
		// What is left of the 30 s between SIGTERM and SIGKILL.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		ending, err := run.EndingOf(ctx, clients.Tekton, clients.Namespace, of.Name, types.UID(of.UID), of.Task, time.Now())
		if err != nil || !ending.NoFinally {
			return // a teardown follows, or may
		}
		log.Info(fmt.Sprintf("No teardown follows, for %s: environment %s is given back now; its claims stay.", ending.Message, name), "why", ending.Message, "environment", name)
		if err := leases.Delete(ctx, name, held.UID()); err != nil {
			log.Warn(fmt.Sprintf("It was not given back: %v", err), "error", err)
		}
	}, nil
}

// attachPerson is Attach of who runs a step by hand.
func attachPerson(ctx context.Context, clients *kube.Clients, leases lease.Client, name, certs string) (set Set, detach func(), err error) {
	if set, err = Connect(ctx, clients, name, certs); err != nil {
		return nil, nil, err
	}
	held, err := leases.StillHeld(ctx, name, lease.Person().ID)
	switch fail.ReasonOf(err) {
	case fail.EnvironmentMissing, fail.PermissionDenied:
		return set, set.Close, nil // it is somebody else's, or may not be read
	}
	if err != nil {
		// What is not renewed the reaper takes from under them, hours later.
		set.Close()
		return nil, nil, err
	}
	stop := held.Renewing(ctx)
	return set, func() { set.Close(); stop() }, nil
}
