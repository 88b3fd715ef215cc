// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
)

// findCheckpoint sets the checkpoint that the next attempt resumes from: the newest one that is complete for the ranks which start
// on each node. The log reports those that are passed over.
func (t *Training) findCheckpoint(ctx context.Context) {
	t.Spec.Checkpoint, t.Spec.CheckpointJob = nil, ""
	folder := t.Spec.CheckpointFolder(t.ID)
	if folder == "" {
		return
	}
	at := t.place().WorkspaceOfRanks() + "/" + folder
	ctx, cancel := context.WithTimeout(ctx, jobs.Reachable)
	defer cancel()
	volumes, err := t.job().Checkpoints(ctx, t.Spec)
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Log.Warn(fmt.Sprintf("Looking for checkpoints in %s failed, so %s is not set: %v", at, agent.CheckpointVariable, err))
		}
		return
	}
	volumes, doubtful := t.job().WithoutDoubtful(volumes, t.Spec)
	best, incomplete, sure := jobs.NewestComplete(volumes)
	name := best.Name
	for _, c := range doubtful {
		if last := &t.Spec.Attempts[len(t.Spec.Attempts)-1]; !last.Doubt.IsZero() && c.Modified.After(last.DoubtEnd) {
			last.DoubtEnd = c.Modified
		}
		t.Log.Warn(fmt.Sprintf("Passing over checkpoint %s, written at %s: the loss had gone wrong before.", c.Name,
			c.Modified.UTC().Format(time.TimeOnly)))
	}
	for _, problem := range incomplete {
		t.Log.Warn("Passing over an incomplete checkpoint: " + problem + ".")
	}
	switch {
	case name != "":
		t.Spec.Checkpoint, t.Spec.CheckpointJob = &name, best.Job
		t.Log.Info(fmt.Sprintf("The newest complete checkpoint is %s/%s; attempt %d has it in %s.", t.place().WorkspaceOfRanks(),
			t.Spec.CheckpointPath(t.ID),
			t.Spec.Attempt(), agent.CheckpointVariable))
		return
	case len(doubtful) > 0:
		t.Log.Warn(fmt.Sprintf("%s has no complete checkpoint from before the loss went wrong: attempt %d starts from the beginning.", at,
			t.Spec.Attempt()))
	case len(incomplete) == 0:
		t.Log.Info(fmt.Sprintf("%s has no checkpoint in a known format, so %s is not set.", at, agent.CheckpointVariable))
		return
	case !knownFormat(volumes):
		t.Log.Warn(fmt.Sprintf("%s has no checkpoint in a known format, and no mark of a whole one, so %s is not set: the script has to "+
			"find out by itself which is whole.", at, agent.CheckpointVariable))
		return
	case !sure || t.Spec.Env[agent.ResumeVariable] != "":
		// The run that is resumed may have had another number of ranks.
		t.Log.Warn(fmt.Sprintf("It is not known whether %s has a complete checkpoint, so %s is not set.", at, agent.CheckpointVariable))
		return
	default:
		t.Log.Warn(fmt.Sprintf("%s has no complete checkpoint: attempt %d starts from the beginning.", at, t.Spec.Attempt()))
	}
	t.Spec.Checkpoint = &name
}

// sayResume reports what a run that resumes another one finds of it. The script decides what it reads.
func (t *Training) sayResume(ctx, following context.Context) {
	of := t.Spec.Env[agent.ResumeVariable]
	if of == "" {
		return
	}
	at := t.place().WorkspaceOfRanks() + "/" + t.Spec.CheckpointFolder(t.ID)
	asking, cancel := context.WithTimeout(ctx, jobs.Reachable)
	defer cancel()
	// Also of a training that ends at once, but its end does not wait long for that.
	defer context.AfterFunc(following, func() { time.AfterFunc(askTime, cancel) })()
	volumes, err := t.job().Checkpoints(asking, t.Spec)
	best, incomplete, _ := jobs.NewestComplete(volumes)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		t.Log.Warn(fmt.Sprintf("Resuming run %s: looking for its checkpoints in %s failed: %v", of, at, err))
	case best.Name != "":
		t.Log.Info(fmt.Sprintf("Resuming run %s: the newest complete checkpoint of it and its continuations is %s.", of, best.Name))
	default:
		text := fmt.Sprintf("Resuming run %s: %s and the working directories of its runs have no complete checkpoint in a known format, so the "+
			"script may start from the beginning.", of, at)
		if len(incomplete) > 0 {
			text += " Not known as complete: " + strings.Join(incomplete[:min(len(incomplete), 3)], "; ") + "."
		}
		t.Log.Warn(text)
	}
}

// knownFormat reports whether the nodes have a checkpoint of which it is known when it is complete.
func knownFormat(volumes map[int][]agent.Checkpoint) bool {
	for _, all := range volumes {
		if slices.ContainsFunc(all, func(c agent.Checkpoint) bool { return c.Format != "" || c.Marked }) {
			return true
		}
	}
	return false
}
