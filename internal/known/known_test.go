// SPDX-License-Identifier: Apache-2.0

package known

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestRows(t *testing.T) {
	reasons, err := os.ReadFile("../../docs/reference/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	for source, table := range map[string]Table{"words": Words, "pods": Pods} {
		ids := map[string]bool{}
		for _, row := range table {
			at := source + " " + row.ID
			if ids[row.ID] {
				t.Errorf("%s: two rows have that name", at)
			}
			ids[row.ID] = true
			if row.ID == "" || len(row.Patterns) == 0 || len(row.Examples) == 0 || row.From == "" {
				t.Errorf("%s: want a name, a pattern, an example, and where the text comes from", at)
			}
			if !slices.Contains([]Whose{Rank, Peer, Node, Fabric, Image, Cluster, Request}, row.Whose) {
				t.Errorf("%s: whose is %q", at, row.Whose)
			}
			if row.Reason != "" && !strings.Contains(string(reasons), "| "+string(row.Reason)+" |") {
				t.Errorf("%s: %s is no reason of the list", at, row.Reason)
			}
			for _, example := range row.Examples {
				for _, kind := range append(strings.Fields(row.Of), "")[:max(1, len(strings.Fields(row.Of)))] {
					if found, _ := table.FindOf(kind, example); found.ID != row.ID {
						t.Errorf("%s: row %q fits %q first", at, found.ID, example)
					}
				}
			}
		}
	}
}
