// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSplitter writes in pieces of every size.
func TestSplitter(t *testing.T) {
	long := strings.Repeat("x", Most)
	for _, tc := range []struct {
		name, ends, text string
		want             []string
	}{
		{"lines", "", "one\n\ntwo\r\nthree", []string{"one\n", "\n", "two\r\n", "three"}},
		{"a progress bar", "\r\n", "1%\r2%\r\nend\n", []string{"1%\r", "2%\r", "\n", "end\n"}},
		{"a line that does not end", "", long, []string{long}},
		{"nothing", "", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, size := range []int{1, 3, len(tc.text) + 1} {
				var got []string
				s := Splitter{Ends: tc.ends, Each: func(line []byte) { got = append(got, string(line)) }}
				for piece := range slices.Chunk([]byte(tc.text), size) {
					if n, err := s.Write(piece); n != len(piece) || err != nil {
						t.Fatalf("Write: %d, %v", n, err)
					}
				}
				s.Flush()
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("pieces of %d (-want +got):\n%s", size, diff)
				}
			}
		})
	}
}
