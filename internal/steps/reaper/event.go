// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
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
	// A name of its own, as client-go's recorder gives it, can be sent again after a lost answer.
	_, err := r.record(ctx, a.Lease, fmt.Sprintf("%s.%x", a.Lease.Name, r.now().UnixNano()), eventReason, kind, message)
	return err
}

// record creates an event of the Lease, and reports whether there was none of that name.
func (r *reaper) record(ctx context.Context, l *coordinationv1.Lease, name, reason, kind, message string) (created bool, err error) {
	now := metav1.NewTime(r.now())
	_, err = r.clients.Kube.CoreV1().Events(l.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: l.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: l.Namespace, Name: l.Name, UID: l.UID,
		},
		Reason: reason, Message: message, Type: kind, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: "ml-dev-env-reaper"},
	}, metav1.CreateOptions{FieldManager: kube.FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return false, kube.Problem(fmt.Errorf("recording for environment %s/%s that %s: %w", l.Namespace, l.Name, message, err))
	}
	return err == nil, nil
}
