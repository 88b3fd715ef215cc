// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// Bounds of lists and texts, so that the page of a large receipt stays readable.
const (
	mostNodes    = 64
	mostRanks    = 1024
	mostTails    = 8
	mostLines    = 60
	mostLine     = 500
	mostPhases   = 40
	mostFindings = 20
	mostRails    = 64
	mostSettings = 100
	mostText     = 4000
)

// atMost returns the first elements of a list, and a sentence about the others.
func atMost[T any](list []T, most int, what string) (kept []T, more string) {
	if len(list) <= most {
		return list, ""
	}
	return list[:most], fmt.Sprintf("%d more %s are in the receipt.", len(list)-most, what)
}

// readable returns the receipt with every text plain, and paths relative to the repository.
func readable(r receipt.Receipt) (result receipt.Receipt, err error) {
	encoded, err := json.Marshal(r)
	if err != nil {
		return result, fmt.Errorf("encoding the receipt of %s: %w", r.Run, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return result, fmt.Errorf("reading the receipt of %s: %w", r.Run, err)
	}
	if encoded, err = json.Marshal(each(tree, func(text string) string {
		return humanize.Plain(cause.InTree(text))
	})); err != nil {
		return result, fmt.Errorf("encoding the receipt of %s: %w", r.Run, err)
	}
	if err := json.Unmarshal(encoded, &result); err != nil {
		return result, fmt.Errorf("reading the receipt of %s: %w", r.Run, err)
	}
	return result, nil
}

// each changes every text in a JSON value, names included.
func each(value any, change func(string) string) any {
	switch v := value.(type) {
	case map[string]any:
		changed := map[string]any{}
		for name, inner := range v {
			changed[change(name)] = each(inner, change)
		}
		return changed
	case []any:
		for i := range v {
			v[i] = each(v[i], change)
		}
	case string:
		return change(v)
	}
	return value
}

func truncate[T ~string](value T, most int) string {
	text := string(value)
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// LastLines returns the last of some lines, each cut to a readable length.
func LastLines(all []string) string {
	var b strings.Builder
	if left := len(all) - mostLines; left > 0 {
		fmt.Fprintf(&b, "(%d lines before)\n", left)
		all = all[left:]
	}
	for _, line := range all {
		b.WriteString(truncate(line, mostLine) + "\n")
	}
	return b.String()
}
