// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// The culprit is not also listed as stopped because another rank failed.
func TestCulpritWasNotStopped(t *testing.T) {
	stopped := func(rank int) agent.RankStatus {
		return agent.RankStatus{Rank: rank, Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true}
	}
	r := receipt.Receipt{Cause: &cause.Culprit{Rank: 1}}
	addRanks(&r, []agent.JobStatus{{Ranks: []agent.RankStatus{stopped(0), stopped(1)}}}, nil)
	if len(r.Ranks) != 2 || !r.Ranks[0].Stopped || r.Ranks[1].Stopped {
		t.Errorf("got %+v, want rank 0 alone as stopped because of another", r.Ranks)
	}
}

// Nor are the ranks for which the others waited in a hang, which has no rank as its cause.
func TestHangingRanksWereNotStopped(t *testing.T) {
	stopped := func(rank int) agent.RankStatus {
		return agent.RankStatus{Rank: rank, Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true}
	}
	r := receipt.Receipt{Reason: fail.Hang}
	addRanks(&r, []agent.JobStatus{{Ranks: []agent.RankStatus{stopped(0), stopped(1), stopped(2)}}}, []int{1, 2})
	if len(r.Ranks) != 3 || !r.Ranks[0].Stopped || r.Ranks[1].Stopped || r.Ranks[2].Stopped {
		t.Errorf("got %+v, want rank 0 alone as stopped because of others", r.Ranks)
	}
}
