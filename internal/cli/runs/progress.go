// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
)

// waiting is what a task waits for.
type waiting struct {
	// Task is the name of the task that waits.
	Task string `json:"task"`
	// Text is what it waits for.
	Text string `json:"text"`
	// Next is the command or the change that would show or fix it. It may be empty.
	Next string `json:"next,omitempty"`
}

// progress shows how far a training with its attempts is.
type progress struct {
	// Attempt is the newest attempt, from 1. It is 0 if none has started.
	Attempt int `json:"attempt,omitempty"`
	// MaxAttempts is how many attempts there are at most.
	MaxAttempts int `json:"maxAttempts,omitempty"`
	// Silent is how long no rank has printed or measured anything, in seconds. It is 0 unless that is worth a look.
	Silent float64 `json:"silentSeconds,omitempty"`
	// Rank is the live rank that has been silent longest.
	Rank *int `json:"silentRank,omitempty"`
	// RankSilent is for how long that rank has been silent, in seconds.
	RankSilent float64 `json:"rankSilentSeconds,omitempty"`
	// Step is the last step in the metrics. It is left out if there is none.
	Step *float64 `json:"step,omitempty"`
}

// worthALook is after how much silence it is shown.
const worthALook = time.Minute

// progressOf returns the progress of a job by its status on each node, zero for a node without one. last has the last metrics.
func progressOf(jobs []agent.JobStatus, last json.RawMessage) (p progress) {
	quiet := time.Duration(-1)
	var longest time.Duration
	for _, job := range jobs {
		if job.State == agent.Running && (quiet < 0 || job.Quiet < quiet) {
			quiet = job.Quiet
		}
		if job.State != "" {
			p.Attempt = max(p.Attempt, job.Spec.Attempt())
		}
		for _, rank := range job.Ranks {
			if rank.Ended.IsZero() && (p.Rank == nil || rank.Quiet > longest) {
				p.Rank, longest = &rank.Rank, rank.Quiet
			}
		}
	}
	if quiet < worthALook {
		return progress{Attempt: p.Attempt}
	}
	p.Silent, p.RankSilent = quiet.Seconds(), longest.Seconds()
	var values map[string]any
	if json.Unmarshal(last, &values) == nil {
		if step, ok := metrics.Number(values, "step"); ok {
			p.Step = &step
		}
	}
	return p
}

// attempt returns "2 of 4", "" for a training that is not restarted.
func (p progress) attempt() string {
	switch {
	case p.Attempt > 0 && p.MaxAttempts > 1:
		return fmt.Sprintf("%d of %d", p.Attempt, p.MaxAttempts)
	case p.Attempt > 1: // of a deleted run
		return strconv.Itoa(p.Attempt)
	}
	return ""
}

// silence returns for example "all ranks for 4m0s, rank 3 for 4m7s, last in step 812", "" for none.
func (p progress) silence() string {
	if p.Silent == 0 {
		return ""
	}
	text := "all ranks for " + humanize.Seconds(p.Silent)
	if p.Rank != nil {
		text += fmt.Sprintf(", rank %d for %s", *p.Rank, humanize.Seconds(p.RankSilent))
	}
	if p.Step != nil {
		text += fmt.Sprintf(", last in step %.0f", *p.Step)
	}
	return text
}

type live struct {
	// Node is the number of the node, from 0.
	Node int `json:"node"`
	// State is one of running, exited, stopped, container-restarted and "no job yet".
	State string `json:"state"`
	// Ranks is how many ranks of the node are running.
	Ranks int `json:"ranks"`
	// All is how many ranks the node has.
	All int `json:"all"`
	// Quiet is the time since the last output of any rank, in seconds.
	Quiet float64 `json:"quietSeconds"`
	// Stopping is why the node stops its ranks. It is left out if it does not.
	Stopping string `json:"stopping,omitempty"`
	// SecondsLeft is how long the ranks that are stopped may still save, in seconds.
	SecondsLeft float64 `json:"secondsLeft,omitempty"`
}
