// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one mistake in a cluster file.
type Problem struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	// Path is the key, as in "storage.mode" or "nodes.gpu_nodes[2]".
	Path string `json:"path,omitempty"`
	// Value is what stands there; empty where the mistake is that nothing does.
	Value string `json:"value,omitempty"`
	// Want describes the fault and the allowed values.
	Want string `json:"want"`
}

func (p Problem) String() string {
	text := fmt.Sprintf("%s:%d:%d: ", p.File, p.Line, p.Column)
	if p.Path != "" {
		text += p.Path + ": "
	}
	if p.Value != "" {
		text += fmt.Sprintf("%q: ", p.Value)
	}
	return text + p.Want
}

// Problems are all mistakes of a file, in the order of its lines.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

func (p Problems) sort() {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column)
	})
}
