// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"slices"
	"testing"
)

func TestParseCPUs(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-2,64-65\n": {0, 1, 2, 64, 65}, "7,3": {3, 7}, "5,1023-1025": {5, 1023}} {
		set, err := ParseCPUs(list)
		var got []int
		for cpu := range 2000 {
			if set.IsSet(cpu) {
				got = append(got, cpu)
			}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", list, got, err, want)
		}
	}
	for _, list := range []string{"", "a", "1-", "-1", "3-2", "1,,2", "0-99999999999"} {
		if got, err := ParseCPUs(list); err == nil {
			t.Errorf("%q is accepted as %v", list, got)
		}
	}
}
