package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// maxAttempts bounds how often a writer that always comes second tries again.
const maxAttempts = 10

// sayAgain is how often a wait that does not change is spoken of.
const sayAgain = 30 * time.Second

// Request is for the Lease of one environment.
type Request struct {
	// Name of the environment and of its Lease.
	Name   string
	Holder Holder
	// Owner is the run that the environment is deleted with; nil for one that outlives its run, or has none.
	Owner *metav1.OwnerReference
	// Duration is how long the Lease lasts without being renewed. It is kept in whole seconds.
	Duration time.Duration
}

// Take takes the Lease of an environment, or takes it again for the same holder:
// then the request's owner and duration replace the earlier ones.
//
// A Lease that has ended, of a person or of a run that is done or gone, is deleted
// and made anew. With a new Lease Take waits until nothing is left of earlier
// environments of that name, so that no object can come from one.
//
// Errors: EnvironmentBusy as *Busy, PermissionDenied; TeardownIncomplete where
// something is left at ctx's deadline, and then the Lease is held nevertheless.
func (c Client) Take(ctx context.Context, r Request) (*Held, error) {
	if r.Holder.ID == "" {
		return nil, fail.Becausef(fail.InvalidInput, "taking environment %s/%s: the holder has no ID: want a PipelineRun's UID or a person", c.Namespace, r.Name)
	}
	leases := c.Kube.CoordinationV1().Leases(c.Namespace)
	var last error
	for range maxAttempts {
		found, err := c.Find(ctx, r.Name)
		switch {
		case fail.ReasonOf(err) == fail.EnvironmentMissing:
			made, err := leases.Create(ctx, c.fill(&coordinationv1.Lease{}, r), metav1.CreateOptions{FieldManager: kube.FieldManager})
			if apierrors.IsAlreadyExists(err) {
				last = err
				continue
			}
			if err != nil {
				return nil, kube.Problem(fmt.Errorf("creating lease %s/%s: %w", c.Namespace, r.Name, err))
			}
			return c.held(made), c.waitGone(ctx, r.Name)
		case err != nil:
			return nil, err
		}

		if found.DeletionTimestamp != nil {
			if err := c.waitDeleted(ctx, found); err != nil {
				return nil, err
			}
			continue
		}
		if id := HolderOf(found).ID; id != "" && id != r.Holder.ID {
			busy := c.Look(ctx, found)
			if !busy.Replaceable() {
				return nil, busy.problem()
			}
			c.Log.Info(fmt.Sprintf("Environment %s was left behind by %s; it is deleted and made anew.", r.Name, busy.Holder), "environment", r.Name, "holder", busy.Holder.String())
			if err := c.Delete(ctx, found.Name, found.UID); err != nil {
				return nil, err
			}
			if err := c.waitDeleted(ctx, found); err != nil {
				return nil, err
			}
			continue
		}

		updated, err := leases.Update(ctx, c.fill(found, r), metav1.UpdateOptions{FieldManager: kube.FieldManager})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			last = err
			continue
		}
		if err != nil {
			return nil, kube.Problem(fmt.Errorf("taking lease %s/%s: %w", c.Namespace, r.Name, err))
		}
		return c.held(updated), nil
	}
	return nil, fmt.Errorf("taking lease %s/%s: somebody else was faster %d times: %w", c.Namespace, r.Name, maxAttempts, last)
}

// TakeWhenFree is Take that waits while somebody else holds the environment. At
// ctx's deadline the error is EnvironmentBusy as *Busy.
func (c Client) TakeWhenFree(ctx context.Context, r Request) (*Held, error) {
	for {
		held, err := c.Take(ctx, r)
		var busy *Busy
		if !errors.As(err, &busy) {
			return held, err
		}
		if err := c.waitFree(ctx, busy); err != nil {
			return nil, err
		}
	}
}

// fill makes the Lease the request's.
func (c Client) fill(lease *coordinationv1.Lease, r Request) *coordinationv1.Lease {
	now := metav1.NewMicroTime(c.Now())
	lease = lease.DeepCopy()
	lease.Name, lease.Namespace = r.Name, c.Namespace
	if lease.Labels == nil {
		lease.Labels = map[string]string{}
	}
	for key, value := range objects.Labels(r.Name) {
		lease.Labels[key] = value
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
		if lease.Annotations == nil {
			lease.Annotations = map[string]string{}
		}
		lease.Annotations[HolderName] = r.Holder.Display
		lease.Annotations[HolderKind] = kind
		lease.Annotations[Acquired] = now.UTC().Format(time.RFC3339)
		lease.Spec.HolderIdentity = &r.Holder.ID
		lease.Spec.AcquireTime = &now
	}
	seconds := int32(max(1, r.Duration/time.Second))
	lease.Spec.LeaseDurationSeconds = &seconds
	lease.Spec.RenewTime = &now
	return lease
}

// waitDeleted waits until this very Lease is gone.
func (c Client) waitDeleted(ctx context.Context, lease *coordinationv1.Lease) error {
	return c.watch(ctx, lease.Name, func(live *coordinationv1.Lease) (bool, error) {
		return live == nil || live.UID != lease.UID, nil
	})
}

// waitGone waits until no StatefulSet and pod of earlier environments is left.
func (c Client) waitGone(ctx context.Context, name string) error {
	say := c.logOnChange()
	return kube.WaitGone(ctx, c.Kube, c.Namespace, objects.Selector(name).String(), func(left []*corev1.Pod) {
		if len(left) == 0 {
			say(fmt.Sprintf("Waiting until the statefulset of an earlier environment %s is gone.", name))
			return
		}
		names := make([]string, 0, len(left))
		for _, pod := range left {
			names = append(names, pod.Name)
		}
		say(fmt.Sprintf("Waiting until the pods of an earlier environment are gone: %s.", strings.Join(names, ", ")))
	})
}

// waitFree waits until the environment that is busy can be taken, which another
// may still do first.
func (c Client) waitFree(ctx context.Context, busy *Busy) error {
	say := c.logOnChange()
	err := c.watch(ctx, busy.Name, func(live *coordinationv1.Lease) (bool, error) {
		if live == nil || HolderOf(live).ID == "" {
			return true, nil
		}
		busy = c.Look(ctx, live)
		if busy.Replaceable() {
			return true, nil
		}
		say(fmt.Sprintf("Waiting for environment %s: %s.", busy.Name, busy.State()))
		return false, nil
	})
	// Not the error is asked: a deadline may have words of its own.
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return busy.problem()
	}
	return err
}

// watch waits until done says so of the Lease, which is nil while there is none.
func (c Client) watch(ctx context.Context, name string, done func(*coordinationv1.Lease) (bool, error)) error {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	return kube.Until(ctx, fmt.Sprintf("lease %s/%s", c.Namespace, name), c.Kube.CoordinationV1().Leases(c.Namespace), options,
		func(leases []*coordinationv1.Lease) (bool, error) {
			for _, lease := range leases {
				if lease.Name == name {
					return done(lease)
				}
			}
			return done(nil)
		})
}

// logOnChange logs what is new at once, and what is not every now and then.
func (c Client) logOnChange() func(string) {
	var said string
	var when time.Time
	return func(message string) {
		if message == said && c.Now().Sub(when) < sayAgain {
			return
		}
		said, when = message, c.Now()
		c.Log.Info(message)
	}
}
