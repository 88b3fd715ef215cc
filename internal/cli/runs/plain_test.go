// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"strings"
	"testing"
)

func TestPlainLog(t *testing.T) {
	var out strings.Builder
	p := plainLog(&out)
	for _, part := range []string{"one\n\x1b[", "2Jtwo\r", "thr\a", "ee"} {
		if n, err := p.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("%q: %d, %v", part, n, err)
		}
	}
	if got, want := out.String(), "one\ntwo\r"; got != want {
		t.Errorf("before the end: got %q, want %q", got, want)
	}
	p.Flush()
	if got, want := out.String(), "one\ntwo\rthree"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
