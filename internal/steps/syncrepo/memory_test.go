// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// answerPlan makes a node answer every manifest with the same plan.
func answerPlan(t *testing.T, node *agenttest.Node, plan agent.TreePlan) {
	t.Helper()
	answer, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	node.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || !strings.HasPrefix(r.URL.Path, "/v1/trees/") {
				next.ServeHTTP(w, r)
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = w.Write(answer)
		})
	})
}

// TestPlansShareTheManifest: a step that sends a large tree to many nodes holds the manifest once. For each node it holds
// only which of the contents the node lacks.
func TestPlansShareTheManifest(t *testing.T) {
	var m tree.Manifest
	var all []tree.Digest
	for i := range 80_000 {
		sum := sha256.Sum256(fmt.Append(nil, i))
		all = append(all, tree.Digest(hex.EncodeToString(sum[:])))
		m.Entries = append(m.Entries, tree.Entry{Path: fmt.Sprintf("package/module-%08d/file.py", i), Kind: tree.File, Size: 100,
			Content: all[i]})
	}
	p, err := newParcel(t.TempDir(), m)
	if err != nil {
		t.Fatal(err)
	}
	// A copy of the manifest, or a list of digests, would cost more.
	memoryOfANode := uint64(len(p.encoded) / 4)
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		// The race detector drops a quarter of the buffers that connections share.
		memoryOfANode = uint64(len(p.encoded))
	}
	const count = 4
	agents := agenttest.Start(t, count)
	for name, tc := range map[string]struct {
		plan agent.TreePlan
		// cost is the cost of all nodes. It includes the allocations of the agents, which run in this process too.
		cost func(before, after runtime.MemStats) uint64
	}{
		"requests": {agent.TreePlan{Present: true}, func(before, after runtime.MemStats) uint64 { return after.TotalAlloc - before.TotalAlloc }},
		"answers": {agent.TreePlan{Missing: all}, func(before, after runtime.MemStats) uint64 {
			return max(after.HeapAlloc, before.HeapAlloc) - before.HeapAlloc
		}},
	} {
		for _, node := range agents {
			answerPlan(t, node, tc.plan)
			if _, err := node.Client.Health(t.Context()); err != nil { // connects
				t.Fatal(err)
			}
		}
		var before, after runtime.MemStats
		measure := func(stats *runtime.MemStats) {
			runtime.GC()
			runtime.GC() // pools survive the first
			runtime.ReadMemStats(stats)
		}
		var tries []try
		measure(&before)
		for _, node := range agents {
			tries = append(tries, p.askMissing(t.Context(), node.Client))
		}
		measure(&after)
		for i, try := range tries {
			if try.err != nil || try.present != tc.plan.Present || len(p.contents(try)) != len(tc.plan.Missing) {
				t.Fatalf("%s of node %d: present is %t, %d contents, %v", name, i, try.present, len(p.contents(try)), try.err)
			}
		}
		if cost := tc.cost(before, after) / count; cost > memoryOfANode {
			t.Errorf("%s: each node costs %d bytes for a manifest of %d, want at most %d", name, cost, len(p.encoded), memoryOfANode)
		}
	}
}
