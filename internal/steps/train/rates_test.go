// SPDX-License-Identifier: Apache-2.0

package train

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// A rate that nothing shows is 0, which readers leave out.
func TestRates(t *testing.T) {
	begin := time.Unix(1_790_000_000, 0).UTC()
	for _, tc := range []struct {
		name  string
		lines []map[string]any // one each two seconds
		want  receipt.Progress
	}{
		{"one step", []map[string]any{{"step": 1.0, "steps": 10.0, "tokens": 5.0}}, receipt.Progress{Step: 1, Steps: 10}},
		{"steps alone", []map[string]any{{"step": 1.0, "steps": 10.0}, {"step": 2.0}}, receipt.Progress{Step: 2, Steps: 10, SecondsLeft: 16}},
		{"samples and tokens", []map[string]any{{"step": 1.0, "samples": 10.0, "tokens": 100.0}, {"step": 2.0, "samples": 14.0, "tokens": 300.0}},
			receipt.Progress{Step: 2, SamplesPerSecond: 2, TokensPerSecond: 100}},
		{"a loss that was NaN at times", []map[string]any{{"step": 1.0, "loss": 3.0}, {"step": 2.0, "loss": "NaN"},
			{"step": 3.0, "loss": "Infinity"},
			{"step": 4.0, "loss": 2.0}}, receipt.Progress{Step: 4, Loss: new(2.0), NotFinite: new(2.0)}},
		{"counted anew", []map[string]any{{"step": 1.0, "samples": 10.0, "tokens": 100.0}, {"step": 2.0, "samples": 4.0, "tokens": 3.0}},
			receipt.Progress{Step: 2}},
	} {
		p := &progress{}
		at := begin
		for _, line := range tc.lines {
			p.add(line, at)
			at = at.Add(2 * time.Second)
		}
		got, measured := p.snapshot()
		tc.want.At = at.Add(-2 * time.Second)
		if diff := cmp.Diff(tc.want, got); diff != "" || !measured {
			t.Errorf("%s: measured %t (-want +got):\n%s", tc.name, measured, diff)
		}
	}
	if got, measured := (&progress{}).snapshot(); measured || !got.At.IsZero() {
		t.Errorf("of nothing: %+v, %t", got, measured)
	}
}
