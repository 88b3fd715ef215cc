// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// judge decides what the statuses of an attempt's nodes mean.
type judge struct {
	spec agent.JobSpec
	// timeout is how long the training may run.
	timeout time.Duration
	// of is the training in commands for users.
	of cause.Job
	// gone returns the error for a node that will not come back.
	gone func(node int, why string, args ...any) error
}

// causeJob returns the training with the record of a node.
func (j judge) causeJob(status agent.JobStatus) cause.Job {
	of := j.of
	of.Record = status.Record
	return of
}

// succeeded reports whether all ranks have done their work.
func (j judge) succeeded(statuses []agent.JobStatus) bool {
	failed := func(r agent.RankStatus) bool { return r.Ended.IsZero() || r.Exit != (agent.Exit{}) }
	// A rank may save and exit with 0 when it is stopped; its work is not done.
	// A rank that ends at once may do so before its shim has noted the signal, which RankStatus.Stopped means.
	return !slices.ContainsFunc(statuses, func(s agent.JobStatus) bool {
		stopped := func(r agent.RankStatus) bool { return r.Stopped || !s.Stopping.IsZero() && r.Ended.After(s.Stopping) }
		return len(s.Ranks) != j.spec.RanksOfNode() || slices.ContainsFunc(s.Ranks, failed) ||
			s.StopCause.Saves() && slices.ContainsFunc(s.Ranks, stopped)
	})
}

// failing returns why a node's part cannot succeed any more, and whether that is certain: a rank with an error of its own,
// not one that lost its peers.
func (j judge) failing(status agent.JobStatus) (why string, certain bool) {
	found, failed := cause.Find([]agent.JobStatus{status})
	switch {
	case failed:
		return fmt.Sprintf("rank %d %s", found.Rank.Rank, cause.Describe(found.Rank.Exit)), found.Known
	case status.State == agent.Stopped:
		return "it was stopped: " + status.StopReason, true
	case status.State == agent.Exited && len(status.Ranks) < j.spec.RanksOfNode():
		return fmt.Sprintf("the launcher of node %d ended before it had started all ranks", status.Node), true
	}
	return "", false
}

// verdict returns the error of a training whose nodes have all reported, nil for success, or the question whose answer it is.
func (j judge) verdict(statuses []agent.JobStatus) (*question, error) {
	if j.succeeded(statuses) {
		return nil, nil
	}
	found, failed := cause.Find(statuses)
	for _, status := range statuses {
		switch status.StopCause {
		case agent.StopDeadline:
			if failed && endedBefore(found, statuses) {
				return nil, found.Err(j.causeJob(statuses[found.Rank.Node]))
			}
			if err := j.held(statuses, found, "when the training's time was over"); err != nil {
				return nil, err
			}
			return nil, j.timedOut(statuses, found, status.Ended.Sub(status.Started))
		case agent.StopReplaced, agent.StopCancelled:
			return nil, fail.Becausef(fail.Cancelled, "training: %s", status.StopReason)
		case agent.StopRule: // by a step that has not noted it
			return nil, fail.Becausef(fail.StopCondition, "training: %s", status.StopReason)
		case agent.StopContainer: // before any rank had failed
			return &question{aboutContainer, status}, nil
		}
	}
	if failed {
		return nil, found.Err(j.causeJob(statuses[found.Rank.Node]))
	}
	// The other nodes are stopped after such a failure.
	for _, status := range statuses {
		if status.State == agent.Exited && len(status.Ranks) < j.spec.RanksOfNode() {
			return &question{aboutLauncher, status}, nil
		}
	}
	for _, status := range statuses {
		if status.State == agent.Stopped {
			return nil, fail.Becausef(fail.Cancelled, "training: node %d was stopped: %s", status.Node, status.StopReason)
		}
	}
	return nil, fail.Becausef(fail.RankFailed, "training: it failed, and no rank shows why")
}

// endedBefore reports whether a rank ended by an error of its own before any node stopped its ranks.
func endedBefore(found cause.Cause, statuses []agent.JobStatus) bool {
	return found.Known && !found.Rank.Stopped && !slices.ContainsFunc(statuses, func(s agent.JobStatus) bool {
		return !s.Stopping.IsZero() && !found.Rank.Ended.Before(s.Stopping)
	})
}

// held returns the error of the rank that was found, if it had failed before the nodes were stopped, and its process had not ended then;
// else nil.
func (j judge) held(statuses []agent.JobStatus, found cause.Cause, then string) error {
	status := statuses[found.Rank.Node]
	held, ok := found.HeldAfterError(status.Stopping)
	if !ok {
		return nil
	}
	return fmt.Errorf("%w; its process had not ended %s, %s later", found.Err(j.causeJob(status)), then, held.Round(time.Second))
}

// longestSilence is the longest silence of a training that is not taken for a hang.
const longestSilence = 10 * time.Minute

// moreTime is in the advice of timedOut, until withSaved knows from which checkpoint.
const moreTime = "# more time"

// timedOut returns the error of a training whose deadline has passed. found is what ended it, if a rank did.
func (j judge) timedOut(statuses []agent.JobStatus, found cause.Cause, took time.Duration) error {
	// The training time does not include the grace of the ranks that were stopped.
	text := fmt.Sprintf("training: it had not ended after %s", cmp.Or(j.timeout, took).Round(time.Second))
	next := "give it more time with --timeout"
	switch {
	case j.spec.Run != "" && j.of.Namespace == "":
		next = fmt.Sprintf("mlenv run --local --resume-from %s --timeout=DURATION   "+moreTime, j.spec.Run)
	case j.spec.Run != "":
		next = fmt.Sprintf("mlenv run --resume-from %s --timeout=DURATION -n %s   "+moreTime+"; "+
			"tkn needs --pipeline-timeout too", j.spec.Run, j.of.Namespace)
	}
	quiet := took
	for _, status := range statuses {
		if status.State == agent.Stopped { // other nodes have no ranks that could hang
			quiet = min(quiet, status.Quiet)
		}
	}
	if quiet > min(took/4, longestSilence) {
		text += fmt.Sprintf("; no rank had printed or measured anything for %s", quiet.Round(time.Second))
		next = "start it again, and while it is silent look for the rank that the others wait for: mlenv doctor"
	}
	if found.Left != nil {
		text += "; " + found.Leaving()
		next = fmt.Sprintf("let every rank take the same number of steps; rank %d ended first", found.Left.Rank)
	}
	return fail.Advise(fail.Becausef(fail.TrainingTimeout, "%s", text), "%s", next)
}
