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
	Task string `json:"task"`
	Text string `json:"text"`
	// Next is the command or the change that would show or fix it. It may be empty.
	Next string `json:"next,omitempty"`
}

// progress shows how far a training with its attempts is.
type progress struct {
	// Attempt is the newest one, from 1, of at most MaxAttempts. It is 0 if none has started.
	Attempt     int `json:"attempt,omitempty"`
	MaxAttempts int `json:"maxAttempts,omitempty"`
	// Silent is how long no rank has printed or measured anything, in seconds. It is 0 unless that is worth a look.
	Silent float64 `json:"silentSeconds,omitempty"`
	// Rank is the live rank that is silent longest, for RankSilent seconds; nil without one.
	Rank       *int    `json:"silentRank,omitempty"`
	RankSilent float64 `json:"rankSilentSeconds,omitempty"`
	// Step is the last one in the metrics, nil without.
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
	Node  int    `json:"node"`
	State string `json:"state"`
	// Ranks is the number of running ranks, of All.
	Ranks int `json:"ranks"`
	All   int `json:"all"`
	// Quiet is the time since the last output of any rank, in seconds.
	Quiet float64 `json:"quietSeconds"`
	// Stopping is why the node stops its ranks, "" if it does not. They have at most SecondsLeft to save.
	Stopping    string  `json:"stopping,omitempty"`
	SecondsLeft float64 `json:"secondsLeft,omitempty"`
}
