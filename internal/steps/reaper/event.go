package reaper

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

// eventReason is what oc get events shows.
const eventReason = "EnvironmentReaped"

// event records what happened to the Lease. Clusters keep events for an hour.
func (r *reaper) event(ctx context.Context, a teardown.Orphan, failed error) error {
	kind, message := corev1.EventTypeNormal, fmt.Sprintf("environment %s was released, because %s", a.Lease.Name, a.Why)
	if failed != nil {
		kind, message = corev1.EventTypeWarning, message+": "+failed.Error()
	}
	now := metav1.NewTime(r.now())
	_, err := r.clients.Kube.CoreV1().Events(a.Lease.Namespace).Create(ctx, &corev1.Event{
		// A name of its own, as client-go's recorder gives it, can be sent again after a lost answer.
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", a.Lease.Name, now.UnixNano()), Namespace: a.Lease.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: a.Lease.Namespace, Name: a.Lease.Name, UID: a.Lease.UID,
		},
		Reason: eventReason, Message: message, Type: kind, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: "ml-dev-env-reaper"},
	}, metav1.CreateOptions{FieldManager: kube.FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return kube.Problem(fmt.Errorf("recording that environment %s/%s was released: %w", a.Lease.Namespace, a.Lease.Name, err))
	}
	return nil
}
