// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// stopSaving stops the ranks because the run ends, and waits until they have saved and ended. ending is done a while before this pod is
// killed; then teardown waits for them, or their pods do if none follows. The step of a user has no such limit: another Ctrl-C stops the
// ranks within some seconds.
func (t *Training) stopSaving(ctx, ending context.Context, why run.Ending) error {
	stop := agent.Stop{Cause: agent.StopCancelled, Reason: why.Message}
	if why.Cause == run.TimedOut {
		stop.Cause = agent.StopDeadline
	}
	if why.Now {
		stop.Grace, stop.Hasten = jobs.Grace, true
	}
	limit, hint := fmt.Sprintf("at most %s ", endTime), ""
	if t.Run.Name == "" {
		var done context.CancelFunc
		ending, done = context.WithTimeout(context.WithoutCancel(ctx), agent.MaxStopGrace+killTime)
		defer done()
		limit, hint = "", fmt.Sprintf(" Interrupt again to leave them only %s.", jobs.Grace)
		defer t.hastenAtSignal(ending, done, why.Message)()
	}
	t.Log.Info(fmt.Sprintf("Stopping the training: %s. Waiting %suntil its ranks have ended.%s", why.Message, limit, hint))
	t.stop(ending, stop) // each node, whatever the others answer
	saving, ended := context.WithCancel(ending)
	if t.Run.Name == "" || why.NoFinally { // else teardown has begun, and says it
		go t.job().ShowSaving(saving, func(who string) { t.Log.Info("Still saving: " + who + ".") })
	}
	err := t.job().StopAndWait(ending, stop)
	ended()
	// The rest must be written before this pod is killed.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancel()
	switch {
	case err == nil:
		return t.withSaved(last, t.job().Answers(last), runEndError(why))
	case t.isReleased(last):
		t.Log.Info("The environment was released meanwhile: no rank is left.", "environment", t.Name)
	default:
		t.handOver(last, why, err)
	}
	return runEndError(why)
}

// handOver reports which ranks are left to others.
func (t *Training) handOver(ctx context.Context, why run.Ending, err error) {
	who := agent.Saving(t.job().Answers(ctx), time.Now())
	switch {
	case who == "":
		t.Log.Warn(fmt.Sprintf("Ranks may still run; the nodes kill them at the end of their time: %v", err))
	case why.NoFinally:
		t.Log.Info(fmt.Sprintf("Still saving: %s. Their pods end when they have.", who))
	default:
		t.Log.Info("The teardown waits for the ranks that are still saving.")
	}
}

// hastenAtSignal leaves the ranks only some seconds after another signal of the user, until stop is called. It calls giveUp if a node does
// not answer by then.
func (t *Training) hastenAtSignal(ctx context.Context, giveUp func(), reason string) (stop func()) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-again:
			t.Log.Info(fmt.Sprintf("Interrupted again: the ranks are killed in %s.", jobs.Grace))
			t.stop(ctx, agent.Stop{Cause: agent.StopCancelled, Reason: reason, Grace: jobs.Grace, Hasten: true})
			time.AfterFunc(endTime, giveUp)
		}
	}()
	return func() {
		signal.Stop(again)
		cancel()
	}
}

// withSaved adds to the error of a training that was stopped for good what its ranks have saved since.
func (t *Training) withSaved(ctx context.Context, statuses []agent.JobStatus, err error) error {
	final := func(s agent.JobStatus) bool {
		return slices.Contains([]agent.StopCause{agent.StopDeadline, agent.StopCancelled, agent.StopRule}, s.StopCause)
	}
	if err == nil || ctx.Err() != nil || !slices.ContainsFunc(statuses, final) || doubtsModel(err) {
		return err
	}
	newest := t.noteCheckpoint(ctx)
	from := "from the beginning: no complete checkpoint was found"
	if newest.Name != "" {
		from = "from " + newest.Name
	}
	next := strings.Replace(fail.NextOf(err), moreTime, moreTime+", "+from, 1)
	if saved := jobs.SavedSince(statuses, newest); saved != "" {
		err = fmt.Errorf("%w; %s", err, saved)
	}
	return fail.Advise(err, "%s", next)
}
