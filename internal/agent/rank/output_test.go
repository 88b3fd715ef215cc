// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"io"
	"strings"
	"testing"
)

// pieces are what a rank prints, one read for each. after is called before the next one is read.
type pieces struct {
	left  []string
	after func()
}

func (p *pieces) Read(buffer []byte) (int, error) {
	p.after()
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(buffer, p.left[0])
	p.left = p.left[1:]
	return n, nil
}

// An error begins with the title of its traceback, whatever draws it, and not again with what the rank prints after it.
func TestErrorBegins(t *testing.T) {
	const title = "Traceback (most recent call last):\n"
	const long = "                                                                        "
	for name, tc := range map[string]struct {
		printed []string
		want    string // how many errors have begun after each piece
	}{
		"Python's":                          {[]string{"step 3\n", "Traceback (most recent call last):\n", "ValueError: bad batch\n"}, "011"},
		"two":                               {[]string{title, long, title, long}, "1122"},
		"torch's prefix":                    {[]string{"[rank1]: Traceback (most recent call last):\n"}, "1"},
		"in pieces":                         {[]string{"Trace", "ba", "ck (most", " recent", " call last)\n", long}, "000011"},
		"in pieces, the end in one of them": {[]string{"Traceback (most", " recent call last)\n", "x\n"}, "011"},
		"none":                              {[]string{"see the Traceback above\n", "(Traceback)\n"}, "00"},
	} {
		o, began, last := output{log: io.Discard}, 0, int64(0)
		got := strings.Builder{}
		read := &pieces{left: tc.printed}
		first := true
		read.after = func() {
			if first {
				first = false
				return
			}
			if at := o.seen.Load(); at != last {
				began, last = began+1, at
			}
			got.WriteByte(byte('0' + began))
		}
		if err := o.copyUntilClosed(read); err != nil || got.String() != tc.want {
			t.Errorf("%s: got %s, %v; want %s", name, got.String(), err, tc.want)
		}
	}
}
