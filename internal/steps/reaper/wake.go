// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// woken is the annotation of a TaskRun that Tekton was made to look at.
const woken = project.LabelPrefix + "woken"

// wake makes Tekton start the pod of a step again that was deleted while Tekton did not watch, as after an outage of the API server. The
// cache of client-go then reports DeletedFinalStateUnknown, which is no object of the API, and FilterController of knative.dev/pkg drops
// it. Any change of the TaskRun makes Tekton look.
func (r *reaper) wake(ctx context.Context, l *coordinationv1.Lease) error {
	holder := lease.HolderOf(l)
	if alive, err := r.hasPods(ctx, l.Namespace, holder.Display, time.Time{}, time.Time{}); err != nil || alive {
		return err
	}
	tasks, err := run.TaskRuns(ctx, r.clients.Tekton, l.Namespace, holder.Display, types.UID(holder.ID))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		if task.Status != run.Running || task.Pod == "" {
			continue
		}
		if r.dryRun {
			r.log.Info(fmt.Sprintf("Task %s of %s has no pod: Tekton would be told to look again.", task.Task, holder))
			continue
		}
		r.log.Info(fmt.Sprintf("Task %s of %s has no pod: Tekton is told to look again.", task.Task, holder))
		change := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, woken, r.now().UTC().Format(time.RFC3339))
		_, err := r.clients.Tekton.TektonV1().TaskRuns(l.Namespace).Patch(ctx, task.Name, types.MergePatchType, change, metav1.PatchOptions{})
		if err != nil {
			return kube.Problem(fmt.Errorf("annotating taskrun %s/%s: %w", l.Namespace, task.Name, err))
		}
	}
	return nil
}
