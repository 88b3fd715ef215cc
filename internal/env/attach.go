// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Attach is Nodes for a step. The Lease is renewed until detach is called, which also closes the connections, and deletes
// the Lease if ctx has ended because the run ends without its finally tasks, so that no teardown follows. The error is
// EnvironmentMissing if the run does not hold the environment; a person works with any.
func (e Environment) Attach(ctx context.Context, log *slog.Logger, certs string, of run.Flags) (set nodes.Set, detach func(), err error) {
	hold, err := e.holdOf(ctx, log, of)
	if err != nil {
		return nil, nil, err
	}
	if set, err = e.Nodes(ctx, certs); err != nil {
		return nil, nil, err
	}
	if of.UID == "" { // the reaper deletes no Lease that has changed since it asked the nodes
		change := e.Lease(log).NoteUse
		if hold != nil {
			change = hold.Renew
		}
		if err := change(ctx); fail.ReasonOf(err) == fail.EnvironmentMissing {
			set.Close()
			return nil, nil, err
		}
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
		ending, err := run.EndingOf(ctx, e.clients.Tekton, e.Namespace, of.Name, types.UID(of.UID), of.Task, e.clients.Now())
		if err != nil || !ending.NoFinally {
			return // a teardown follows, or may
		}
		log.Info(fmt.Sprintf("No teardown follows because %s: environment %s is released now; its claims stay.", ending.Message, e.Name))
		if err := e.Release(ctx, log, hold.UID()); err != nil {
			log.Warn(fmt.Sprintf("The environment was not released: %v", err))
		}
	}, nil
}

// holdOf returns the hold of the run, or of the user who runs the step by hand. It is nil if another run or user holds the environment.
func (e Environment) holdOf(ctx context.Context, log *slog.Logger, of run.Flags) (*lease.Hold, error) {
	if of.UID != "" {
		return e.Lease(log).StillHeld(ctx, of.UID)
	}
	me, err := lease.Person(ctx, e.clients.Kube)
	if err != nil {
		return nil, err
	}
	hold, err := e.Lease(log).StillHeld(ctx, me.ID)
	switch fail.ReasonOf(err) {
	case fail.EnvironmentMissing, fail.PermissionDenied:
		return nil, nil
	}
	return hold, err
}
