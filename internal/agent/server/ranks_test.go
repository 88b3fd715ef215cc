package server_test

import (
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// torchrun is a job of two ranks that the agent starts.
func torchrun(script string) agent.JobSpec {
	return agent.JobSpec{Run: "run", Launcher: agent.Torchrun, Script: script, Nodes: 1, RanksPerNode: 2}
}

// When a rank fails, the others of its node are told to end, and the record says which one failed by itself.
func TestRankFailure(t *testing.T) {
	n := newNode(t)
	n.script("train.sh", `if [ "$RANK" = 0 ]; then
  until [ -e trapped ]; do sleep 0.01; done
  exit 3
fi
trap 'echo saved; exit 0' TERM
touch trapped
while :; do sleep 0.01; done`)
	status := n.run("job", torchrun("train.sh"))
	if want := (agent.Exit{Code: 3}); status.State != agent.Exited || status.Launcher != want || len(status.Ranks) != 2 {
		t.Fatalf("state %s, launcher %+v, %d ranks; want it exited with %+v and two ranks", status.State, status.Launcher, len(status.Ranks), want)
	}
	if first := status.Ranks[0]; first.Stopped || first.Exit != (agent.Exit{Code: 3}) {
		t.Errorf("the rank that failed: stopped %t, %+v; want exit code 3", first.Stopped, first.Exit)
	}
	if other := status.Ranks[1]; !other.Stopped || other.Exit != (agent.Exit{}) || !strings.HasSuffix(n.log("job", "rank-1", 0), "saved\n") {
		t.Errorf("the other rank: stopped %t, %+v, log %q; want it stopped after its handler", other.Stopped, other.Exit, n.log("job", "rank-1", 0))
	}
}

// A rank that ends well does not end the others.
func TestRankEndsEarly(t *testing.T) {
	n := newNode(t)
	n.script("train.sh", `if [ "$RANK" = 0 ]; then touch done; exit; fi
until [ -e done ]; do sleep 0.01; done
echo "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $ROLE_RANK"`)
	status := n.run("job", torchrun("train.sh"))
	if status.Launcher != (agent.Exit{}) || status.Ranks[1].Stopped || n.log("job", "rank-1", 0) != "1 1 2 1\n" {
		t.Errorf("launcher %+v, ranks %+v, log %q; want both to end by themselves", status.Launcher, status.Ranks, n.log("job", "rank-1", 0))
	}
}
