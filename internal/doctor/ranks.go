// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// muchSlower is the factor above the median from which a rank holds the others up: steps of one rank differ by less.
const muchSlower = 1.3

// slowRanks reports ranks that take longer than the others for their own part of a step, if the training's metrics
// have these times.
func (e *examination) slowRanks(j job) {
	zero, _ := j.statusOf(0)
	seconds := zero.RankSeconds
	if !j.running() || len(seconds) < 2 {
		return
	}
	sorted := slices.Sorted(slices.Values(seconds))
	// With two ranks this is the faster one, because the slower one cannot be compared with itself.
	median := sorted[(len(sorted)-1)/2]
	var slow []string
	var first *node
	for rank, took := range seconds {
		if median <= 0 || took < muchSlower*median {
			continue
		}
		where := fmt.Sprintf("rank %d", rank)
		if n := e.nodeOf(j, rank); n != nil {
			where += " on " + n.String()
			if first == nil {
				first = n
			}
		}
		slow = append(slow, fmt.Sprintf("%s takes %s", where, stepTime(took)))
	}
	if slow == nil {
		return
	}
	next := "compare what these ranks load and compute with the others"
	if first != nil {
		next = e.execCommand(first, "sh -c 'nvidia-smi; top -bn1 | head -20'") + " (a slow GPU, or a data loader without processors? Ranks " +
			"with longer samples take longer too)"
	}
	e.found(RankSlow, j.displayName(), fmt.Sprintf("%s for its own part of a step, the median is %s: all others wait",
		strings.Join(slow, ", "), stepTime(median)), next)
}

func stepTime(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
}

// nodeOf returns the node of a rank, or nil if it is unknown.
func (e *examination) nodeOf(j job, rank int) *node {
	i := slices.IndexFunc(e.nodes, func(n *node) bool { return slices.Contains(j.spec().Ranks(n.number), rank) })
	if i < 0 {
		return nil
	}
	return e.nodes[i]
}
