// SPDX-License-Identifier: Apache-2.0

package train

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
)

// TestRankMissesTheRendezvous: rank 0 connects to the port at once, rank 1 when the test tells it to.
func TestRankMissesTheRendezvous(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	release := filepath.Join(t.TempDir(), "release")
	training, out, _ := newTraining(t, `#!/bin/bash
if [ "$NODE_RANK" = 1 ]; then until [ -e '`+release+`' ]; do sleep 0.02; done; fi
exec 3<>/dev/tcp/127.0.0.1/$MASTER_PORT
exec sleep 1000`)
	training.Spec.RanksPerNode, training.Spec.MasterPort = 1, listener.Addr().(*net.TCPAddr).Port
	if _, err := training.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer training.stop(t.Context(), agent.Stop{Reason: "the test is over"})
	// until waits until both ranks have started and count ranks are at the rendezvous.
	until := func(count int) []agent.JobStatus {
		for {
			statuses, _, ok := training.silence(t.Context())
			started := !slices.ContainsFunc(statuses, func(s agent.JobStatus) bool { return len(s.Ranks) == 0 })
			if _, arrived := cause.Absent(training.Spec, statuses); ok && started && arrived == count {
				return statuses
			}
			if t.Context().Err() != nil {
				t.Fatal(t.Context().Err())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	began, m := time.Now(), meeting{}
	training.watchRendezvous(t.Context(), &m, nil, began) // no rank is there yet
	statuses := until(1)
	for _, later := range []time.Duration{0, meetingTime - time.Second} {
		if training.watchRendezvous(t.Context(), &m, statuses, began.Add(later)); out.String() != "" {
			t.Fatalf("after %s: log %q, want none", later, out)
		}
	}
	training.watchRendezvous(t.Context(), &m, statuses, began.Add(meetingTime))
	training.watchRendezvous(t.Context(), &m, statuses, began.Add(2*meetingTime)) // the warning comes only once
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "for 30s since the first came: rank 1 on node 1 ") {
		t.Errorf("log %q, want one warning about rank 1", got)
	}
	if got := cause.DescribeHang(training.Spec, statuses, nil); got != "rank 1 on node 1 has not reached the rendezvous" {
		t.Errorf("the culprit of a hang: %s", got)
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	training.watchRendezvous(t.Context(), &m, until(2), began.Add(80*time.Second))
	if !strings.Contains(out.String(), "All ranks have reached the rendezvous, the last ones after 1m20s.") {
		t.Errorf("log %q, want a line that all have come", out)
	}
}

// A rank is late only if another rank waits for it, and not if it has ended.
func TestLateRanks(t *testing.T) {
	spec := agent.JobSpec{Launcher: agent.Torchrun, Nodes: 2, RanksPerNode: 2}
	now := time.Now()
	ranks := func(all ...agent.RankStatus) []agent.JobStatus { return []agent.JobStatus{{Ranks: all}} }
	come := agent.RankStatus{Rank: 0, Started: now, Rendezvous: agent.Arrived}
	for _, tc := range []struct {
		name     string
		statuses []agent.JobStatus
		want     []int
	}{
		{"nobody has come", ranks(agent.RankStatus{Rank: 0, Started: now}, agent.RankStatus{Rank: 1, Started: now}), nil},
		{"one calls, two have not started", ranks(come, agent.RankStatus{Rank: 1, Started: now, Rendezvous: agent.Connecting}), []int{1, 2, 3}},
		{"one has ended", ranks(come, agent.RankStatus{Rank: 1, Started: now, Ended: now}, agent.RankStatus{Rank: 2, Rendezvous: agent.Arrived},
			agent.RankStatus{Rank: 3, Started: now}), []int{3}},
	} {
		m := meeting{}
		if got := m.late(tc.statuses, spec, now); got != nil {
			t.Errorf("%s: %v at the first look", tc.name, got)
		}
		got := m.late(tc.statuses, spec, now.Add(meetingTime))
		var numbers []int
		for _, rank := range got {
			numbers = append(numbers, rank.Rank)
		}
		if !slices.Equal(numbers, tc.want) {
			t.Errorf("%s: ranks %v, want %v", tc.name, numbers, tc.want)
		}
	}
}
