// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"

	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

const (
	// notedTime is how long mlenv train may take to note the end of its training, also while its user's machine has no network.
	notedTime = 5 * time.Minute
	// useTime is for the nodes' answers.
	useTime = 10 * time.Second
)

// finish writes the receipts of runs that have ended without one and hold no environment: nobody else will. The release of an
// environment writes the receipt of its run.
func (r *reaper) finish(ctx context.Context, held []coordinationv1.Lease) error {
	open, err := receipt.Unfinished(ctx, r.clients.Kube, r.clients.Namespace)
	problems := []error{err}
	for _, m := range open {
		if slices.ContainsFunc(held, func(l coordinationv1.Lease) bool { return lease.HolderOf(&l).ID == m.RunUID }) {
			continue
		}
		if m.Kept && slices.ContainsFunc(held, func(l coordinationv1.Lease) bool { return l.Name == m.Environment }) && !r.unused(ctx, m) {
			continue // the user's mlenv train writes it
		}
		why, err := r.whyOver(ctx, m)
		if err != nil || why == "" {
			problems = append(problems, err)
			continue
		}
		name := m.Namespace + "/" + m.Run
		if r.dryRun {
			r.log.Info(fmt.Sprintf("The receipt of run %s would be written, because %s.", name, why))
			continue
		}
		r.log.Info(fmt.Sprintf("The receipt of run %s is written, because %s.", name, why))
		problems = append(problems, r.write(ctx, m, why))
	}
	return errors.Join(problems...)
}

// unused reports whether the nodes of a kept environment have run nothing for so long that mlenv train, which notes the end of a training
// within seconds, was killed.
func (r *reaper) unused(ctx context.Context, m receipt.Journal) bool {
	asking, cancel := context.WithTimeout(ctx, useTime)
	defer cancel()
	use, err := env.Of(r.clients, m.Environment).LastUse(asking)
	return err == nil && use.Idle > notedTime
}

// write writes the receipt, unless another writer has meanwhile, or a later run has got the name.
func (r *reaper) write(ctx context.Context, m receipt.Journal, why string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		err := teardown.Finish(ctx, r.clients, r.log, r.now, m, why)
		if !apierrors.IsConflict(err) {
			return err
		}
		live, notRead := receipt.ReadJournal(ctx, r.clients.Kube, m.Namespace, m.Run)
		switch {
		case apierrors.IsNotFound(notRead), notRead == nil && (live.RunUID != m.RunUID || live.Receipt != nil):
			return nil
		case notRead != nil:
			return notRead
		}
		m = live
		return err
	})
}

// whyOver returns why no step of a run will write its receipt, "" if one may.
func (r *reaper) whyOver(ctx context.Context, m receipt.Journal) (string, error) {
	if m.Kept {
		return "no mlenv train follows it", nil
	}
	found, err := run.Get(ctx, r.clients.Tekton, m.Namespace, m.Run)
	switch {
	case apierrors.IsNotFound(err), err == nil && string(found.UID) != m.RunUID:
		return receipt.Deleted, nil
	case err != nil:
		return "", fmt.Errorf("looking up run %s/%s, which has no receipt: %w", m.Namespace, m.Run, err)
	case found.Deleted:
		return "the run is being deleted", nil
	case found.NoFinally && found.Done:
		return "the run was cancelled without its finally tasks", nil
	case found.Done:
		return "the run has ended", nil
	}
	return "", nil
}
