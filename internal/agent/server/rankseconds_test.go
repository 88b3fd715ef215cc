// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRankSeconds(t *testing.T) {
	const line = `{"step": 1, "rank_seconds": [0.5, 0.25]}` + "\n"
	for _, test := range []struct {
		name, metrics string
		want          []float64
	}{
		{"no metrics", "", nil},
		{"none of that", `{"step": 1}` + "\n", nil},
		{"the last that has it", `{"rank_seconds": [9]}` + "\n" + line + `{"step": 2}` + "\n", []float64{0.5, 0.25}},
		{"a line that is being written", line + `{"rank_seconds": [`, []float64{0.5, 0.25}},
		{"of another type", line + `{"rank_seconds": "fast"}` + "\n", []float64{0.5, 0.25}},
		{"at the end of much", strings.Repeat(`{"step": 1}`+"\n", 10_000) + line, []float64{0.5, 0.25}},
		{"long ago", line + strings.Repeat(`{"step": 1}`+"\n", 10_000), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "metrics.jsonl")
			if err := os.WriteFile(path, []byte(test.metrics), 0o644); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, rankSeconds(path)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if got := rankSeconds(filepath.Join(t.TempDir(), "none")); got != nil {
		t.Errorf("got %v of no file", got)
	}
}
