// Package teardown writes a run's receipt and gives back what it held.
package teardown

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// Options say which environment is released, and whose it may be.
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
	// Keep keeps the environment of a successful run until its lease ends.
	Keep bool
	// Force releases an environment that somebody else holds, too.
	Force bool
}

// Deps are what Run works with.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
}

// Result is what the run was.
type Result struct {
	// Name is the receipt's, "" if there was no run to write one for.
	Name    string
	Receipt receipt.Receipt
}

// Run writes the receipt, releases the environment and waits until its pods are gone.
// The result is valid with an error too.
func Run(ctx context.Context, d Deps, o Options) (Result, error) {
	t := &teardown{
		options: o, clients: d.Clients, log: d.Log, now: time.Now,
		leases: lease.Client{Kube: d.Clients.Kube, Tekton: d.Clients.Tekton, Namespace: d.Clients.Namespace, Now: time.Now, Log: d.Log},
	}
	name, written, err := t.run(ctx)
	return Result{Name: name, Receipt: written}, err
}

type teardown struct {
	options Options
	clients *kube.Clients
	leases  lease.Client
	log     *slog.Logger
	now     func() time.Time
}

// run returns the receipt, and its name where there was a run to write one for.
//
// The receipt is written before anything is deleted, so that it is not lost with
// this step, and again when it is known what was given back.
func (t *teardown) run(ctx context.Context) (string, receipt.Receipt, error) {
	held, free, err := t.mine(ctx)
	if err != nil {
		return "", receipt.Receipt{}, err
	}
	r := t.account(ctx, held)
	write := func(ctx context.Context) error {
		if t.options.Run.Name == "" {
			return nil
		}
		return receipt.Write(ctx, t.clients.Kube, r)
	}
	// Nothing may keep the GPUs from being given back: what else fails is told after.
	problems := write(ctx)
	if t.options.Keep && r.Verdict == receipt.Succeeded && held != nil && problems == nil {
		if err := t.waitLeaseEnds(ctx, held); err != nil && ctx.Err() == nil {
			problems = errors.Join(problems, err)
		}
	}
	if held != nil {
		err = t.release(ctx, held)
	} else if free {
		// Of an environment whose Lease is gone pods may be left.
		err = t.waitGone(ctx)
	}
	r.Teardown = "there was nothing to give back"
	if held != nil || len(r.Nodes) > 0 {
		r.Teardown = "all pods and GPUs were given back"
	}
	if err != nil {
		r.Teardown = err.Error()
		problems = errors.Join(problems, err)
		if r.Verdict == receipt.Succeeded {
			r.Verdict, r.Reason, r.Message = receipt.Failed, string(fail.ReasonOf(err)), err.Error()
		}
	}
	r.Ended = t.now().UTC()
	// A step that was told to end still has some seconds.
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	problems = errors.Join(problems, write(writing))
	if t.options.Run.Name == "" {
		return "", r, problems
	}
	if err := receipt.Prune(writing, t.clients.Kube, t.clients.Namespace, t.options.Name, r.Schedule); err != nil {
		t.log.Warn(fmt.Sprintf("Old receipts stay: %v", err))
	}
	name := receipt.Name(t.options.Run.Name)
	t.log.Info(fmt.Sprintf("Verdict: %s. The receipt is configmap %s/%s.", verdict(r), t.clients.Namespace, name))
	return name, r, problems
}

func verdict(r receipt.Receipt) string {
	if r.Reason == "" {
		return string(r.Verdict)
	}
	return fmt.Sprintf("%s (%s)", r.Verdict, r.Reason)
}

// mine is the Lease that this run or person holds, nil where there is none (then
// free is true) or it is another run's.
func (t *teardown) mine(ctx context.Context) (held *coordinationv1.Lease, free bool, err error) {
	found, err := t.leases.Find(ctx, t.options.Name)
	if fail.ReasonOf(err) == fail.EnvironmentMissing {
		t.log.Info(fmt.Sprintf("There is no environment %s/%s.", t.clients.Namespace, t.options.Name))
		return nil, true, nil
	} else if err != nil {
		return nil, false, err
	}
	holder := lease.HolderOf(found)
	switch {
	case t.options.Force, holder.ID == "":
		return found, false, nil
	case t.options.Run.UID != "" && holder.ID != t.options.Run.UID:
		// A run that never got the environment has nothing to give back.
		t.log.Info(fmt.Sprintf("Environment %s/%s is held by %s and is left alone.", t.clients.Namespace, t.options.Name, holder))
		return nil, false, nil
	case t.options.Run.UID == "" && holder.ID != lease.Person().ID:
		return nil, false, fail.Advise(fail.Becausef(fail.EnvironmentBusy, "tearing environment %s/%s down: it is held by %s", t.clients.Namespace, t.options.Name, holder),
			"ask them, or use --force")
	}
	return found, false, nil
}

// waitLeaseEnds watches the Lease until it has ended, is gone, or is taken.
func (t *teardown) waitLeaseEnds(ctx context.Context, held *coordinationv1.Lease) error {
	said := time.Time{}
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", held.Name).String()}
	return kube.Until(ctx, "lease "+held.Name, t.clients.Kube.CoordinationV1().Leases(held.Namespace), options, func(found []*coordinationv1.Lease) (bool, error) {
		if len(found) == 0 || found[0].UID != held.UID || found[0].DeletionTimestamp != nil {
			return true, nil
		}
		ends := lease.Ends(found[0])
		if !ends.Equal(said) {
			t.log.Info(fmt.Sprintf("The environment is kept until %s. To end it now: oc delete lease %s -n %s", ends.UTC().Format(time.RFC3339), held.Name, held.Namespace))
			said = ends
		}
		return !ends.IsZero() && t.now().After(ends), nil
	})
}

// release deletes the Lease, and with it all else, and waits until the pods are
// gone. It goes on when the step is told to end, for as long as it is let.
func (t *teardown) release(ctx context.Context, held *coordinationv1.Lease) error {
	began := t.now()
	if err := t.leases.Delete(context.WithoutCancel(ctx), held.Name, held.UID); err != nil {
		return err
	}
	return t.waitReleased(ctx, held, began)
}

// waitReleased waits until what a deleted Lease owned is gone.
func (t *teardown) waitReleased(ctx context.Context, held *coordinationv1.Lease, began time.Time) error {
	ctx = context.WithoutCancel(ctx)
	t.log.Info(fmt.Sprintf("Environment %s/%s is being deleted; its claims stay.", held.Namespace, held.Name))
	if err := t.waitGone(ctx); err != nil {
		return err
	}
	if err := t.waitLeaseGone(ctx, held.UID); err != nil {
		return err
	}
	t.log.Info(fmt.Sprintf("All pods are gone and their GPUs free after %.1f s.", t.now().Sub(began).Seconds()))
	return nil
}

// waitGone waits until no pod of the environment is left.
func (t *teardown) waitGone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.options.Timeout)
	defer cancel()
	last := -1
	return kube.WaitGone(ctx, t.clients.Kube, t.clients.Namespace, objects.Selector(t.options.Name).String(), func(left []*corev1.Pod) {
		if len(left) != last && len(left) > 0 {
			t.log.Info("  " + humanize.Count(len(left), "pod") + " still there")
		}
		last = len(left)
	})
}

// waitLeaseGone proves that the root itself is gone.
func (t *teardown) waitLeaseGone(ctx context.Context, uid types.UID) error {
	found, err := t.clients.Kube.CoordinationV1().Leases(t.clients.Namespace).Get(ctx, t.options.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && found.UID != uid {
		return nil
	} else if err != nil {
		return kube.Problem(fmt.Errorf("getting lease %s/%s: %w", t.clients.Namespace, t.options.Name, err))
	}
	return fail.Becausef(fail.TeardownIncomplete, "deleting lease %s/%s: it is still there; finalizers: %v", found.Namespace, found.Name, found.Finalizers)
}
