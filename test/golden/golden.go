// SPDX-License-Identifier: Apache-2.0

// Package golden compares the output of tests with files of the repository.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files that tests compare with")

// Updating reports whether the flag -update is set.
func Updating() bool { return *update }

// File fails the test if got differs from the content of the file at path. With -update, File writes the file first, and
// creates its folder.
func File(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; the flag -update writes it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); the flag -update writes it:\n%s", path, diff)
	}
}

// Folder is File for all files of the folder at path, by name. Another file there fails the test; with -update, Folder deletes it.
func Folder(t testing.TB, path string, got map[string]string) {
	t.Helper()
	for name, text := range got {
		File(t, filepath.Join(path, name), text)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		stale := filepath.Join(path, entry.Name())
		if _, found := got[entry.Name()]; found {
			continue
		}
		if !*update {
			t.Errorf("%s: nothing generates it; the flag -update deletes it", stale)
		} else if err := os.Remove(stale); err != nil {
			t.Fatal(err)
		}
	}
}

// Section writes text into the page at path, between the line begin and the next "<!-- end -->", if the flag -update is
// set. It reports whether the flag is set.
func Section(t testing.TB, path, begin, text string) bool {
	t.Helper()
	if !*update {
		return false
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const end = "<!-- end -->"
	before, rest, _ := strings.Cut(string(page), begin)
	_, after, found := strings.Cut(rest, end)
	if !found {
		t.Fatalf("%s has no lines %q and %q", path, begin, end)
	}
	if err := os.WriteFile(path, []byte(before+begin+text+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
	return true
}
