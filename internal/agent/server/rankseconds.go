package server

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"slices"
)

// recentMetrics is how much of the end of the metrics is looked at: some hundred lines.
const recentMetrics = 64 << 10

// rankSeconds is key rank_seconds of the last metrics that have it, nil where none has.
func rankSeconds(path string) []float64 {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > recentMetrics {
		if _, err := file.Seek(-recentMetrics, io.SeekEnd); err != nil {
			return nil
		}
	}
	content, err := io.ReadAll(io.LimitReader(file, recentMetrics))
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
