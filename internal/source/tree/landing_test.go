package tree

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// land moves folder from into folder to, as mlenv fetch does.
func land(t *testing.T, to, from string) error {
	t.Helper()
	m, err := Scan(t.Context(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	landing, err := NewLanding(t.Context(), to, m)
	if err != nil {
		return err
	}
	defer landing.Close()
	var sent bytes.Buffer
	if err := WriteContents(t.Context(), &sent, from, m, landing.Missing()); err != nil {
		t.Fatal(err)
	}
	if err := ReadContents(t.Context(), &sent, m.Sizes(), func(d Digest, r io.Reader) error { return landing.Put(d, r) }); err != nil {
		return err
	}
	return landing.Finish()
}

func TestLandingFollowsALinkThatLeadsElsewhereNow(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, target := range []string{"step-100", "step-200", "step-200"} {
		if err := os.RemoveAll(filepath.Join(from, "latest")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(from, "latest")); err != nil {
			t.Fatal(err)
		}
		if err := land(t, to, from); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(filepath.Join(to, "latest")); err != nil || got != target {
			t.Errorf("latest leads to %q, %v; want %s", got, err, target)
		}
	}
}

func TestLandingOfManyFilesWithOneContent(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	const few = 100
	less := limit
	less.Cur = min(limit.Cur, few)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &less); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}()
	from, to := t.TempDir(), t.TempDir()
	for i := range 2 * few {
		if err := os.WriteFile(filepath.Join(from, fmt.Sprintf("%d.py", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := land(t, to, from); err != nil {
		t.Fatal(err)
	}
	if found, err := os.ReadDir(to); err != nil || len(found) != 2*few {
		t.Errorf("%d files came, %v; want %d", len(found), err, 2*few)
	}
}
