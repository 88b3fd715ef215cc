// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzReadNode: a record that can be read can be written and read again, and belongs to its folder.
func FuzzReadNode(f *testing.F) {
	f.Add([]byte(`{"id":"other","node":7,"state":"running","spec":{"nodes":2,"ranksPerNode":2}}`), []byte(`{"rank":1,"exit":{"code":1}}`))
	f.Add([]byte(`{"state":"exited","spec":{"nodes":1,"ranksPerNode":1,"env":{"A":"1"}},"ranks":[{"rank":0}]}`), []byte(`{"tail":["a"]}`))
	f.Add([]byte(`{"state":"gone"}`), []byte(`[`))
	f.Fuzz(func(t *testing.T, node, rank []byte) {
		dir := Dir(filepath.Join(t.TempDir(), "job"))
		if err := WriteFile(dir.NodeStatus(0), node); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir.RankStatus(0), rank, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := dir.ReadRank(0); err != nil && (!Foreign(err) || json.Valid(rank) && rank[0] == '{' && string(rank) == "{}") {
			t.Fatalf("reading a rank: %v", err)
		}
		first, err := dir.ReadNode(0)
		if err != nil {
			if !Foreign(err) {
				t.Fatalf("reading a file that exists: %v", err)
			}
			return
		}
		if first.ID != "job" || first.Node != 0 || first.Record != string(dir) {
			t.Fatalf("job %s of node %d in %s, want job of node 0 in %s", first.ID, first.Node, first.Record, dir)
		}
		if err := WriteJSON(dir.NodeStatus(0), first); err != nil {
			t.Fatal(err)
		}
		second, err := dir.ReadNode(0)
		if err != nil {
			t.Fatal(err)
		}
		text := func(value any) string {
			content, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			return string(content)
		}
		if diff := cmp.Diff(text(first), text(second)); diff != "" {
			t.Errorf("written and read again (-first +second):\n%s", diff)
		}
	})
}
