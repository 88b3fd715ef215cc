// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestScan(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.py"), "abc")
	write(t, filepath.Join(dir, "a/b"), "")
	write(t, filepath.Join(dir, "run.sh"), "abc")
	write(t, filepath.Join(dir, "odd\n\xff%"), "abc")
	for _, err := range []error{
		os.Chmod(filepath.Join(dir, "run.sh"), 0o755),
		os.MkdirAll(filepath.Join(dir, "empty/inner"), 0o755),
		os.Symlink("../a.py", filepath.Join(dir, "a/l")),
		os.Symlink("a", filepath.Join(dir, "folder")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := Scan(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Manifest{Entries: []Entry{
		{Path: "a.py", Kind: File, Size: 3, Content: otherContent},
		{Path: "a/b", Kind: File, Content: emptyContent},
		{Path: "a/l", Kind: Link, Target: "../a.py"},
		{Path: "empty/inner", Kind: Folder},
		{Path: "folder", Kind: Link, Target: "a"},
		{Path: "odd%0A%FF%25", Kind: File, Size: 3, Content: otherContent},
		{Path: "run.sh", Kind: File, Size: 3, Content: otherContent, Executable: true},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("manifest (-want +got):\n%s", diff)
	}
	if files, bytes := got.Totals(); files != 4 || bytes != 9 {
		t.Errorf("totals are %d files, %d bytes", files, bytes)
	}
}

func TestScanRefusesAllAtOnce(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // the path of a socket must be short
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, err := range []error{
		os.Symlink("/etc", filepath.Join(dir, "absolute")),
		os.Symlink("../x", filepath.Join(dir, "up")),
		os.Symlink(".", filepath.Join(dir, "here")),
		os.Symlink("here/../x", filepath.Join(dir, "through")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = Scan(t.Context(), dir, nil)
	if fail.ReasonOf(err) != fail.UnsafeTree {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"4 of its entries", "socket: is a special file", "absolute: leads to /etc", "up: leads to",
		"through: leads to"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	// Scan accepts unsafe entries that are left out.
	ignore, err := parseIgnore("socket\nabsolute\nup\nthrough\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Scan(t.Context(), dir, ignore); err != nil {
		t.Error(err)
	}
}

func TestScanFails(t *testing.T) {
	if _, err := Scan(t.Context(), filepath.Join(t.TempDir(), "none"), nil); fail.ReasonOf(err) != fail.SyncFailed {
		t.Errorf("scanning a missing folder: %v", err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Scan(ctx, dir, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled scan: %v", err)
	}
}

func BenchmarkScan(b *testing.B) {
	dir := manyFiles(b)
	for b.Loop() {
		if _, err := Scan(b.Context(), dir, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// manyFiles creates a folder of 2,000 files and 20 MB.
func manyFiles(t testing.TB) string {
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		content := make([]byte, 10_000)
		for j := range content {
			content[j] = "abcdefgh \n"[random.IntN(10)]
		}
		write(t, filepath.Join(dir, fmt.Sprintf("package%02d/module%d.py", i%40, i)), string(content))
	}
	return dir
}

func TestCancelledScan(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, scanned := Scan(ctx, dir, nil)
	_, paged := ScanPage(ctx, dir, nil, Cursor{}, func() bool { return false })
	for name, err := range map[string]error{"Scan": scanned, "ScanPage": paged} {
		if !errors.Is(err, context.Canceled) || fail.ReasonOf(err) == fail.SyncFailed {
			t.Errorf("%s: %v, %s; want that it was cancelled, and not that files cannot be read", name, err, fail.ReasonOf(err))
		}
	}
}
