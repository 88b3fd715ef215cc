// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"time"
)

func TestSaving(t *testing.T) {
	now := time.Unix(1000, 0)
	part := func(node int, state JobState, left time.Duration, ranks ...RankStatus) JobStatus {
		for i := range ranks {
			ranks[i].Node = node
		}
		return JobStatus{Node: node, State: state, Stopping: now.Add(-time.Second), Kill: now.Add(left), Ranks: ranks}
	}
	running := part(1, Running, 0, RankStatus{Rank: 1})
	running.Stopping = time.Time{}
	many := make([]RankStatus, 10)
	for _, tc := range []struct {
		name     string
		statuses []JobStatus
		want     string
	}{
		{"a node that was not stopped", []JobStatus{running}, ""},
		{"one rank has saved", []JobStatus{part(0, Running, 25*time.Second, RankStatus{Rank: 0, Ended: now}, RankStatus{Rank: 1})},
			"rank 1 on node 0, for at most 25s"},
		{"one node has ended", []JobStatus{part(0, Stopped, time.Second, RankStatus{Rank: 0}),
			part(1, Running, 90*time.Second, RankStatus{Rank: 2})}, "rank 2 on node 1, for at most 1m30s"},
		{"the time is over", []JobStatus{part(0, Running, -time.Second, RankStatus{Rank: 0})}, "rank 0 on node 0, for at most 0s"},
		{"many", []JobStatus{part(0, Running, time.Second, many...)}, "rank 0 on node 0, rank 0 on node 0, rank 0 on node 0, rank 0 on node 0, " +
			"rank 0 on node 0, rank 0 on node 0, rank 0 on node 0, rank 0 on node 0 and 2 more, for at most 1s"},
	} {
		if got := Saving(tc.statuses, now); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}
