// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// A content has each of its files as a source, because one may be broken, and a file that several trees link once.
func TestSourcesAreDifferentFiles(t *testing.T) {
	w := newWorkspace(t)
	w.synced(t, files{"a.sh": "echo"})
	w.synced(t, files{"a.sh": "echo", "new": "x"}) // a link to the first
	w.synced(t, files{"a.sh*": "echo"})            // a copy, because its mode differs
	_, m := newSource(t, files{"a.sh": "echo"})
	found, _, err := w.sources(m.Sizes())
	if err != nil {
		t.Fatal(err)
	}
	of := found[m.Entries[0].Content]
	if len(of) != 2 || of[0].stamp == of[1].stamp {
		t.Errorf("got %+v, want two files", of)
	}
}

// A number that does not fit its field is no record of this program.
func TestRecordsThatDoNotFit(t *testing.T) {
	content := strings.Repeat("0", 64)
	good := content + " 1 2 3 100644 a"
	if r, err := parseRecord(good); err != nil || r.stamp.mode != 0o100644 || r.content != tree.Digest(content) {
		t.Errorf("%s: %+v, %v", good, r, err)
	}
	for _, line := range []string{
		content + " 1 2 3 40000000000 a", content + " 1 2 3 -1 a", content + " 9223372036854775808 2 3 100644 a",
		content + " 1 9223372036854775808 3 100644 a", content + " 1 2 18446744073709551616 100644 a",
	} {
		if r, err := parseRecord(line); err == nil {
			t.Errorf("%s: got %+v, want an error", line, r)
		}
	}
}
