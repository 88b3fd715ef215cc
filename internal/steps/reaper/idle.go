// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

// idleReason is the reason of the event that warns of a release, as oc get events shows it.
const idleReason = "EnvironmentIdle"

// idle releases a person's environment that was not used for its idle-timeout, and warns some minutes before. An environment whose
// nodes do not answer stays: it may be starting.
func (r *reaper) idle(ctx context.Context, l *coordinationv1.Lease) error {
	began := time.Now()
	idle, err := env.Of(r.clients, l.Name).Idle(ctx, l)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		r.log.Warn(fmt.Sprintf("Environment %s/%s stays: %v", l.Namespace, l.Name, err))
		return nil
	case idle == nil:
		return nil
	case idle.Over():
		return r.release(ctx, teardown.Orphan{Lease: l, Why: idle.Why(), Timeout: podsTime - time.Since(began)})
	case idle.Near():
		return r.warn(ctx, l, *idle)
	}
	return nil
}

// warn records a warning, and posts it if there is a Secret for that: once for each time without use, because a pass has no memory
// except the event of an earlier one.
func (r *reaper) warn(ctx context.Context, l *coordinationv1.Lease, idle env.Idle) error {
	r.log.Info(idle.String(), "event", "environment-idle", "environment", idle.Environment, "seconds", idle.Use.Idle.Seconds())
	if r.dryRun {
		return nil
	}
	use := fmt.Sprintf("%x", idle.Use.At.UnixNano())
	created, err := r.record(ctx, l, l.Name+".idle."+use, idleReason, corev1.EventTypeWarning, idle.String())
	if err != nil || !created {
		return err
	}
	sender := r.notify.Open(r.log, notify.Event{Namespace: l.Namespace, Environment: l.Name}, string(l.UID)+"-"+use)
	sender.Send(notify.Event{Kind: notify.Idle, Message: idle.String(), Seconds: idle.Use.Idle.Seconds()})
	sender.Wait()
	return nil
}
