// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"slices"
	"testing"
)

func TestMap(t *testing.T) {
	meet := make(chan int)
	got := Map([]int{1, 2}, func(n int) int {
		select {
		case meet <- n:
			return n
		case other := <-meet:
			return n * other
		}
	})
	if want := []int{1, 2}; !slices.Equal(got, want) && !slices.Equal(got, []int{2, 2}) {
		t.Errorf("got %v, want %v or [2 2]", got, want)
	}
}
