// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Hold is a holder's hold on a Lease.
type Hold struct {
	client Client
	uid    types.UID
	holder string
	// every is the time between two renewals.
	every time.Duration
}

func (c Client) newHold(lease *coordinationv1.Lease) *Hold {
	h := &Hold{client: c, uid: lease.UID, holder: HolderOf(lease).ID, every: RenewEvery}
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil { // keep-for may be shorter than the Lease of a run
		h.every = min(h.every, time.Duration(*seconds)*time.Second/4)
	}
	return h
}

// UID returns the Lease's UID, for Delete.
func (h *Hold) UID() types.UID { return h.uid }

// OwnerReference returns the reference of the environment's objects to the Lease, which deletes them with it.
func (h *Hold) OwnerReference() metav1.OwnerReference {
	return objects.LeaseReference(h.client.name, h.uid)
}

// StillHeld finds the Lease that an earlier step of the same holder took. The error is EnvironmentMissing if
// the holder does not hold it.
func (c Client) StillHeld(ctx context.Context, holderID string) (*Hold, error) {
	lease, err := c.Find(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkHolder(lease, holderID); err != nil {
		return nil, err
	}
	return c.newHold(lease), nil
}

func checkHolder(lease *coordinationv1.Lease, id string) error {
	seen := ""
	switch holder := HolderOf(lease); {
	case id == "" || holder.ID != id:
		seen = "it is held by " + holder.String()
	case lease.DeletionTimestamp != nil:
		seen = "it is being deleted"
	default:
		return nil
	}
	return fail.Becausef(fail.EnvironmentMissing, "looking for environment %s/%s: it is not this run's any more: %s", lease.Namespace,
		lease.Name, seen)
}

// WaitLost waits until the holder does not hold the Lease any more, and then returns EnvironmentMissing. Other errors are of the watch.
func (h *Hold) WaitLost(ctx context.Context) error {
	return h.client.watchLease(ctx, func(live *coordinationv1.Lease) (bool, error) {
		if live == nil || live.UID != h.uid {
			return false, fail.Becausef(fail.EnvironmentMissing, "looking for environment %s/%s: its lease was deleted", h.client.namespace,
				h.client.name)
		}
		return false, checkHolder(live, h.holder)
	})
}

// Renew makes the Lease last for its duration from now. The error is EnvironmentMissing if the Lease is lost.
func (h *Hold) Renew(ctx context.Context) error {
	return h.client.change(ctx, "renewing", func(lease *coordinationv1.Lease) error {
		if err := checkHolder(lease, h.holder); err != nil {
			return err
		} else if lease.UID != h.uid {
			return fail.Becausef(fail.EnvironmentMissing, "looking for environment %s/%s: its lease was recreated for %s", lease.Namespace,
				lease.Name, HolderOf(lease))
		}
		lease.Spec.RenewTime = new(metav1.NewMicroTime(h.client.Now()))
		return nil
	})
}

// NoteUse changes the Lease of an environment that somebody else holds and that may be released as idle: the reaper deletes none that has
// changed since it asked the nodes. Another Lease stays as it is, because it counts from its last change.
func (c Client) NoteUse(ctx context.Context) error {
	if lease, err := c.Find(ctx); err != nil || IdleTimeout(lease) == 0 {
		return err
	}
	return c.change(ctx, "noting a use in", func(lease *coordinationv1.Lease) error {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, UsedAnnotation, c.Now().UTC().Format(time.RFC3339Nano))
		return nil
	})
}

// change updates the Lease, even if others update it at the same moment.
func (c Client) change(ctx context.Context, verb string, edit func(*coordinationv1.Lease) error) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease, err := c.Find(ctx)
		if err != nil {
			return err
		}
		if err := edit(lease); err != nil {
			return err
		}
		_, err = c.kube.CoordinationV1().Leases(lease.Namespace).Update(ctx, lease, metav1.UpdateOptions{FieldManager: kube.FieldManager})
		if err != nil && !apierrors.IsConflict(err) {
			return kube.Problem(fmt.Errorf("%s lease %s/%s: %w", verb, lease.Namespace, lease.Name, err))
		}
		return err
	})
}

// KeepRenewed renews the Lease now and periodically until ctx ends, which is not an error. It gives up only if the Lease is
// lost (EnvironmentMissing) or the right is missing (PermissionDenied). Other failures it logs once and retries soon.
func (h *Hold) KeepRenewed(ctx context.Context, every time.Duration) error {
	warned := false
	for {
		next := every
		err := h.Renew(ctx)
		if err != nil && ctx.Err() == nil {
			switch fail.ReasonOf(err) {
			case fail.EnvironmentMissing, fail.PermissionDenied:
				return err
			}
			next = min(every, RetryEvery)
			if !warned {
				h.client.log.Warn(fmt.Sprintf("The lease of environment %s could not be renewed and is tried again every %s: %v", h.client.name, next,
					err))
			}
		}
		warned = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

// Renewing renews the Lease in the background until stop is called or ctx ends. A lost Lease is a warning: the
// caller's work continues.
func (h *Hold) Renewing(ctx context.Context) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	go func() {
		if err := h.KeepRenewed(ctx, h.every); err != nil {
			h.client.log.Warn(fmt.Sprintf("The lease of environment %s is not renewed any more: %v", h.client.name, err))
		}
	}()
	return stop
}
