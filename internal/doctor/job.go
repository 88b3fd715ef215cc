// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// job is a running job or, if none runs, the last one of the holder.
type job struct {
	id string
	// statuses of the nodes that know it, in their order.
	statuses []agent.JobStatus
	// activities are what the ranks of a silent job do.
	activities []agent.RankActivity
	now        time.Time
}

// jobIDs returns the jobs that a node runs, and the job of the run that holds the environment: its ID is the PipelineRun's UID.
func (e *examination) jobIDs() []string {
	var ids []string
	for _, n := range e.answering() {
		for _, id := range n.facts.Running {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	if e.lease != nil && e.lease.Holder.Run && !slices.Contains(ids, e.holderID) {
		ids = append(ids, e.holderID)
	}
	return ids
}

func (e *examination) gatherJobs(ids []string) {
	for _, id := range ids {
		j := job{id: id, now: e.now}
		for _, n := range e.nodes {
			if status, ok := n.jobs[id]; ok {
				j.statuses = append(j.statuses, status)
			}
		}
		if len(j.statuses) > 0 {
			e.jobs = append(e.jobs, j)
		}
	}
}

func (j job) statusOf(number int) (agent.JobStatus, bool) {
	i := slices.IndexFunc(j.statuses, func(s agent.JobStatus) bool { return s.Node == number })
	if i < 0 {
		return agent.JobStatus{}, false
	}
	return j.statuses[i], true
}

func (j job) running() bool {
	return slices.ContainsFunc(j.statuses, func(s agent.JobStatus) bool { return s.State == agent.Running })
}

// succeeded reports whether all known ranks exited with 0.
func (j job) succeeded() bool {
	return !slices.ContainsFunc(j.statuses, func(s agent.JobStatus) bool {
		return s.State != agent.Exited || slices.ContainsFunc(s.Ranks, func(r agent.RankStatus) bool { return r.Exit != (agent.Exit{}) })
	})
}

// quietTime returns how long no node has printed anything. ok is false if a part of the job is unknown, because its output is
// unknown too.
func (j job) quietTime() (least time.Duration, ok bool) {
	for _, status := range j.statuses {
		if status.State == agent.Running && (!ok || status.Quiet < least) {
			least, ok = status.Quiet, true
		}
	}
	return least, ok && len(j.statuses) == j.spec().Nodes
}

func (j job) spec() agent.JobSpec { return j.statuses[0].Spec }

func (j job) displayName() string {
	return fmt.Sprintf("job %s (%s)", j.id, j.spec().Script)
}

// String returns the job with its states: "job 0d23 (train.py) of train-1: running for 12m on 2 nodes".
func (j job) String() string {
	byState := map[agent.JobState]int{}
	var states []string
	var started time.Time
	for _, s := range j.statuses {
		if byState[s.State]++; byState[s.State] == 1 {
			states = append(states, string(s.State))
		}
		if started.IsZero() || s.Started.Before(started) {
			started = s.Started
		}
	}
	for i, state := range states {
		states[i] = fmt.Sprintf("%s on %d of %d nodes", state, byState[agent.JobState(state)], j.spec().Nodes)
	}
	title := j.displayName()
	if run := j.spec().Run; run != "" {
		title += " of " + run
	}
	return fmt.Sprintf("%s, started %s ago: %s", title, formatAge(j.now.Sub(started)), strings.Join(states, ", "))
}

// formatAge formats a duration: 40s, 2m, 1h5m.
func formatAge(d time.Duration) string {
	if d < time.Minute {
		return max(d, 0).Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}
