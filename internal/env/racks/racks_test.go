// SPDX-License-Identifier: Apache-2.0

package racks

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOrder(t *testing.T) {
	for _, test := range []struct {
		racks []string
		want  []int
	}{
		{nil, nil},
		{[]string{"", "", ""}, nil},
		{[]string{"a", "a", "b"}, nil},
		{[]string{"b", "a", "b", "a"}, []int{0, 2, 1, 3}},
		{[]string{"a", "", "b", "a", "b", ""}, []int{0, 3, 2, 4, 1, 5}},
		{[]string{"", "a", "", "a"}, []int{0, 2, 1, 3}},
		{[]string{"east/1", "west/1", "east/2", "west/2", "east/1"}, []int{0, 4, 2, 1, 3}},
		{[]string{"east/2", "", "east", "east/2"}, []int{0, 3, 2, 1}},
	} {
		if diff := cmp.Diff(test.want, RankOrder(test.racks)); diff != "" {
			t.Errorf("Order(%v) (-want +got):\n%s", test.racks, diff)
		}
	}
}

func TestCrossings(t *testing.T) {
	racks := []string{"b", "a", "b", "a"}
	if before, after := Crossings(racks, nil), Crossings(racks, RankOrder(racks)); before != 4 || after != 2 {
		t.Errorf("a ring crosses %d times, and %d in the order of racks: want 4 and 2", before, after)
	}
	if got := Crossings([]string{"a", "a"}, nil); got != 0 {
		t.Errorf("a ring in one rack crosses %d times, want 0", got)
	}
}
