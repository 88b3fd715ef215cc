// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRounds(t *testing.T) {
	for n, want := range map[int][][]Pair{
		1: nil,
		2: {{{0, 1}}},
		3: {{{0, 1}}, {{0, 2}}, {{1, 2}}},
		4: {{{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}},
		5: {{{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}, {{0, 4}}},
	} {
		if diff := cmp.Diff(want, Rounds(n)); diff != "" {
			t.Errorf("%d nodes (-want +got):\n%s", n, diff)
		}
	}
}

// The rounds identify any single faulty node among three or more nodes.
func TestRoundsTellEveryNode(t *testing.T) {
	for n := 3; n <= 40; n++ {
		rounds := Rounds(n)
		if want := bits.Len(uint(n - 1)); n != 3 && len(rounds) != want {
			t.Errorf("%d nodes: %d rounds, want %d", n, len(rounds), want)
		}
		for faulty := range n {
			var good, bad []Pair
			for _, together := range rounds {
				busy := map[int]bool{}
				for _, pair := range together {
					if busy[pair[0]] || busy[pair[1]] {
						t.Errorf("%d nodes: pair %s shares a node with another of its round", n, pair)
					}
					busy[pair[0]], busy[pair[1]] = true, true
					if pair.Has(faulty) {
						bad = append(bad, pair)
					} else {
						good = append(good, pair)
					}
				}
			}
			if got := Faulty(good, bad); !cmp.Equal(got, []int{faulty}) {
				t.Errorf("%d nodes, %d is faulty: got %v", n, faulty, got)
			}
		}
	}
}

func TestFaulty(t *testing.T) {
	for _, test := range []struct {
		name      string
		good, bad []Pair
		want      []int
	}{
		{"nothing", []Pair{{0, 1}}, nil, nil},
		{"two nodes are a pair", nil, []Pair{{0, 1}}, []int{0, 1}},
		{"both nodes are good elsewhere", []Pair{{0, 2}, {1, 3}}, []Pair{{0, 1}}, []int{0, 1}},
		{"two nodes", []Pair{{2, 3}}, []Pair{{0, 2}, {1, 3}}, []int{0, 1}},
		{"all", nil, []Pair{{0, 1}, {2, 3}, {0, 2}, {1, 3}}, []int{0, 1, 2, 3}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(fmt.Sprint(test.want), fmt.Sprint(Faulty(test.good, test.bad))); diff != "" {
				t.Errorf("faulty (-want +got):\n%s", diff)
			}
		})
	}
}
