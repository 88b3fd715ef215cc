// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"maps"
	"slices"
)

// Pair is two nodes, the lower first.
type Pair [2]int

// String returns "0-1".
func (p Pair) String() string { return fmt.Sprintf("%d-%d", p[0], p[1]) }

// Within reports whether both nodes are among the first count.
func (p Pair) Within(count int) bool { return min(p[0], p[1]) >= 0 && max(p[0], p[1]) < count }

// Has reports whether the node is one of the two.
func (p Pair) Has(node int) bool { return p[0] == node || p[1] == node }

// Rounds returns pairs of n nodes that identify one faulty node. The pairs of a round have no node in common, and there are
// log2(n) rounds, rounded up. In round r a node meets the one whose number differs in bit r.
//
// With three nodes, node 0 would be in all pairs, and its fault would look like the
// network's: three nodes have a third round.
func Rounds(n int) [][]Pair {
	var rounds [][]Pair
	for bit := 1; bit < n; bit <<= 1 {
		var together []Pair
		for node := range n {
			if peer := node | bit; peer != node && peer < n {
				together = append(together, Pair{node, peer})
			}
		}
		rounds = append(rounds, together)
	}
	if n == 3 {
		rounds = append(rounds, []Pair{{1, 2}})
	}
	return rounds
}

// Faulty returns the fewest nodes that explain the bad pairs: nodes without a good pair, those with the most bad ones
// first. If a pair has no such node, the fault is between its two nodes, and both are named.
func Faulty(good, bad []Pair) []int {
	works := map[int]bool{}
	for _, pair := range good {
		works[pair[0]], works[pair[1]] = true, true
	}
	var faulty []int
	for len(bad) > 0 {
		counts := map[int]int{}
		for _, pair := range bad {
			for _, node := range pair {
				if !works[node] {
					counts[node]++
				}
			}
		}
		most := slices.Max(append(slices.Collect(maps.Values(counts)), 0))
		var named []int
		for node, count := range counts {
			if count == most {
				named = append(named, node)
			}
		}
		if len(named) == 0 {
			named = bad[0][:]
		} else if !slices.ContainsFunc(bad, func(p Pair) bool { return slices.Contains(named, p[0]) && slices.Contains(named, p[1]) }) {
			// Nodes without a pair between them are faulty each by itself, so take one at a time. If two are in
			// one pair, either may be faulty.
			slices.Sort(named)
			named = named[:1]
		}
		faulty = append(faulty, named...)
		bad = slices.DeleteFunc(slices.Clone(bad), func(p Pair) bool {
			return slices.ContainsFunc(named, p.Has)
		})
	}
	slices.Sort(faulty)
	return slices.Compact(faulty)
}
