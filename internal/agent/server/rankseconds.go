// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// recentMetrics is how much of the end of the metrics is read: some hundred lines.
const recentMetrics = 64 << 10

// rankSeconds returns the key rank_seconds of the last metrics that have it, nil for none.
func rankSeconds(path string) []float64 {
	content, _, err := claimfile.ReadTail(path, recentMetrics)
	if err != nil {
		return nil
	}
	for _, line := range slices.Backward(bytes.Split(content, []byte("\n"))) {
		// The first may be the end of a line, and the last its beginning: these are no JSON.
		var metrics struct {
			RankSeconds []float64 `json:"rank_seconds"`
		}
		if json.Unmarshal(line, &metrics) == nil && metrics.RankSeconds != nil {
			return metrics.RankSeconds
		}
	}
	return nil
}
