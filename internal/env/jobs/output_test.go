// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// Nobody reads the output of thousands of ranks.
func TestShownRanks(t *testing.T) {
	for _, tc := range []struct {
		nodes, perNode int
		order          []int
		want           int
	}{{8, 8, nil, 64}, {9, 8, nil, 1}, {512, 8, nil, 1}, {4, 17, []int{0, 3, 2, 1}, 1}} {
		spec := agent.JobSpec{Launcher: agent.Torchrun, Nodes: tc.nodes, RanksPerNode: tc.perNode, Order: tc.order}
		var shown []int
		for node := range tc.nodes {
			shown = append(shown, Shown(spec, node)...)
		}
		if len(shown) != tc.want || shown[0] != 0 {
			t.Errorf("%d nodes of %d ranks show %v, want %d with rank 0", tc.nodes, tc.perNode, shown, tc.want)
		}
	}
}
