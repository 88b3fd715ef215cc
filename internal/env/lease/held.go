package lease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Held is a Lease in its holder's hands.
type Held struct {
	client Client
	name   string
	uid    types.UID
	holder Holder
}

func (c Client) held(lease *coordinationv1.Lease) *Held {
	return &Held{client: c, name: lease.Name, uid: lease.UID, holder: HolderOf(lease)}
}

// UID is the Lease's own: what Delete wants.
func (h *Held) UID() types.UID { return h.uid }

// Owner makes an object the environment's, which is deleted with the Lease.
func (h *Held) Owner() metav1.OwnerReference { return objects.LeaseReference(h.name, h.uid) }

// StillHeld finds the Lease that an earlier step of the same holder took. The
// error is EnvironmentMissing where there is none or somebody else holds it.
func (c Client) StillHeld(ctx context.Context, name, holderID string) (*Held, error) {
	lease, err := c.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	if holder := HolderOf(lease); holder.ID == "" || holder.ID != holderID {
		return nil, lost(lease, "it is held by "+orNobody(holder))
	}
	if lease.DeletionTimestamp != nil {
		return nil, lost(lease, "it is being deleted")
	}
	return c.held(lease), nil
}

// Renew makes the Lease last for its duration from now. The error is
// EnvironmentMissing where it is not held any more.
func (h *Held) Renew(ctx context.Context) error {
	leases := h.client.Kube.CoordinationV1().Leases(h.client.Namespace)
	var last error
	for range maxAttempts {
		lease, err := h.client.Find(ctx, h.name)
		if err != nil {
			return err
		}
		switch holder := HolderOf(lease); {
		case lease.UID != h.uid:
			return lost(lease, "another one was made in its place, for "+orNobody(holder))
		case holder.ID != h.holder.ID:
			return lost(lease, "it is held by "+orNobody(holder))
		case lease.DeletionTimestamp != nil:
			return lost(lease, "it is being deleted")
		}
		now := metav1.NewMicroTime(h.client.Now())
		lease.Spec.RenewTime = &now
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{FieldManager: kube.FieldManager})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return kube.Problem(fmt.Errorf("renewing lease %s/%s: %w", lease.Namespace, lease.Name, err))
		}
		last = err
	}
	return fmt.Errorf("renewing lease %s/%s: %w", h.client.Namespace, h.name, last)
}

// KeepRenewed renews the Lease now and every so often until ctx ends, which is no
// error. It gives up only where the Lease is lost (EnvironmentMissing) or may not
// be renewed (PermissionDenied): an API server that is away for a while is
// warned of, and tried again soon.
func (h *Held) KeepRenewed(ctx context.Context, every time.Duration) error {
	warned := false
	for {
		next := every
		if err := h.Renew(ctx); err != nil && ctx.Err() == nil {
			switch fail.ReasonOf(err) {
			case fail.EnvironmentMissing, fail.PermissionDenied:
				return err
			}
			next = min(every, RetryEvery)
			if !warned {
				h.client.Log.Warn(fmt.Sprintf("The lease of environment %s could not be renewed and is tried again every %s: %v", h.name, next, err), "environment", h.name, "retrySeconds", next.Seconds(), "error", err)
			}
			warned = true
		} else {
			warned = false
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

// Renewing renews the Lease in the background until stop is called or ctx ends.
// What ends it before is warned of: whoever works on goes on.
func (h *Held) Renewing(ctx context.Context) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	go func() {
		if err := h.KeepRenewed(ctx, RenewEvery); err != nil {
			h.client.Log.Warn(fmt.Sprintf("The lease of environment %s is not renewed any more: %v", h.name, err), "environment", h.name, "error", err)
		}
	}()
	return stop
}

func lost(lease *coordinationv1.Lease, seen string) error {
	return fail.Becausef(fail.EnvironmentMissing, "looking for environment %s/%s: it is not this run's any more: %s", lease.Namespace, lease.Name, seen)
}

func orNobody(h Holder) string {
	if h.ID == "" {
		return "nobody"
	}
	return h.String()
}
