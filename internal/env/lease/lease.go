// Package lease is the ownership of an environment: a coordination.k8s.io Lease
// that one run or person holds, and that every object of the environment is
// owned by.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Annotations of the Lease.
const (
	// HolderName is how people know the holder.
	HolderName = "ml-dev-env/holder-name"
	// HolderKind is PipelineRun or Person.
	HolderKind = "ml-dev-env/holder-kind"
	// Acquired is since when the holder holds it, RFC 3339.
	Acquired = "ml-dev-env/acquired"
)

const (
	// Duration of a Lease of a run without a deadline of its own.
	Duration = 10 * time.Minute
	// RenewEvery leaves room for an API server that is away for some minutes.
	RenewEvery = Duration / 4
	// RetryEvery is how soon a renewal that failed is tried again: a Lease that ended while the API server
	// was away must be renewed before the reaper, which waits twice as long, takes it for abandoned.
	RetryEvery = 5 * time.Second
)

const (
	kindRun    = "PipelineRun"
	kindPerson = "Person"
)

// Client takes and gives back the Leases of one namespace.
type Client struct {
	Kube kubernetes.Interface
	// Tekton tells whether a holder's run is still there.
	Tekton    versioned.Interface
	Namespace string
	Now       func() time.Time
	// Log gets what is waited for.
	Log *slog.Logger
}

// Holder is a PipelineRun or a person.
type Holder struct {
	// ID is the run's UID, or whatever tells a person from others.
	ID string
	// Display is the run's name, or how people know the person.
	Display string
	// Run is true of a PipelineRun.
	Run bool
}

// String names the holder for people.
func (h Holder) String() string {
	if h.Run {
		return "pipelinerun " + h.Display
	}
	return h.Display
}

// HolderOf reads who holds a Lease; an ID of "" is nobody.
func HolderOf(lease *coordinationv1.Lease) Holder {
	h := Holder{Display: lease.Annotations[HolderName], Run: lease.Annotations[HolderKind] == kindRun}
	if lease.Spec.HolderIdentity != nil {
		h.ID = *lease.Spec.HolderIdentity
	}
	if h.Display == "" {
		h.Display = h.ID
	}
	return h
}

// Ends is when a Lease that is not renewed ends; zero where it does not say.
func Ends(lease *coordinationv1.Lease) time.Time {
	if lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		return time.Time{}
	}
	return lease.Spec.RenewTime.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)
}

// Find reads the Lease of an environment, whoever holds it. Without one the error
// is EnvironmentMissing.
func (c Client) Find(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	lease, err := c.Kube.CoordinationV1().Leases(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fail.Becausef(fail.EnvironmentMissing, "looking for environment %s/%s: there is none: %w", c.Namespace, name, err)
	}
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting lease %s/%s: %w", c.Namespace, name, err))
	}
	return lease, nil
}

// Delete deletes the Lease and with it, in the background, everything that it
// owns. A Lease that is gone, or another one of that name, is left as it is.
func (c Client) Delete(ctx context.Context, name string, uid types.UID) error {
	err := c.delete(ctx, name, metav1.Preconditions{UID: &uid})
	// Conflict: the UID is another one's, so ours is gone.
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// ErrChanged is of a Lease that is not as it was seen.
var ErrChanged = errors.New("it has changed since it was looked at")

// DeleteSeen is Delete by somebody who holds it not: a Lease that was renewed or taken since it was
// seen is left as it is. The error then is ErrChanged.
func (c Client) DeleteSeen(ctx context.Context, seen *coordinationv1.Lease) error {
	err := c.delete(ctx, seen.Name, metav1.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("deleting lease %s/%s: %w", c.Namespace, seen.Name, ErrChanged)
	}
	return err
}

func (c Client) delete(ctx context.Context, name string, when metav1.Preconditions) error {
	err := c.Kube.CoordinationV1().Leases(c.Namespace).Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &when, PropagationPolicy: new(metav1.DeletePropagationBackground),
	})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return kube.Problem(fmt.Errorf("deleting lease %s/%s: %w", c.Namespace, name, err))
}
