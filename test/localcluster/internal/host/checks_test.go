// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHasReachableNameserver(t *testing.T) {
	tests := map[string]bool{
		"nameserver 10.0.0.1\n":                         true,
		"search example.com\nnameserver 127.0.0.53\n":   false,
		"nameserver 127.0.0.53\nnameserver 192.0.2.1\n": true,
		"nameserver ::1\n":                              false,
		"nameserver 2001:db8::1\n":                      false,
		"# nameserver 10.0.0.1\n":                       false,
		"":                                              false,
	}
	for content, want := range tests {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := HasReachableNameserver(path); got != want || err != nil {
			t.Errorf("%q: %v, %v; want %v", content, got, err, want)
		}
	}
}

func TestFreeBytesOfAFolderThatIsNotThereYet(t *testing.T) {
	dir := t.TempDir()
	want, err := freeBytes(dir)
	if err != nil || want == 0 {
		t.Fatalf("freeBytes = %d, %v", want, err)
	}
	if _, err := freeBytes(filepath.Join(dir, "a", "b")); err != nil {
		t.Error(err)
	}
}
