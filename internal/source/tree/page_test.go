// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pages lists a folder, each page as short as possible, as over a connection that lasts no longer.
func pages(t *testing.T, dir string, from Cursor, between func(page int)) (m Manifest, files []Known, count int) {
	t.Helper()
	for {
		page, err := ScanPage(t.Context(), dir, nil, from, func() bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		m.Entries, files = append(m.Entries, page.Entries...), append(files, page.Files...)
		if count++; page.Next == nil {
			return m, files, count
		}
		const endless = 100
		if count == endless {
			t.Fatalf("the listing does not end: %+v", page.Next)
		}
		content, err := json.Marshal(page.Next)
		if err != nil {
			t.Fatal(err)
		}
		from = Cursor{}
		if err := json.Unmarshal(content, &from); err != nil {
			t.Fatal(err)
		}
		between(count)
	}
}

// A listing in pages is the same as one at once, and reads a large file once.
func TestScanPages(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 * pageGroup {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d", i)), fmt.Append(nil, i), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	large := filepath.Join(dir, "010-large")
	if err := os.WriteFile(large, make([]byte, LargeFile+pageBlock/2), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "empty", "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("010-large", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	want, err := Scan(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, files, count := pages(t, dir, Cursor{}, func(int) {})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	const blocks = LargeFile/pageBlock + 1
	if count < blocks || count > blocks+5 || len(files) != 1 {
		t.Errorf("%d pages, large files %v; want about %d pages, and one file", count, files, blocks)
	}
	// The next listing knows the large file, unless it has changed.
	got, _, count = pages(t, dir, Cursor{Known: files}, func(int) {})
	if diff := cmp.Diff(want, got); diff != "" || count > 5 {
		t.Errorf("%d pages (-want +got):\n%s", count, diff)
	}
	change := func(page int) {
		if page == 2 { // half of it is read
			if err := os.WriteFile(large, make([]byte, LargeFile+pageBlock/2+1), 0o700); err != nil {
				t.Error(err)
			}
		}
	}
	got, _, _ = pages(t, dir, Cursor{}, change)
	if want, err = Scan(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after a change (-want +got):\n%s", diff)
	}
}

// FuzzScanPage checks that no cursor, which another program has sent, leads to a wrong digest or a crash.
func FuzzScanPage(f *testing.F) {
	f.Add("a", int64(3), int64(2), []byte("state"), "")
	f.Add("b", int64(-1), int64(9), []byte{}, "x")
	dir := f.TempDir()
	then := time.Unix(1790000000, 0)
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("abc"), 0o600); err != nil {
			f.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, name), then, then); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, path string, size, read int64, sum []byte, after string) {
		from := Cursor{After: after, Known: []Known{{Path: path, Size: size, Modified: then, Read: read, Sum: sum}}}
		page, err := ScanPage(t.Context(), dir, nil, from, func() bool { return true })
		if err != nil {
			return
		}
		for _, e := range page.Entries {
			if e.Kind == File && !e.Content.Valid() {
				t.Errorf("%+v", e)
			}
		}
	})
}
