// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzJobStatus reads any answer of an agent. An accepted status is the requested one, and has only ranks of that node.
func FuzzJobStatus(f *testing.F) {
	f.Add([]byte(`{"state":"running","spec":{"nodes":2,"ranksPerNode":2},"ranks":[{"rank":99},{"rank":3},{"rank":2},{"rank":3}]}`), 1)
	f.Add([]byte(
		`{"state":"exited","spec":{"nodes":3,"ranksPerNode":8,"launcher":"command","order":[0,2,1]},"ranks":[{"rank":1,"tail":["x"],`+
			`"python":{"type":"E"}}],"quiet":-1}`), 2)
	f.Add([]byte(`{"state":"stopped","spec":{"nodes":1,"ranksPerNode":1099511627776}}`), 0)
	f.Add([]byte(`{"state":"running","spec":{"nodes":1,"ranksPerNode":1}}`), 1)
	f.Fuzz(func(t *testing.T, content []byte, node int) {
		var s JobStatus
		if json.Unmarshal(content, &s) != nil || s.Confine("job", node) != nil {
			return
		}
		if s.ID != "job" || s.Node != node || node >= s.Spec.Nodes || s.Quiet < 0 {
			t.Fatalf("job %s of node %d, quiet for %s; want job of node %d", s.ID, s.Node, s.Quiet, node)
		}
		own := s.Spec.Ranks(node)
		last := -1
		for _, r := range s.Ranks {
			if r.Rank <= last || own[r.LocalRank] != r.Rank || r.Node != node || len(r.Tail) > maxLines || len(r.Exit.Signal) > maxText+len("…") {
				t.Fatalf("rank %+v behind %d; want those of %v in their order", r, last, own)
			}
			last = r.Rank
		}
		again := s
		if err := again.Confine("job", node); err != nil {
			t.Fatalf("an accepted status is refused: %v", err)
		}
		if diff := cmp.Diff(s.Ranks, again.Ranks); diff != "" {
			t.Fatalf("accepted twice (-first +second):\n%s", diff)
		}
	})
}

// FuzzJobSpec: the nodes of an accepted job share its ranks, and each rank is on one node.
func FuzzJobSpec(f *testing.F) {
	f.Add([]byte(`{"nodes":3,"ranksPerNode":2,"order":[0,2,1]}`))
	f.Add([]byte(`{"nodes":2,"ranksPerNode":8,"launcher":"command"}`))
	f.Add([]byte(`{"nodes":2,"ranksPerNode":1,"order":[0,0]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		var s JobSpec
		if json.Unmarshal(content, &s) != nil || s.Validate() != nil || s.Nodes*s.RanksPerNode > 10_000 {
			return
		}
		var all []int
		for node := range s.Nodes {
			all = append(all, s.Ranks(node)...)
		}
		slices.Sort(all)
		for i, rank := range all {
			if i != rank {
				t.Fatalf("ranks %v, want each from 0 once", all)
			}
		}
		if len(all) != s.Nodes*s.RanksOfNode() || s.Position(0) != 0 {
			t.Fatalf("%d ranks, node 0 at %d; want %d, the master first", len(all), s.Position(0), s.Nodes*s.RanksOfNode())
		}
	})
}
