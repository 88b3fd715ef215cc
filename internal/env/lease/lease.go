// SPDX-License-Identifier: Apache-2.0

// Package lease is the ownership of an environment: a coordination.k8s.io Lease that one run or person holds,
// and that owns every object of the environment.
package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

// Annotations of the Lease.
const (
	// HolderName is the run's name, or the user's.
	HolderName = project.LabelPrefix + "holder-name"
	// HolderKind is PipelineRun or Person.
	HolderKind = project.LabelPrefix + "holder-kind"
	// UsedAnnotation is when a person who does not hold the environment last began to use it.
	UsedAnnotation = project.LabelPrefix + "used"
	// IdleAnnotation is how long a person's environment may be without use. It is missing for no bound.
	IdleAnnotation = project.LabelPrefix + "idle-timeout"

	kindRun    = "PipelineRun"
	kindPerson = "Person"
)

const (
	// Duration is how long the Lease of a run lasts without renewal.
	Duration = 10 * time.Minute
	// RenewEvery is the time between two renewals of a Lease. It leaves room for an API server that does not answer for some minutes.
	RenewEvery = Duration / 4
	// RetryEvery is the pause after a failed renewal. A Lease that expired while the API server did not answer
	// must be renewed before the reaper deletes it; the reaper waits twice as long.
	RetryEvery = 5 * time.Second
)

// Client takes and releases the Lease of one environment. Steps and commands get theirs from env.Environment.
type Client struct {
	kube kubernetes.Interface
	// tekton is asked whether a holder's run still exists.
	tekton          versioned.Interface
	namespace, name string
	Now             func() time.Time
	log             *slog.Logger
}

// New returns the client of an environment, whose names only package env has.
func New(clients *kube.Clients, of names.Names, log *slog.Logger) Client {
	return Client{clients.Kube, clients.Tekton, of.Namespace, of.Lease, clients.Now, log}
}

// Holder is a PipelineRun or a person.
type Holder struct {
	// ID is the run's UID, or the user's name on the API server.
	ID string
	// Display is the run's name, or the user's.
	Display string
	Run     bool
}

// String names the holder in messages.
func (h Holder) String() string {
	switch {
	case h.Run:
		return "pipelinerun " + h.Display
	case h.ID == "":
		return "nobody"
	}
	return h.Display
}

// Person returns the caller as a holder: the user that the API server authenticates, whatever the machine calls
// itself. For a Task without a PipelineRun that is its service account, so that one such Task finds what
// another one took. Every authenticated user may ask.
func Person(ctx context.Context, client kubernetes.Interface) (Holder, error) {
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return Holder{}, fail.Becausef(fail.InvalidInput, "asking the API server for the name of this user: it has no SelfSubjectReview: want "+
			"Kubernetes 1.28 (OpenShift 4.15) or newer")
	}
	if err != nil {
		return Holder{}, kube.Problem(fmt.Errorf("asking the API server for the name of this user: %w", err))
	}
	name := review.Status.UserInfo.Username
	if name == "" {
		return Holder{}, fail.Becausef(fail.PermissionDenied, "asking the API server for the name of this user: it knows none")
	}
	return Holder{ID: name, Display: name}, nil
}

// HolderOf reads the holder of a Lease; its ID is "" if there is none.
func HolderOf(lease *coordinationv1.Lease) Holder {
	h := Holder{Run: lease.Annotations[HolderKind] == kindRun}
	if lease.Spec.HolderIdentity != nil {
		h.ID = *lease.Spec.HolderIdentity
	}
	h.Display = cmp.Or(lease.Annotations[HolderName], h.ID)
	return h
}

// Ends returns when a Lease expires unless it is renewed, zero if the Lease does not contain it. It counts from the last change, by the
// API server's clock, because a holder's clock may be wrong. If that is unknown it counts from the renewal, by the holder's clock.
func Ends(lease *coordinationv1.Lease) time.Time {
	if lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		return time.Time{}
	}
	renewed := kube.Changed(lease)
	if renewed.IsZero() {
		renewed = lease.Spec.RenewTime.Time
	}
	return renewed.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)
}

// Expired reports whether a Lease has expired.
func Expired(lease *coordinationv1.Lease, now time.Time) bool {
	ends := Ends(lease)
	return !ends.IsZero() && ends.Before(now)
}

// IdleTimeout returns how long the environment of a person may be unused before it is released, 0 for no bound.
func IdleTimeout(lease *coordinationv1.Lease) time.Duration {
	timeout, err := time.ParseDuration(lease.Annotations[IdleAnnotation])
	if err != nil || HolderOf(lease).Run {
		return 0
	}
	return max(0, timeout)
}

// Find reads the Lease, for any holder. Without a Lease the error is EnvironmentMissing.
func (c Client) Find(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := c.kube.CoordinationV1().Leases(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fail.Becausef(fail.EnvironmentMissing, "looking for environment %s/%s: there is none: %w", c.namespace, c.name, err)
	}
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting lease %s/%s: %w", c.namespace, c.name, err))
	}
	return lease, nil
}

// List reads the Leases of all environments of a namespace.
func List(ctx context.Context, client kubernetes.Interface, namespace string) ([]coordinationv1.Lease, error) {
	found, err := client.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{LabelSelector: objects.EnvironmentLabel})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing leases in %s: %w", namespace, err))
	}
	return found.Items, nil
}

// Delete is for the holder: it deletes the Lease and, in the background, everything that the Lease owns. A Lease
// with another UID stays.
func (c Client) Delete(ctx context.Context, uid types.UID) error {
	err := c.delete(ctx, metav1.Preconditions{UID: &uid})
	// Conflict: the UID is another one, so ours is gone.
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// ErrChanged is the error for a Lease that was renewed or taken since it was read.
var ErrChanged = errors.New("it has changed since it was looked at")

// DeleteSeen is Delete for anyone else: a Lease that changed since it was seen stays, and the error is ErrChanged.
func (c Client) DeleteSeen(ctx context.Context, seen *coordinationv1.Lease) error {
	err := c.delete(ctx, metav1.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("deleting lease %s/%s: %w", c.namespace, c.name, ErrChanged)
	}
	return err
}

func (c Client) delete(ctx context.Context, when metav1.Preconditions) error {
	err := c.kube.CoordinationV1().Leases(c.namespace).Delete(ctx, c.name, metav1.DeleteOptions{
		Preconditions: &when, PropagationPolicy: new(metav1.DeletePropagationBackground),
	})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return kube.Problem(fmt.Errorf("deleting lease %s/%s: %w", c.namespace, c.name, err))
}
