// Package reaper gives back the environments of a namespace that nobody holds any
// more. It runs every minute beside all runs, so that nothing that happens to a run can
// keep it from doing so.
package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

// How long the parts of a pass take at most. docs/reaper.md has the sum that they are
// part of: a pass ends within the minute that it began in.
const (
	// patience is what a holder whose Lease has ended is given to renew it: where the API
	// server was away for all of us, holders try again every lease.RetryEvery.
	patience = 10 * time.Second
	// goneWithin is for the pods of what is given back, which have 30 s between SIGTERM and SIGKILL.
	goneWithin = 35 * time.Second
)

// attempts is how often an environment that changes while it is given back is looked at again: a step
// that ends may still renew it.
const attempts = 3

// Options of one pass over a namespace.
type Options struct {
	// DryRun changes nothing, and logs what would be released and why.
	DryRun bool
}

// Deps are what Run works with.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
}

// Run looks once at all environments of the clients' namespace and releases the abandoned ones.
func Run(ctx context.Context, d Deps, o Options) error {
	r := &reaper{clients: d.Clients, log: d.Log, now: time.Now, dryRun: o.DryRun}
	return r.pass(ctx)
}

type reaper struct {
	clients *kube.Clients
	log     *slog.Logger
	now     func() time.Time
	dryRun  bool
}

// pass looks at all environments once. What fails for one does not keep the others
// from being given back.
func (r *reaper) pass(ctx context.Context) error {
	found, err := r.clients.Kube.CoordinationV1().Leases(r.clients.Namespace).List(ctx, metav1.ListOptions{LabelSelector: objects.EnvironmentLabel})
	if err != nil {
		return kube.Problem(fmt.Errorf("listing leases in %s: %w", r.clients.Namespace, err))
	}
	var problems problems
	var abandoned []teardown.Abandoned
	var doubtful []*coordinationv1.Lease
	for i := range found.Items {
		one := &found.Items[i]
		switch s, err := r.look(ctx, one); {
		case err != nil:
			problems.add(err)
		case s.abandoned && s.mayReturn:
			doubtful = append(doubtful, one)
		case s.abandoned:
			abandoned = append(abandoned, teardown.Abandoned{Lease: one, Why: s.why, Timeout: goneWithin})
		}
	}
	held := len(found.Items) - len(abandoned) - len(doubtful) - len(problems.all)
	r.log.Info(fmt.Sprintf("%s in %s: %d held, %d abandoned, %d whose lease has ended.",
		humanize.Count(len(found.Items), "environment"), r.clients.Namespace, held, len(abandoned), len(doubtful)), "environments", len(found.Items), "namespace", r.clients.Namespace, "held", held, "abandoned", len(abandoned), "expired", len(doubtful))
	var all sync.WaitGroup
	for _, each := range abandoned {
		all.Go(func() { problems.add(r.giveBack(ctx, each)) })
	}
	if len(doubtful) > 0 {
		all.Go(func() { problems.add(r.again(ctx, doubtful)) })
	}
	all.Wait()
	return errors.Join(problems.all...)
}

// again looks a second time at environments whose Lease has ended, after their holders had
// time to renew it.
func (r *reaper) again(ctx context.Context, doubtful []*coordinationv1.Lease) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(patience):
	}
	var problems problems
	var all sync.WaitGroup
	for _, old := range doubtful {
		switch live, s, err := r.lookAnew(ctx, old); {
		case err != nil:
			problems.add(err)
		case live != nil && s.abandoned:
			all.Go(func() {
				problems.add(r.giveBack(ctx, teardown.Abandoned{Lease: live, Why: s.why, Timeout: goneWithin - patience}))
			})
		}
	}
	all.Wait()
	return errors.Join(problems.all...)
}

// lookAnew looks at a Lease as it is now, which is nil where it is gone.
func (r *reaper) lookAnew(ctx context.Context, old *coordinationv1.Lease) (live *coordinationv1.Lease, s standing, err error) {
	live, err = r.clients.Kube.CoordinationV1().Leases(old.Namespace).Get(ctx, old.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, s, nil
	} else if err != nil {
		return nil, s, kube.Problem(fmt.Errorf("getting lease %s/%s: %w", old.Namespace, old.Name, err))
	}
	s, err = r.look(ctx, live)
	return live, s, err
}

func (r *reaper) giveBack(ctx context.Context, a teardown.Abandoned) error {
	name := fmt.Sprintf("%s/%s", a.Lease.Namespace, a.Lease.Name)
	if r.dryRun {
		r.log.Info(fmt.Sprintf("Environment %s would be given back, because %s.", name, a.Why), "environment", name, "why", a.Why)
		return nil
	}
	for range attempts {
		r.log.Info(fmt.Sprintf("Environment %s is given back, because %s.", name, a.Why), "environment", name, "why", a.Why)
		err := teardown.GiveBack(ctx, r.clients, r.log, r.now, a)
		if !errors.Is(err, lease.ErrChanged) {
			return errors.Join(err, r.event(ctx, a, err))
		}
		live, s, err := r.lookAnew(ctx, a.Lease)
		if live == nil || err != nil {
			return err
		}
		if !s.abandoned || s.mayReturn {
			r.log.Info(fmt.Sprintf("Environment %s was renewed or taken meanwhile, and is kept.", name), "environment", name)
			return nil
		}
		a.Lease, a.Why = live, s.why
	}
	return fmt.Errorf("giving environment %s back: its lease changes all the time; the next pass looks again", name)
}

// problems are of several environments at once.
type problems struct {
	mu  sync.Mutex
	all []error
}

func (p *problems) add(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, err)
}
