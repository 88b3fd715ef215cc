// SPDX-License-Identifier: Apache-2.0

// Package reaper releases the abandoned and the idle environments of a namespace, and has Tekton start pods of steps again that it has
// lost. It runs every minute outside all runs, so that no failure of a run can stop it.
package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

// The longest times of the parts of a pass, which ends within the minute. docs/operate/capacity.md promises two minutes from the end of the
// last holder: 60 s until the next minute begins, 10 s until the Job's pod has started with its image on the node, renewalTime, 5 s to read
// and delete, and 30 s until pods that ignore SIGTERM are killed. After a final failure failureTime takes the place of renewalTime.
const (
	// renewalTime is for a holder whose Lease has expired to renew it: while the API server does not answer, holders try
	// again every five seconds.
	renewalTime = 10 * time.Second
	// failureTime is for Tekton to start the task after a step that noted a final failure in the receipt.
	failureTime = 15 * time.Second
	// clockSkew is the allowed difference between a step's clock and the API server's.
	clockSkew = 5 * time.Second
	// podsTime is for the pods of a released environment, which have 30 s between SIGTERM and SIGKILL.
	podsTime = 35 * time.Second
)

// attempts is how often an environment is looked at again that changes during its release: a step that ends may still
// renew its Lease.
const attempts = 3

// Options are how to look.
type Options struct {
	// DryRun only logs what would be released, and why.
	DryRun bool
	// Notify posts that an environment is idle.
	Notify notify.Flags
}

// Run looks once at all environments of the clients' namespace, and releases the abandoned and the idle ones.
func Run(ctx context.Context, clients *kube.Clients, log *slog.Logger, o Options) error {
	return (&reaper{clients: clients, log: log, now: clients.Now, dryRun: o.DryRun, notify: o.Notify}).pass(ctx)
}

// Stalled returns why the next pass would release the environment of a run of which a task has failed for good, because no task follows;
// "" if it would not.
func Stalled(ctx context.Context, clients *kube.Clients, l *coordinationv1.Lease) (why string, err error) {
	s, err := (&reaper{clients: clients, now: clients.Now}).look(ctx, l)
	if err != nil || !s.stalled {
		return "", err
	}
	return s.why, nil
}

type reaper struct {
	clients *kube.Clients
	log     *slog.Logger
	now     func() time.Time
	dryRun  bool
	notify  notify.Flags
}

// pass looks at all environments once. A failure with one does not keep the others from being released.
func (r *reaper) pass(ctx context.Context) error {
	found, err := lease.List(ctx, r.clients.Kube, r.clients.Namespace)
	if err != nil {
		return err
	}
	var abandoned []teardown.Orphan
	var expired, live []*coordinationv1.Lease
	var problems []error
	for i := range found {
		one := &found[i]
		switch s, err := r.look(ctx, one); {
		case err != nil:
			problems = append(problems, err)
		case s.mayReturn:
			expired = append(expired, one)
		case s.why != "":
			abandoned = append(abandoned, teardown.Orphan{Lease: one, Why: s.why, Timeout: podsTime})
		default:
			live = append(live, one)
		}
	}
	r.log.Info(fmt.Sprintf("%s in %s: %d held, %d abandoned, %d whose lease has expired.",
		humanize.Count(len(found), "environment"), r.clients.Namespace, len(live), len(abandoned), len(expired)))
	works := []func() error{func() error { return r.again(ctx, expired) }, func() error { return r.finish(ctx, found) }}
	for _, each := range abandoned {
		works = append(works, func() error { return r.release(ctx, each) })
	}
	for _, each := range live {
		care := r.idle
		if lease.HolderOf(each).Run {
			care = r.wake
		}
		works = append(works, func() error { return care(ctx, each) })
	}
	return errors.Join(append(problems, parallel.Map(works, func(work func() error) error { return work() })...)...)
}

// again looks a second time at environments whose Lease has expired, after their holders had time to renew it.
func (r *reaper) again(ctx context.Context, expired []*coordinationv1.Lease) error {
	if len(expired) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(renewalTime):
	}
	return errors.Join(parallel.Map(expired, func(old *coordinationv1.Lease) error {
		live, s, err := r.lookAgain(ctx, old)
		if err != nil || s.why == "" {
			return err
		}
		return r.release(ctx, teardown.Orphan{Lease: live, Why: s.why, Timeout: podsTime - renewalTime})
	})...)
}

// lookAgain reads a Lease again; it is nil if the Lease is gone.
func (r *reaper) lookAgain(ctx context.Context, old *coordinationv1.Lease) (live *coordinationv1.Lease, s status, err error) {
	live, err = r.clients.Kube.CoordinationV1().Leases(old.Namespace).Get(ctx, old.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, s, nil
	} else if err != nil {
		return nil, s, kube.Problem(fmt.Errorf("getting lease %s/%s: %w", old.Namespace, old.Name, err))
	}
	s, err = r.look(ctx, live)
	return live, s, err
}

func (r *reaper) release(ctx context.Context, a teardown.Orphan) error {
	name := fmt.Sprintf("%s/%s", a.Lease.Namespace, a.Lease.Name)
	if r.dryRun {
		r.log.Info(fmt.Sprintf("Environment %s would be released, because %s.", name, a.Why))
		return nil
	}
	for range attempts {
		r.log.Info(fmt.Sprintf("Environment %s is released, because %s.", name, a.Why), "event", "environment-released", "environment", name,
			"why", a.Why)
		err := teardown.Release(ctx, r.clients, r.log, r.now, a)
		if !errors.Is(err, lease.ErrChanged) {
			return errors.Join(err, r.event(ctx, a, err))
		}
		live, s, err := r.lookAgain(ctx, a.Lease)
		if live == nil || err != nil {
			return err
		}
		if s.why == "" || s.mayReturn {
			r.log.Info(fmt.Sprintf("Environment %s was renewed or taken meanwhile, and stays.", name))
			return nil
		}
		a.Lease, a.Why = live, s.why
	}
	return fmt.Errorf("releasing environment %s: its lease changes all the time; the next pass looks again", name)
}
