// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestGrowth: times are by the clock of this node, whatever the clock of the storage shows.
func TestGrowth(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	began := time.Unix(1_790_000_000, 0)
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	var g growth
	for i, step := range []struct {
		now int
		// size and modified describe the file. Size 0 means no file.
		size, modified int
		want           int
	}{
		{10, 0, 0, 0},
		{20, 1, 15, 15},
		{30, 1, 15, 15},
		{40, 2, 15 - 600, 30}, // the storage's clock is behind: the file grew after the last look
		{50, 2, 15 - 600, 30},
		{60, 3, 900, 60}, // the storage's clock is ahead
		{70, 3, 900, 60},
		{80, 4, 76, 76},
	} {
		if step.size > 0 {
			if err := os.WriteFile(file, make([]byte, step.size), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(file, at(step.modified), at(step.modified)); err != nil {
				t.Fatal(err)
			}
		}
		if got := g.look([]string{file}, began, at(step.now)); !got[0].Equal(at(step.want)) {
			t.Errorf("look %d: %s, want %s", i, got[0], at(step.want))
		}
	}
}
