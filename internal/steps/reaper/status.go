// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

type status struct {
	// why the environment is abandoned, a clause of a message; "" if it is not.
	why string
	// mayReturn is true if the only sign is an expired Lease.
	mayReturn bool
	// stalled is true if a task has failed for good, and no other has followed.
	stalled bool
}

// look decides about one Lease:
//
//   - Without a holder: abandoned.
//   - With a run as holder: abandoned if the run has ended, is gone or being deleted, or was cancelled without its finally tasks. An
//     active run holds it until the Lease has expired and none of the run's pods is left that could renew it, as after the
//     loss of Tekton's controller.
//     A final failure in the run's receipt shortens this: the run has only finally tasks left, and if none of its pods has started or
//     ended for failureTime, Tekton does not start them.
//   - With a user as holder: abandoned when the Lease has expired.
//
// If the run's state cannot be read the result is an error, and the environment stays.
func (r *reaper) look(ctx context.Context, l *coordinationv1.Lease) (status, error) {
	holder, expired, ends := lease.HolderOf(l), lease.Expired(l, r.now()), lease.Ends(l).UTC().Format(time.RFC3339)
	switch {
	case l.DeletionTimestamp != nil:
		return status{}, nil
	case holder.ID == "":
		return status{why: "it has no holder"}, nil
	case !holder.Run && expired:
		return status{mayReturn: true, why: fmt.Sprintf("the lease of %s expired at %s", holder, ends)}, nil
	case !holder.Run:
		return status{}, nil
	}
	found, err := run.Get(ctx, r.clients.Tekton, l.Namespace, holder.Display)
	switch {
	case apierrors.IsNotFound(err), err == nil && string(found.UID) != holder.ID:
		return status{why: holder.String() + " does not exist any more"}, nil
	case err != nil:
		return status{}, fmt.Errorf("looking up the holder of environment %s/%s: %w", l.Namespace, l.Name, err)
	case found.Deleted:
		return status{why: holder.String() + " is being deleted"}, nil
	case found.NoFinally:
		return status{why: holder.String() + " was cancelled without its finally tasks"}, nil
	case found.Done:
		return status{why: holder.String() + " has ended"}, nil
	}
	failure, err := r.failureOf(ctx, l)
	if err != nil && !expired {
		return status{}, err
	}
	over := failure != nil && !failure.Ended.IsZero() && r.now().Sub(failure.Ended) > failureTime
	if !expired && !over {
		return status{}, nil
	}
	var since, ended time.Time
	if over {
		since, ended = failure.Ended.Add(-clockSkew), r.now().Add(-failureTime)
	}
	alive, err := r.hasPods(ctx, l.Namespace, holder.Display, since, ended)
	if err != nil || alive {
		return status{}, err
	}
	if over {
		failed := holder.String()
		if failure.Task != "" {
			failed = "task " + failure.Task + " of " + failed
		}
		return status{stalled: true, why: fmt.Sprintf("%s failed at %s (%s), and no task has followed",
			failed, failure.Ended.UTC().Format(time.RFC3339), failure.Reason)}, nil
	}
	return status{mayReturn: true,
		why: fmt.Sprintf("no step of %s has renewed the lease until %s, and none is left", holder, ends)}, nil
}

// failureOf returns the final failure in the receipt of the run that holds a Lease, nil for none or if the receipt cannot be used.
func (r *reaper) failureOf(ctx context.Context, l *coordinationv1.Lease) (*receipt.Entry, error) {
	holder := lease.HolderOf(l)
	m, err := receipt.ReadJournal(ctx, r.clients.Kube, l.Namespace, holder.Display)
	switch {
	case apierrors.IsNotFound(err), fail.ReasonOf(err) == fail.InvalidInput, err == nil && m.RunUID != holder.ID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking up how the holder of environment %s/%s stands: %w", l.Namespace, l.Name, err)
	}
	return m.Verdict(receipt.Seen{}).Final, nil
}

// hasPods reports whether a step of the run works or will start whose pod was not created before since, or, unless ended is
// zero, whether one has ended after that. The pods of Tekton's affinity assistant, which belong to no step, do not count.
func (r *reaper) hasPods(ctx context.Context, namespace, name string, since, ended time.Time) (bool, error) {
	ofSteps := metav1.ListOptions{LabelSelector: run.Label + "=" + name + ",tekton.dev/taskRun"}
	pods, err := r.clients.Kube.CoreV1().Pods(namespace).List(ctx, ofSteps)
	if err != nil {
		return false, kube.Problem(fmt.Errorf("listing the pods of pipelinerun %s/%s: %w", namespace, name, err))
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil && !pod.CreationTimestamp.Time.Before(since) &&
			(pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodPending) {
			return true, nil
		}
		for _, c := range pod.Status.ContainerStatuses {
			end := c.State.Terminated
			if end == nil || ended.IsZero() {
				continue
			}
			at := kube.Changed(&pod)
			if at.IsZero() {
				at = end.FinishedAt.Time // by its node's clock
			}
			if at.After(ended) {
				return true, nil
			}
		}
	}
	return false, nil
}
