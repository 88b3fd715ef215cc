// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// maxAttempts bounds the retries of a writer that always comes second.
const maxAttempts = 10

// collection is how long Kubernetes may take to delete the Lease of a deleted run.
const collection = time.Minute

const repeatEvery = 30 * time.Second // the time between two lines about who holds the environment

// Request is for the Lease.
type Request struct {
	Holder Holder
	// Owner is the run that deletes the environment with itself, nil for an environment that outlives its run, or has none.
	Owner *metav1.OwnerReference
	// Duration is how long the Lease lasts without renewal, in whole seconds.
	Duration time.Duration
	// IdleTimeout is how long the environment may be unused before it is released, 0 for no bound. It counts for a person's alone.
	IdleTimeout time.Duration
}

// Acquire takes the Lease, or takes it again for the same holder with the new owner and duration. It
// replaces an expired Lease, unless the holder's run is active. With a new Lease it waits until nothing of earlier
// environments of that name is left. Errors: EnvironmentBusy as *Busy, PermissionDenied; TeardownIncomplete if something
// is left at ctx's deadline, although the Lease is then held.
func (c Client) Acquire(ctx context.Context, r Request) (*Hold, error) {
	if r.Holder.ID == "" {
		return nil, fail.Becausef(fail.InvalidInput, "taking environment %s/%s: the holder has no ID: want a PipelineRun's UID or a person",
			c.namespace, c.name)
	}
	var last error
	for range maxAttempts {
		hold, err := c.tryAcquire(ctx, r)
		if !errors.Is(err, ErrChanged) {
			return hold, err
		}
		last = err
	}
	return nil, fmt.Errorf("taking lease %s/%s: another run or user was faster %d times: %w", c.namespace, c.name, maxAttempts, last)
}

// tryAcquire is one attempt; with ErrChanged another one may succeed.
func (c Client) tryAcquire(ctx context.Context, r Request) (*Hold, error) {
	leases := c.kube.CoordinationV1().Leases(c.namespace)
	found, err := c.Find(ctx)
	switch {
	case fail.ReasonOf(err) == fail.EnvironmentMissing:
		made, err := leases.Create(ctx, c.fill(&coordinationv1.Lease{}, r), metav1.CreateOptions{FieldManager: kube.FieldManager})
		if apierrors.IsAlreadyExists(err) {
			return nil, ErrChanged
		} else if err != nil {
			return nil, kube.Problem(fmt.Errorf("creating lease %s/%s: %w", c.namespace, c.name, err))
		}
		return c.newHold(made), c.waitGone(ctx)
	case err != nil:
		return nil, err
	case found.DeletionTimestamp != nil:
		return nil, c.waitDeleted(ctx, found)
	}
	if id := HolderOf(found).ID; id != "" && id != r.Holder.ID {
		busy := c.ReadHolder(ctx, found)
		if busy.Run == RunGone && len(found.OwnerReferences) > 0 && !busy.Replaceable() {
			c.log.Info(fmt.Sprintf("Environment %s was held by %s, which was deleted; waiting until its Lease is.", c.name, busy.Holder))
			collecting, cancel := context.WithTimeout(ctx, collection)
			defer cancel()
			if err := c.waitDeleted(collecting, found); errors.Is(err, ErrChanged) {
				return nil, err
			}
		}
		if !busy.Replaceable() {
			return nil, busy.problem()
		}
		c.log.Info(fmt.Sprintf("Environment %s was left behind by %s; it is deleted and created again.", c.name, busy.Holder))
		// DeleteSeen, because its holder may renew it at this moment.
		if err := c.DeleteSeen(ctx, found); err != nil {
			return nil, err
		}
		return nil, c.waitDeleted(ctx, found)
	}
	updated, err := leases.Update(ctx, c.fill(found, r), metav1.UpdateOptions{FieldManager: kube.FieldManager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil, ErrChanged
	} else if err != nil {
		return nil, kube.Problem(fmt.Errorf("taking lease %s/%s: %w", c.namespace, c.name, err))
	}
	return c.newHold(updated), nil
}

// waitDeleted waits until this very Lease is gone; then its error is ErrChanged.
func (c Client) waitDeleted(ctx context.Context, lease *coordinationv1.Lease) error {
	err := c.watchLease(ctx, func(live *coordinationv1.Lease) (bool, error) { return live == nil || live.UID != lease.UID, nil })
	return cmp.Or(err, ErrChanged)
}

// AcquireWhenFree is Acquire that waits while another run or user holds the environment. At ctx's deadline the error is
// EnvironmentBusy as *Busy.
func (c Client) AcquireWhenFree(ctx context.Context, r Request) (*Hold, error) {
	for {
		hold, err := c.Acquire(ctx, r)
		var busy *Busy
		if !errors.As(err, &busy) {
			return hold, err
		}
		if err := c.waitFree(ctx, busy); err != nil {
			return nil, err
		}
	}
}

// fill returns a copy of the Lease with what the request asks for.
func (c Client) fill(lease *coordinationv1.Lease, r Request) *coordinationv1.Lease {
	now := metav1.NewMicroTime(c.Now())
	lease = lease.DeepCopy()
	lease.Name, lease.Namespace = c.name, c.namespace
	for key, value := range objects.Labels(c.name) {
		metav1.SetMetaDataLabel(&lease.ObjectMeta, key, value)
	}
	lease.OwnerReferences = nil
	if r.Owner != nil {
		lease.OwnerReferences = []metav1.OwnerReference{*r.Owner}
	}
	if HolderOf(lease).ID != r.Holder.ID {
		kind := kindPerson
		if r.Holder.Run {
			kind = kindRun
		}
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, HolderName, r.Holder.Display)
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, HolderKind, kind)
		lease.Spec.HolderIdentity = &r.Holder.ID
		lease.Spec.AcquireTime = &now
	}
	delete(lease.Annotations, IdleAnnotation)
	if r.IdleTimeout > 0 && !r.Holder.Run {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, IdleAnnotation, r.IdleTimeout.String())
	}
	seconds := int32(max(1, r.Duration/time.Second))
	lease.Spec.LeaseDurationSeconds = &seconds
	lease.Spec.RenewTime = &now
	return lease
}

func (c Client) waitGone(ctx context.Context) error {
	report := c.logOnChange()
	return kube.WaitGone(ctx, c.kube, c.namespace, names.Selector(c.name).String(), func(left []*corev1.Pod) {
		if len(left) == 0 {
			report(fmt.Sprintf("Waiting until the statefulset of an earlier environment %s is gone.", c.name))
			return
		}
		names := make([]string, 0, len(left))
		for _, pod := range left {
			names = append(names, pod.Name)
		}
		report(fmt.Sprintf("Waiting until the pods of an earlier environment are gone: %s.", strings.Join(names, ", ")))
	})
}

// waitFree waits until the busy environment can be taken, which another caller may still do first.
func (c Client) waitFree(ctx context.Context, busy *Busy) error {
	report := c.logOnChange()
	err := c.watchLease(ctx, func(live *coordinationv1.Lease) (bool, error) {
		if live == nil || HolderOf(live).ID == "" {
			return true, nil
		}
		busy = c.ReadHolder(ctx, live)
		if busy.Replaceable() {
			return true, nil
		}
		report(fmt.Sprintf("Waiting for environment %s: %s.", busy.Name, busy.Describe()))
		return false, nil
	})
	// ctx.Err() and not err: a deadline may have a cause of its own.
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return busy.problem()
	}
	return err
}

// watchLease calls done with the Lease, nil while there is none, until done returns true or an error.
func (c Client) watchLease(ctx context.Context, done func(*coordinationv1.Lease) (bool, error)) error {
	return kube.UntilOne(ctx, fmt.Sprintf("lease %s/%s", c.namespace, c.name), c.kube.CoordinationV1().Leases(c.namespace), c.name, done)
}

func (c Client) logOnChange() func(message string) {
	var last string
	var when time.Time
	return func(message string) {
		if message == last && c.Now().Sub(when) < repeatEvery {
			return
		}
		last, when = message, c.Now()
		c.log.Info(message)
	}
}
