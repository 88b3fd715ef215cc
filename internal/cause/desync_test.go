// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func TestDesync(t *testing.T) {
	spec := agent.JobSpec{Launcher: agent.Torchrun, Nodes: 2, RanksPerNode: 2}
	world := []int{0, 1, 2, 3}
	at := func(number int64, operation string) agent.Collective {
		return agent.Collective{ID: "0", Group: "default_pg", Ranks: world, Number: number, Operation: operation, State: "started", Entered: 60}
	}
	pair := func(number int64) agent.Collective {
		return agent.Collective{ID: "1", Group: "pair", Ranks: []int{2, 3}, Number: number, Operation: "broadcast", State: "completed",
			Entered: 90}
	}
	other := func(number int64) agent.Collective {
		c := at(number, "broadcast")
		c.ID = "2"
		return c
	}
	moving := at(812, "all_reduce")
	moving.Entered = 0.1
	ranks := func(all ...[]agent.Collective) (activities []agent.RankActivity) {
		for rank, last := range all {
			a := agent.RankActivity{Rank: rank, State: "S", Collectives: last,
				Frames: []agent.Frame{{Function: "all_reduce", File: "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py",
					Line: 1}, {Function: "step", File: "train.py", Line: 8}}}
			if rank == 3 {
				a.Frames = []agent.Frame{{Function: "load_batch", File: "data.py", Line: 40}}
			}
			activities = append(activities, a)
		}
		return activities
	}
	ahead := at(814, "all_reduce")
	ahead.Pending = &agent.Collective{Number: 811, Operation: "all_gather", State: "started", Entered: 370}
	stuck := func(state string) agent.Collective {
		c := at(814, "all_reduce")
		c.Pending = &agent.Collective{Number: 813, Operation: "all_reduce", State: state, Entered: 370}
		return c
	}
	receives := at(814, "all_reduce")
	receives.Pending = &agent.Collective{Number: 3, Operation: "recv 0<-1", State: "scheduled", Entered: 370}
	uncounted := at(-1, "all_reduce")
	of := func(c ...agent.Collective) []agent.Collective { return c }
	statuses := []agent.JobStatus{{Ranks: []agent.RankStatus{{Rank: 0}, {Rank: 1}, {Rank: 2, Node: 1}, {Rank: 3, Node: 1}}}}
	const byStacks = "rank 3 on node 1 is in load_batch (data.py:40) while 3 ranks wait in all_reduce (train.py:8)"
	for _, tc := range []struct {
		name       string
		activities []agent.RankActivity
		want       string
	}{
		{"one is behind", ranks(of(at(812, "all_reduce")), of(at(812, "all_reduce")), of(at(812, "all_reduce")), of(at(810, "all_gather"))),
			"rank 3 on node 1 entered number 810 (all_gather) of the collectives of default_pg, while 3 ranks came as far as number 812 " +
				"(all_reduce); it is in load_batch (data.py:40)"},
		{"two are, in a group of their own too", ranks(of(at(812, "all_reduce")), of(at(812, "all_reduce")), of(at(0, ""), pair(4)),
			of(at(0, ""), pair(3))),
			"ranks 2 and 3 entered none of the collectives of default_pg, while 2 ranks came as far as number 812 (all_reduce)"},
		{"another operation", ranks(of(at(812, "all_reduce")), of(at(812, "broadcast")), of(at(812, "all_reduce")), of(at(812, "all_reduce"))),
			"rank 1 on node 0 entered broadcast as collective 812 of default_pg, while ranks 0, 2 and 3 entered all_reduce"},
		{"all alike", ranks(of(at(812, "all_reduce")), of(at(812, "all_reduce")), of(at(812, "all_reduce")), of(at(812, "all_reduce"))),
			byStacks},
		{"alike in two groups with one description", ranks(of(at(500, "all_reduce"), other(3)), of(at(500, "all_reduce"), other(3)),
			of(at(500, "all_reduce"), other(3)), of(at(500, "all_reduce"), other(3))), byStacks},
		{"they move on", ranks(of(moving), of(at(811, "all_reduce")), of(at(811, "all_reduce")), of(at(810, "all_reduce"))), byStacks},
		{"the others run ahead of their GPUs", ranks(of(ahead), of(ahead), of(ahead), of(at(810, "all_gather"))),
			"rank 3 on node 1 entered number 810 (all_gather) of the collectives of default_pg, while 3 ranks came as far as number 814 " +
				"(all_reduce) " +
				"and have waited for number 811 (all_gather) for 6m10s; it is in load_batch (data.py:40)"},
		{"none completes one", ranks(of(stuck("scheduled")), of(stuck("scheduled")), of(stuck("scheduled")), of(stuck("scheduled"))),
			"all 4 ranks entered number 813 (all_reduce) of the collectives of default_pg at least 6m10s ago, and none has completed it: a GPU or " +
				"the network may hang"},
		{"one GPU does not start it", ranks(of(stuck("started")), of(stuck("scheduled")), of(stuck("started")), of(stuck("started"))),
			"the GPU of rank 1 on node 0 has not started number 813 (all_reduce) of the collectives of default_pg, as 3 ranks did"},
		{"one does not complete what others did", ranks(of(at(814, "all_reduce")), of(at(814, "all_reduce")), of(stuck("started")),
			of(at(814, "all_reduce"))),
			"rank 2 on node 1 has not completed number 813 (all_reduce) of the collectives of default_pg, as 3 ranks did: the GPU or the network " +
				"of the former may hang"},
		{"P2P has numbers of its own", ranks(of(receives), of(receives), of(receives), of(receives)),
			"rank 3 on node 1 waits in recv 0<-1 (data.py:40) while 3 ranks wait in all_reduce (train.py:8)"},
		{"one is not known, and may be the one", ranks(of(ahead), of(at(812, "all_reduce")), of(ahead), nil), byStacks},
		{"one cannot count its collectives", ranks(of(ahead), of(at(812, "all_reduce")), of(ahead), of(uncounted)), byStacks},
		{"no dumps", ranks(nil, nil, nil, nil), byStacks},
	} {
		if got := DescribeHang(spec, statuses, tc.activities); got != tc.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tc.name, got, tc.want)
		}
	}
}
