package teardown

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// The culprit is not also listed as stopped because another rank failed.
func TestCulpritWasNotStopped(t *testing.T) {
	stopped := func(rank int) agent.RankStatus {
		return agent.RankStatus{Rank: rank, Exit: agent.Exit{Code: -1, Signal: "SIGTERM"}, Stopped: true}
	}
	r := receipt.Receipt{Cause: &cause.Culprit{Rank: 1}}
	addRanks(&r, []agent.JobStatus{{Ranks: []agent.RankStatus{stopped(0), stopped(1)}}})
	if len(r.Ranks) != 2 || !r.Ranks[0].Stopped || r.Ranks[1].Stopped {
		t.Errorf("got %+v, want rank 0 alone as stopped because of another", r.Ranks)
	}
}
