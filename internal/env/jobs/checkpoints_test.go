// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
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

// TestSoundCheckpoints: what is left of the checkpoints of a job, some of whose attempts a rule about the loss has ended.
func TestSoundCheckpoints(t *testing.T) {
	at := func(minute int) time.Time {
		return time.Unix(1_790_000_000, 0).Add(time.Duration(minute) * time.Minute)
	}
	attempt := func(number, doubt, end int) agent.Attempt {
		a := agent.Attempt{Attempt: number}
		if doubt > 0 {
			a.Doubt = at(doubt)
		}
		if end > 0 {
			a.DoubtEnd = at(end)
		}
		return a
	}
	saved := func(minute int) agent.Checkpoint {
		return agent.Checkpoint{Name: fmt.Sprint(minute), Format: agent.TorchDistributed, Modified: at(minute)}
	}
	all := map[int][]agent.Checkpoint{0: {saved(35), saved(17), saved(15), saved(-5)}, 1: {saved(36), saved(14)}}
	for _, tc := range []struct {
		name     string
		attempts []agent.Attempt
		want     string
	}{
		{"none", nil, "0: 35 17 15 -5, 1: 36 14"},
		{"another failure", []agent.Attempt{attempt(1, 0, 0)}, "0: 35 17 15 -5, 1: 36 14"},
		{"the last attempt", []agent.Attempt{attempt(1, 15, 0)}, "0: 15 -5, 1: 14"},
		{"an attempt before another failure", []agent.Attempt{attempt(1, 15, 17), attempt(2, 0, 0)}, "0: 35 15 -5, 1: 36 14"},
		{"an attempt that left none, before another failure", []agent.Attempt{attempt(1, 15, 0), attempt(2, 0, 0)}, "0: 35 17 15 -5, 1: 36 14"},
		{"both", []agent.Attempt{attempt(1, 14, 17), attempt(2, 35, 0)}, "0: 35 -5, 1: 14"},
	} {
		sound, doubtful := Job{}.WithoutDoubtful(all, agent.JobSpec{Attempts: tc.attempts})
		got, left := "", 0
		for node := range 2 {
			names := humanize.Each(sound[node], func(c agent.Checkpoint) string { return c.Name })
			got += fmt.Sprintf(", %d: %s", node, strings.Join(names, " "))
			left += len(names)
		}
		if got = strings.TrimPrefix(got, ", "); got != tc.want || left+len(doubtful) != 6 {
			t.Errorf("%s: %s and %d in doubt, want %s", tc.name, got, len(doubtful), tc.want)
		}
	}
}
