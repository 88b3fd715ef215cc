// SPDX-License-Identifier: Apache-2.0

// Package teardown writes a run's receipt and releases its environment.
package teardown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Options are the environment to release, and the limits for it.
type Options struct {
	// Run is the PipelineRun whose receipt is written; without it a person releases the environment.
	Run run.Flags
	// Name is the environment.
	Name string
	// ClientCerts is the folder of the environment's mounted client Secret; without it the Secret is read.
	ClientCerts string
	// Artifacts is a folder to copy the whole logs of all ranks into, "" for none.
	Artifacts string
	// Timeout is the time for pods and GPUs to become free.
	Timeout time.Duration
	// Keep keeps the environment of a successful run until its lease expires.
	Keep bool
	// Force also releases an environment that another run or user holds.
	Force bool
}

// Deps are what Run works with.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
	// Notify posts the end of a run; nil posts nothing.
	Notify *notify.Sender
}

// Run writes the receipt, releases the environment and waits until its pods are gone. The receipt is valid even with an
// error, and written if it has a Run.
func Run(ctx context.Context, d Deps, o Options) (receipt.Receipt, error) {
	t := &teardown{
		options: o, clients: d.Clients, log: d.Log, now: d.Clients.Now, notify: d.Notify.Send,
	}
	defer d.Notify.Wait()
	return t.run(ctx)
}

// lastTime bounds the last write after SIGTERM.
const lastTime = 10 * time.Second

type teardown struct {
	options Options
	clients *kube.Clients
	log     *slog.Logger
	now     func() time.Time
	// journal is what the steps have noted in the run's receipt, zero for nothing.
	journal receipt.Journal
	// notify gets the end of a run.
	notify func(notify.Event)
	// reaps is true for the reaper, whose pass ends within a minute.
	reaps bool
}

func (t *teardown) environment() env.Environment { return env.Of(t.clients, t.options.Name) }

func (t *teardown) lease() lease.Client { return t.environment().Lease(t.log) }

// run writes the receipt before it deletes anything, so that the receipt is not lost with this step, and again when it knows what
// was released.
func (t *teardown) run(ctx context.Context) (receipt.Receipt, error) {
	held, free, err := t.own(ctx)
	if err != nil {
		return receipt.Receipt{}, err
	}
	t.journal = t.readJournal(ctx)
	r := t.summarize(ctx, held)
	write := func(ctx context.Context) error {
		if t.options.Run.Name == "" {
			return nil
		}
		return receipt.Write(ctx, t.clients.Kube, r)
	}
	// Nothing may prevent the release: other failures are reported after it. A failure of this write is none if the last one succeeds.
	var problems error
	early := write(ctx)
	if t.options.Keep && r.Verdict == receipt.Succeeded && held != nil && early == nil {
		if err := t.waitLeaseEnds(ctx, held); err != nil && ctx.Err() == nil {
			problems = err
		}
	}
	if held != nil {
		err = t.release(ctx, held, func(ctx context.Context) error { return t.environment().Release(ctx, t.log, held.UID) })
	} else if free {
		// Pods may outlive their Lease for a while.
		err = t.waitGone(ctx)
	}
	r.Teardown = "there was nothing to release"
	if held != nil || len(r.Nodes) > 0 {
		r.Teardown = "all pods and GPUs were released"
	}
	if err != nil {
		problems = errors.Join(problems, err)
		r.NotReleased(err)
	}
	r.Ended = t.now().UTC()
	r.Goodput = receipt.GoodputOf(r)
	limit := kube.Patience
	if ctx.Err() != nil { // after SIGTERM the step still has some seconds
		limit = lastTime
	}
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	problems = errors.Join(problems, write(writing))
	if t.options.Run.Name == "" {
		return r, problems
	}
	t.notify(ended(r))
	if err := receipt.Prune(writing, t.clients.Kube, t.clients.Namespace, t.options.Name, r.Schedule, false); err != nil {
		t.log.Warn(fmt.Sprintf("Old receipts stay: %v", err))
	}
	name := receipt.Name(t.options.Run.Name)
	t.log.Info(fmt.Sprintf("Verdict: %s. The receipt is configmap %s/%s.", verdict(r), t.clients.Namespace, name), "event", "verdict",
		"verdict", r.Verdict, "reason", r.Reason, "namespace", t.clients.Namespace, "configMap", name)
	return r, problems
}

// ended returns the event of the end of a run.
func ended(r receipt.Receipt) notify.Event {
	e := notify.Event{Kind: notify.End, Verdict: string(r.Verdict), Reason: r.Reason, Message: cmp.Or(r.Message, r.Warning),
		Seconds: notify.Took(r.Started, r.Ended)}
	if r.Training != nil {
		e.Nodes, e.Attempt = r.Training.Nodes, max(1, len(r.Attempts))
	}
	return e
}

func verdict(r receipt.Receipt) string {
	if r.Reason == "" {
		return string(r.Verdict)
	}
	return fmt.Sprintf("%s (%s)", r.Verdict, r.Reason)
}

// own returns the Lease that this run or user holds. It is nil if there is none (then free is true), and for a run also if
// it has another holder.
func (t *teardown) own(ctx context.Context) (held *coordinationv1.Lease, free bool, err error) {
	found, err := t.lease().Find(ctx)
	if fail.ReasonOf(err) == fail.EnvironmentMissing {
		t.log.Info(fmt.Sprintf("There is no environment %s/%s.", t.clients.Namespace, t.options.Name))
		return nil, true, nil
	} else if err != nil {
		return nil, false, err
	}
	holder := lease.HolderOf(found)
	me := t.options.Run.UID
	if me == "" && !t.options.Force && holder.ID != "" {
		person, err := lease.Person(ctx, t.clients.Kube)
		if err != nil {
			return nil, false, err
		}
		me = person.ID
	}
	switch {
	case t.options.Force, holder.ID == "", holder.ID == me:
		return found, false, nil
	case t.options.Run.UID != "":
		// A run that never got the environment has nothing to release.
		t.log.Info(fmt.Sprintf("Environment %s/%s is held by %s and is left alone.", t.clients.Namespace, t.options.Name, holder))
		return nil, false, nil
	}
	return nil, false, fail.Advise(fail.Becausef(fail.EnvironmentBusy, "tearing environment %s/%s down: it is held by %s", t.clients.Namespace,
		t.options.Name, holder),
		"ask them, or use --force")
}

func (t *teardown) waitLeaseEnds(ctx context.Context, held *coordinationv1.Lease) error {
	logged := time.Time{}
	return kube.UntilOne(ctx, "lease "+held.Name, t.clients.Kube.CoordinationV1().Leases(held.Namespace), held.Name,
		func(live *coordinationv1.Lease) (bool, error) {
			if live == nil || live.UID != held.UID || live.DeletionTimestamp != nil {
				return true, nil
			}
			ends := lease.Ends(live)
			if !ends.Equal(logged) {
				t.log.Info(fmt.Sprintf("The environment is kept until %s. To end it now: mlenv down %s -n %s --force", ends.UTC().Format(time.RFC3339),
					held.Name, held.Namespace))
				logged = ends
			}
			return lease.Expired(live, t.now()), nil
		})
}

// release has the Lease deleted, which owns the environment, and waits until the pods are gone. It continues after SIGTERM.
func (t *teardown) release(ctx context.Context, held *coordinationv1.Lease, deleteLease func(context.Context) error) error {
	ctx, began := context.WithoutCancel(ctx), time.Now()
	if err := deleteLease(ctx); err != nil {
		return err
	}
	t.log.Debug(fmt.Sprintf("Environment %s/%s is being deleted; its claims stay.", held.Namespace, held.Name))
	if err := t.waitGone(ctx); err != nil {
		return err
	}
	if err := t.waitLeaseGone(ctx, held.UID); err != nil {
		return err
	}
	// By this machine's clock: the API server's is known to a second.
	took := time.Since(began).Seconds()
	t.log.Info(fmt.Sprintf("All pods are gone and their GPUs free after %.1f s.", took), "event", "released", "seconds", took)
	return nil
}

// waitGone waits until the environment has no pod. A pod whose ranks save when it ends has its time in addition to the timeout, unless
// this is the reaper, which does not wait so long.
func (t *teardown) waitGone(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	err := t.waitGoneFor(ctx, t.options.Timeout)
	if until := t.savingUntil(ctx); fail.ReasonOf(err) == fail.TeardownIncomplete && !t.reaps && until.After(t.now()) {
		t.log.Info(fmt.Sprintf("Ranks may save until %s.", until.UTC().Format(time.RFC3339)))
		err = t.waitGoneFor(ctx, until.Sub(t.now())+t.options.Timeout)
	}
	return err
}

func (t *teardown) waitGoneFor(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last := -1
	return t.environment().WaitGone(ctx, func(left []*corev1.Pod) {
		if len(left) != last && len(left) > 0 {
			t.log.Info("  " + humanize.Count(len(left), "pod") + " left")
		}
		last = len(left)
	})
}

// savingUntil returns when the last pod's time to end is over, zero if a pod is not ending or the pods cannot be read.
func (t *teardown) savingUntil(ctx context.Context) (until time.Time) {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	pods, err := t.environment().Pods(asking)
	if err != nil {
		return until
	}
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil { // which is the end of the pod's grace
			return time.Time{}
		}
		if pod.DeletionTimestamp.After(until) {
			until = pod.DeletionTimestamp.Time
		}
	}
	return until
}

// waitLeaseGone proves that the Lease itself is gone.
func (t *teardown) waitLeaseGone(ctx context.Context, uid types.UID) error {
	found, err := t.lease().Find(ctx)
	if fail.ReasonOf(err) == fail.EnvironmentMissing || err == nil && found.UID != uid {
		return nil
	} else if err != nil {
		return err
	}
	return fail.Becausef(fail.TeardownIncomplete, "deleting lease %s/%s: it still exists; finalizers: %v", found.Namespace, found.Name,
		found.Finalizers)
}
