// SPDX-License-Identifier: Apache-2.0

// Package metrics reads the metrics that a training writes, docs/reference/metrics.md.
package metrics

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/lines"
)

// Lines calls each for every line that is a JSON object, and skips all others: the training may write anything.
func Lines(each func(map[string]any)) *lines.Splitter {
	return &lines.Splitter{Each: func(line []byte) {
		if value := object(line); value != nil {
			each(value)
		}
	}}
}

// object returns the JSON object of a line, nil for anything else. NaN and Infinity, which Python writes and JSON does not
// have, become strings.
func object(line []byte) (value map[string]any) {
	if json.Unmarshal(line, &value) == nil {
		return value
	}
	value = nil
	if json.Unmarshal(notFinite.ReplaceAll(line, []byte(`$1"$2"`)), &value) != nil {
		return nil
	}
	return value
}

var notFinite = regexp.MustCompile(`([:\[,]\s*)(NaN|-?Infinity)\b`)

// Number returns a metric if it is a finite number.
func Number(m map[string]any, key string) (float64, bool) {
	n, ok := m[key].(float64)
	return n, ok && !math.IsNaN(n) && !math.IsInf(n, 0)
}

// LossOf returns the loss in a line, which may be NaN or infinite: as the words that Lines makes of these, or as another spelling that a
// training writes as text. ok is false if the line has none.
func LossOf(m map[string]any) (loss float64, ok bool) {
	switch value := m["loss"].(type) {
	case float64:
		return value, true
	case string:
		n, err := strconv.ParseFloat(value, 64)
		return n, err == nil && (math.IsNaN(n) || math.IsInf(n, 0))
	}
	return 0, false
}

// TimeOf returns the time in a line; ok is false if it has none, or a number that is no time of this century in seconds, such as a
// duration.
func TimeOf(m map[string]any) (at time.Time, ok bool) {
	const y2001, y5138 = 1e9, 1e11
	unix, ok := Number(m, "time")
	if !ok || unix < y2001 || unix > y5138 {
		return time.Time{}, false
	}
	return time.Unix(0, int64(unix*1e9)), true
}
