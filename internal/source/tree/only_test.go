// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOnly(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/b/c", "a/b/d", "a/e", "f*", "fx", "g/h"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		paths, want []string
	}{
		{[]string{"."}, []string{"a/b/c", "a/b/d", "a/e", "f*", "fx", "g/h"}},
		{[]string{"a/b"}, []string{"a/b/c", "a/b/d"}},
		{[]string{"a/b/c", "a/e", "g"}, []string{"a/b/c", "a/e", "g/h"}},
		{[]string{"a/", "a/b/c"}, []string{"a/b/c", "a/b/d", "a/e"}},
		{[]string{"f*"}, []string{"f*"}},
		{[]string{"a/none"}, []string{"a"}},
	} {
		m, err := Scan(t.Context(), dir, OnlyPaths(tc.paths))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range m.Entries {
			name, err := Unescape(e.Path)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, name)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tc.paths, diff)
		}
	}
}

// A dataset has many files, and the request that asks which of them exist names all of them.
func TestOnlyOfManyPaths(t *testing.T) {
	const many = 300_000
	paths := make([]string, many)
	for i := range paths {
		paths[i] = fmt.Sprintf("train/n%08d/%d.jpeg", i/100, i)
	}
	only := OnlyPaths(paths)
	for _, name := range paths {
		if only.LeavesOut(name, false) || !only.LeavesOut(name+"x", false) {
			t.Fatalf("%s: want this file, and not its neighbour", name)
		}
	}
}
