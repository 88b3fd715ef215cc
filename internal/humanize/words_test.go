// SPDX-License-Identifier: Apache-2.0

package humanize

import "testing"

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 ranks", 1: "1 rank", 2: "2 ranks"} {
		if got := Count(n, "rank"); got != want {
			t.Errorf("Count(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestList(t *testing.T) {
	for want, words := range map[string][]string{"": nil, "a": {"a"}, "a or b": {"a", "b"}, "a, b or c": {"a", "b", "c"}} {
		if got := List(words, "or"); got != want {
			t.Errorf("List(%q) = %q, want %q", words, got, want)
		}
	}
}
