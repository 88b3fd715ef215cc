// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

const site = "/opt/venv/lib/python3.11/site-packages/torch/"

// The stacks are from torch 2.15 with gloo, as py-spy prints them.
var (
	waits = []agent.Frame{
		{Function: "all_reduce", File: site + "distributed/distributed_c10d.py", Line: 4181},
		{Function: "_exception_logger.<locals>.wrapper", File: site + "distributed/c10d_logger.py", Line: 83},
		{Function: "main", File: agent.State + "/trees/" + hash + "/train.py", Line: 88}, {Function: "<module>", File: "train.py", Line: 99},
	}
	barrier = []agent.Frame{
		{Function: "barrier", File: site + "distributed/distributed_c10d.py", Line: 6001},
		{Function: "main", File: "train.py", Line: 90},
	}
	loads = []agent.Frame{{Function: "load_batch", File: "data.py", Line: 41}, {Function: "main", File: "train.py", Line: 80}}
	queue = []agent.Frame{
		{Function: "Condition.wait", File: "/usr/lib/python3.11/threading.py", Line: 320},
		{Function: "_MultiProcessingDataLoaderIter._try_get_data", File: site + "utils/data/dataloader.py", Line: 1275},
		{Function: "epoch", File: "train.py", Line: 70},
	}
	item  = []agent.Frame{{Function: "main", File: "train.py", Line: 50}}
	baton = []agent.Frame{
		{Function: "wait", File: site + "utils/file_baton.py", Line: 49},
		{Function: "_jit_compile", File: site + "utils/cpp_extension.py", Line: 2140},
		{Function: "main", File: "train.py", Line: 20},
	}
	// What can be seen of torch 2.6, whose C++ waits there for a thread of gloo.
	destroys = []agent.Frame{
		{Function: "PartialState.destroy_process_group", File: "/opt/venv/lib/python3.13/site-packages/accelerate/state.py", Line: 848},
		{Function: "main", File: "train.py", Line: 95},
	}
	rendezvous = []agent.Frame{
		{Function: "_create_c10d_store", File: site + "distributed/rendezvous.py", Line: 198},
		{Function: "init_process_group", File: site + "distributed/distributed_c10d.py", Line: 1700},
		{Function: "main", File: "train.py", Line: 10},
	}
)

const hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestHang(t *testing.T) {
	spec := agent.JobSpec{Launcher: agent.Torchrun, Nodes: 2, RanksPerNode: 4}
	type ranks map[int]agent.RankActivity
	for name, tc := range map[string]struct {
		others  []agent.Frame
		ranks   ranks
		missing []int
		ended   []int
		want    string
	}{
		"one loads data": {waits, ranks{5: {Frames: loads}}, nil, nil,
			"rank 5 on node 1 is in load_batch (data.py:41) while 7 ranks wait in all_reduce (train.py:88)"},
		"one waits for its data loader": {waits, ranks{2: {Frames: queue}}, nil, nil,
			"rank 2 on node 0 is in epoch (train.py:70) while 7 ranks wait in all_reduce (train.py:88)"},
		"one is stopped": {waits, ranks{5: {Frames: waits, State: "T"}}, nil, nil,
			"rank 5 on node 1 is stopped by a signal in all_reduce (train.py:88) while 7 ranks wait in all_reduce (train.py:88)"},
		"a compiler computes": {waits, ranks{5: {Frames: baton, Child: "cc1plus", ChildCPU: 1}}, nil, nil,
			"rank 5 on node 1 waits for cc1plus to compute while 7 ranks wait in all_reduce (train.py:88)"},
		"a compiler waits": {waits, ranks{5: {Frames: loads, Child: "ninja", ChildCPU: 0.01}}, nil, nil,
			"rank 5 on node 1 is in load_batch (data.py:41) while 7 ranks wait in all_reduce (train.py:88)"},
		"one waits elsewhere": {waits, ranks{0: {Frames: barrier}}, nil, nil,
			"rank 0 on node 0 waits in barrier (train.py:90) while 7 ranks wait in all_reduce (train.py:88)"},
		"two load data": {waits, ranks{1: {Frames: loads}, 5: {Frames: loads}}, nil, nil,
			"ranks 1 and 5 are in load_batch (data.py:41) while 6 ranks wait in all_reduce (train.py:88)"},
		"most do not wait": {loads, ranks{1: {Frames: waits}}, nil, nil,
			"ranks 0, 2, 3, 4, 5, 6 and 7 are in load_batch (data.py:41) while 1 rank waits in all_reduce (train.py:88)"},
		"NCCL waits in the training's own code": {queue, ranks{1: {Frames: loads}}, nil, nil,
			"rank 1 on node 0 is in load_batch (data.py:41) while 7 ranks are in epoch (train.py:70)"},
		"all wait": {waits, nil, nil, nil, "all 8 ranks wait in all_reduce (train.py:88)"},
		"one has not started": {rendezvous, nil, []int{6}, nil,
			"rank 6 on node 1 has not started while 7 ranks wait in _create_c10d_store (train.py:10)"},
		"a node has not started": {rendezvous, nil, []int{4, 5, 6, 7}, nil,
			"ranks 4, 5, 6 and 7 have not started while 4 ranks wait in _create_c10d_store (train.py:10)"},
		"one has ended": {waits, nil, nil, []int{3}, "rank 3 on node 0 has ended while 7 ranks wait in all_reduce (train.py:88)"},
		"one does not end": {destroys, nil, nil, []int{0, 1, 2, 3, 4, 5, 7},
			"rank 6 on node 1 waits in PartialState.destroy_process_group (train.py:95) although all other ranks have exited with 0"},
		"two do not end": {queue, nil, nil, []int{0, 1, 2, 3, 4, 5},
			"ranks 6 and 7 are in epoch (train.py:70) although all other ranks have exited with 0"},
		"one loads while others destroy their groups": {destroys, ranks{5: {Frames: loads}}, nil, nil,
			"rank 5 on node 1 is in load_batch (data.py:41) while 7 ranks wait in PartialState.destroy_process_group (train.py:95)"},
		"NCCL waits where a result is needed": {item, ranks{5: {Frames: loads}}, nil, nil,
			"rank 5 on node 1 is in load_batch (data.py:41) while 7 ranks wait in all_reduce (train.py:50)"},
		"one writes to a storage that does not answer": {waits, ranks{5: {Frames: loads, State: "D", Waits: "nfs_wait_bit_killable"}}, nil, nil,
			"rank 5 on node 1 waits for storage or a device in load_batch (data.py:41) while 7 ranks wait in all_reduce (train.py:88)"},
		"a lock of an extension was left": {loads, ranks{0: {Frames: baton, Lock: "/c/fused_adam/lock"}}, nil, nil,
			"rank 0 on node 0 waits for the lock /c/fused_adam/lock, which a process that was killed may have left, in main (train.py:20) while 7 " +
				"ranks are in load_batch (data.py:41)"},
		"no py-spy": {nil, ranks{3: {State: "S", Waits: "hrtimer_nanosleep"}}, nil, nil,
			"rank 3 on node 0 sleeps while 7 ranks do something unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			var statuses []agent.JobStatus
			var activities []agent.RankActivity
			for node := range 2 {
				status := agent.JobStatus{Spec: spec, Node: node}
				for _, rank := range spec.Ranks(node) {
					r := agent.RankStatus{Rank: rank, Node: node}
					if slices.Contains(tc.missing, rank) {
						continue
					}
					if slices.Contains(tc.ended, rank) {
						r.Ended = time.Unix(1, 0)
					}
					status.Ranks = append(status.Ranks, r)
					a, ok := tc.ranks[rank]
					if !ok {
						a.Frames = tc.others
						if name == "NCCL waits where a result is needed" {
							a.Collectives = []agent.Collective{
								{ID: "0", Number: 9, Pending: &agent.Collective{Number: 8, Operation: "all_reduce", Entered: 300}}}
						}
					}
					a.Rank, a.Node = rank, node
					if r.Ended.IsZero() {
						activities = append(activities, a)
					}
				}
				statuses = append(statuses, status)
			}
			if got := DescribeHang(spec, statuses, activities); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			nodes := map[int]int{}
			for rank := range 8 {
				nodes[rank] = rank / 4
			}
			_, culprits := Suspects(spec, statuses, activities)
			all := strings.HasPrefix(tc.want, "all ")
			if all && culprits != nil || !all && !strings.HasPrefix(tc.want, ranksOf(culprits, nodes)+" ") {
				t.Errorf("the culprits are %v, want those of: %s", culprits, tc.want)
			}
		})
	}
	if got := DescribeHang(spec, nil, nil); got != "ranks 0, 1, 2, 3, 4, 5, 6 and 7 have not started" {
		t.Errorf("nothing is known: %s", got)
	}
}
