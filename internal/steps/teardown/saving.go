// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

const (
	// hastenEvery is the time between two looks for a cancellation that leaves the ranks no time to save.
	hastenEvery = 2 * time.Second
	// hurriedGrace is how long ranks have that get no time to save.
	hurriedGrace = 5 * time.Second
)

// endRanks stops what still runs of the run's training, and waits until its ranks have saved and ended: how they ended is lost with
// their pods. The Lease is renewed meanwhile. most is how long ranks may save, whatever the nodes answer. After SIGTERM endRanks waits no
// longer. It returns what the nodes answered last.
func (t *teardown) endRanks(ctx context.Context, clients nodes.Set, most time.Duration) []agent.JobStatus {
	job := jobs.Job{ID: t.options.Run.UID, Members: clients}
	if job.ID == "" {
		return nil
	}
	statuses := job.Answers(ctx)
	if !slices.ContainsFunc(statuses, func(s agent.JobStatus) bool { return s.State == agent.Running }) {
		return statuses
	}
	waiting, done := context.WithCancel(ctx)
	defer done()
	if hold, err := t.lease().StillHeld(ctx, job.ID); err == nil {
		defer hold.Renewing(waiting)()
	}
	stop := agent.Stop{Cause: agent.StopCancelled, Reason: "the run has ended"}
	go job.ShowSaving(waiting, func(who string) {
		t.log.Info("Still saving: " + who + ". mlenv cancel " + t.options.Run.Name + " --now does not wait.")
	})
	go t.hasten(waiting, job, stop)
	parallel.Map(statuses, func(status agent.JobStatus) error {
		if status.State != agent.Running {
			return nil
		}
		return endJob(waiting, clients[status.Node], &status, stop, most)
	})
	return job.Answers(ctx)
}

// hasten leaves the ranks only some seconds if the user who cancelled the run does not want to wait, until ctx ends.
func (t *teardown) hasten(ctx context.Context, job jobs.Job, stop agent.Stop) {
	stop.Grace, stop.Hasten = hurriedGrace, true
	_ = wait.PollUntilContextCancel(ctx, hastenEvery, true, func(ctx context.Context) (bool, error) {
		of, err := run.Get(ctx, t.clients.Tekton, t.clients.Namespace, t.options.Run.Name)
		if err != nil || !of.Now || string(of.UID) != t.options.Run.UID {
			return false, nil //nolint:nilerr // the ranks keep their time
		}
		t.log.Info(fmt.Sprintf("The run was cancelled with --now: its ranks are killed in %s.", hurriedGrace))
		job.Stop(ctx, stop)
		return true, nil
	})
}

// addSaved adds the newest checkpoint of a training that was stopped. The step train has noted what was saved at the stop of a rule, unless
// the rule doubts the model: then nobody should resume from it.
func (t *teardown) addSaved(ctx context.Context, r *receipt.Receipt, clients nodes.Set, statuses []agent.JobStatus) {
	stopped := slices.IndexFunc(statuses, func(s agent.JobStatus) bool {
		return s.StopCause.Saves() && s.StopCause != agent.StopRule
	})
	if stopped < 0 {
		return
	}
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	newest, at, err := jobs.Job{ID: t.options.Run.UID, Members: clients}.NewestCheckpoint(asking, statuses[stopped].Spec)
	if err != nil {
		return
	}
	r.Checkpoint = cmp.Or(at, r.Checkpoint)
	if saved := jobs.SavedSince(statuses, newest); saved != "" && r.Verdict != receipt.Succeeded && !strings.Contains(r.Message, saved) {
		r.Message = strings.TrimPrefix(r.Message+"; "+saved, "; ")
	}
}
