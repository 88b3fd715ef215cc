// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

const (
	// noteEvery is the time between two notes of how far the training is.
	noteEvery = 30 * time.Second
	// checkpointEvery is after how many of them the nodes are asked for the newest checkpoint.
	checkpointEvery = 4
)

// noteRecord notes what is launched and where its record lies, before the first rank starts: whatever ends the run, users find it.
func (t *Training) noteRecord(ctx context.Context) {
	if t.journal == nil {
		return
	}
	var claims []string
	if pods, ok := t.podEnvironment(); ok {
		claims = pods.RecordClaims(ctx, len(t.Nodes))
	}
	spec := t.Spec
	t.journal.Update(ctx, func(p *receipt.Entry) {
		p.Training = receipt.TrainingOf(spec)
		p.Record = &receipt.Record{Folder: path.Join(agent.Runs, t.ID), Claims: claims}
		p.Tree, p.Attempt, p.Order = string(spec.Tree), spec.Attempt(), spec.Order
		if n := len(spec.Attempts); n > 0 {
			p.Failed = &spec.Attempts[n-1]
		}
	})
}

// noteEnd notes how the step ended. A retry of the step repeats a failure that is final.
func (t *Training) noteEnd(ctx context.Context, result Result, failure error) {
	t.journal.End(ctx, failure, func(p *receipt.Entry) {
		p.Final = failure != nil && run.IsFinalReason(p.Reason)
		if failed := (cause.Error{}); errors.As(failure, &failed) {
			p.Cause = failed.Culprit()
		}
		if hang := (hangError{}); errors.As(failure, &hang) {
			p.Hanging, p.Hang = hang.ranks, &hang.silence
		}
		if json.Valid([]byte(result.Metrics)) {
			p.Metrics = json.RawMessage(result.Metrics)
		}
	})
}

// noteProgress notes how far the training is, twice a minute, until ctx ends.
func (t *Training) noteProgress(ctx context.Context, shown *progress) {
	if t.journal == nil {
		return
	}
	notes := 0
	_ = wait.PollUntilContextCancel(ctx, noteEvery, false, func(ctx context.Context) (bool, error) {
		if notes%checkpointEvery == 0 {
			t.findNewestCheckpoint(ctx)
		}
		notes++
		now, _ := shown.snapshot()
		t.note(ctx, now)
		return false, nil
	})
}

// note writes the progress with the newest checkpoint, unless both are as in the last note.
func (t *Training) note(ctx context.Context, now receipt.Progress) {
	last := t.lastProgress.Load()
	if now.At.IsZero() && last != nil { // an attempt that has not reached a step leaves the earlier one's
		now = *last
	}
	now.Checkpoint = t.checkpoint()
	if last != nil && now.At.Equal(last.At) && now.Checkpoint == last.Checkpoint || last == nil && now.At.IsZero() && now.Checkpoint == "" {
		return
	}
	t.lastProgress.Store(&now)
	t.journal.Progress(ctx, now)
}

// noteCheckpoint notes the newest checkpoint of a training that was stopped, and returns it: ranks may save at SIGTERM.
func (t *Training) noteCheckpoint(ctx context.Context) agent.Checkpoint {
	found := t.findNewestCheckpoint(ctx)
	if t.journal == nil {
		return found
	}
	var last receipt.Progress
	if noted := t.lastProgress.Load(); noted != nil {
		last = *noted
	}
	t.note(ctx, last)
	return found
}

// findNewestCheckpoint remembers the newest complete checkpoint, a path on the workspace, if the nodes find one.
func (t *Training) findNewestCheckpoint(ctx context.Context) (newest agent.Checkpoint) {
	newest, at, _ := t.newestCheckpoint(ctx)
	if at != "" {
		t.newest.Store(&at)
	}
	return newest
}

// newestCheckpoint asks the nodes for the newest complete checkpoint, and its path on the workspace; both are empty if there is none.
func (t *Training) newestCheckpoint(ctx context.Context) (newest agent.Checkpoint, at string, err error) {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return t.job().NewestCheckpoint(asking, t.Spec)
}

// checkpoint returns the newest checkpoint that was found, "" for none.
func (t *Training) checkpoint() string {
	if found := t.newest.Load(); found != nil {
		return *found
	}
	return ""
}
