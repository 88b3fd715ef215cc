package jobs

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func TestNewestComplete(t *testing.T) {
	const zero3, torch = agent.DeepSpeedShards, agent.TorchDistributed
	part := func(name string, format agent.CheckpointFormat, minute int, missing string) agent.Checkpoint {
		return agent.Checkpoint{Name: name, Format: format, Modified: time.Unix(1_790_000_000, 0).Add(time.Duration(minute) * time.Minute),
			Missing: missing}
	}
	type volumes = map[int][]agent.Checkpoint
	for _, tc := range []struct {
		name       string
		volumes    volumes
		want       string
		incomplete []string
		unsure     bool
	}{
		{"nothing", volumes{0: nil}, "", nil, false},
		{"the newest of a shared volume", volumes{0: {part("b", torch, 2, ""), part("a", torch, 1, "")}}, "b", nil, false},
		{"an older one of a shared volume", volumes{0: {part("b", torch, 2, ".metadata"), part("a", torch, 1, "")}}, "a",
			[]string{"b: missing .metadata"}, false},
		{"none of a shared volume", volumes{0: {part("b", torch, 2, ".metadata")}}, "", []string{"b: missing .metadata"}, false},
		{"a node is behind", volumes{0: {part("b", zero3, 2, ""), part("a", zero3, 1, "")}, 1: {part("a", zero3, 1, "")}}, "a",
			[]string{"b: node 1: it has no part of it"}, false},
		{"the first node is behind", volumes{0: {part("a", zero3, 1, "")}, 1: {part("b", zero3, 2, ""), part("a", zero3, 1, "")}}, "a",
			[]string{"b: node 0: it has no part of it"}, false},
		{"both lack something", volumes{0: {part("a", zero3, 1, "x")}, 1: {part("a", zero3, 1, "y")}}, "",
			[]string{"a: node 0: missing x; node 1: missing y"}, false},
		{"a node is new", volumes{0: {part("a", zero3, 1, "")}, 1: nil}, "", []string{"a: node 1: it has no part of it"}, false},
		{"only the model", volumes{0: {part("a", agent.DeepSpeedOptimizer, 1, "")}, 1: {part("a", agent.DeepSpeedModel, 1, "")}}, "",
			[]string{`a: node 1: its part is "DeepSpeed", another one "DeepSpeed ZeRO"`}, false},
		{"one that only the first node needs", volumes{0: {part("a", "", 1, "")}, 1: nil}, "", []string{"a: node 1: it has no part of it"}, true},
	} {
		best, incomplete, sure := NewestComplete(tc.volumes)
		if name := best.Name; name != tc.want || sure == tc.unsure || !cmp.Equal(incomplete, tc.incomplete) {
			t.Errorf("%s: %q after %q, sure %v; want %q after %q", tc.name, best.Name, incomplete, sure, tc.want, tc.incomplete)
		}
	}
}
