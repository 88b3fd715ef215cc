// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	return errors.Join(rest(t, landing, from, m), landing.Finish())
}

// rest sends what a landing misses of the folder.
func rest(t *testing.T, l *Landing, from string, m Manifest) error {
	t.Helper()
	var stream bytes.Buffer
	if err := WriteContents(t.Context(), &stream, from, m, l.Missing(), l.From()); err != nil {
		t.Fatal(err)
	}
	return ReadContents(t.Context(), &stream, m.Sizes(), l.Begun, l.Put)
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

// longName is the longest that file systems allow.
var longName = strings.Repeat("n", 255)

// Names that leave no room for a prefix.
func TestLandingOfLongNames(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, name := range []string{longName, longName[1:] + "2"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte("same content"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("target", filepath.Join(from, longName[1:]+"3")); err != nil {
		t.Fatal(err)
	}
	if err := land(t, to, from); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(to)
	if err != nil || len(entries) != 3 {
		t.Errorf("%d entries landed, %v; want 3", len(entries), err)
	}
	if name := partialName(longName); len(name) > 255 || partialName("a") != Partial+"a" || name == partialName(longName[1:]+"2") {
		t.Errorf("partial names %q, %q", name, partialName("a"))
	}
}

// cutting is a writer that fails after so many bytes.
type cutting struct {
	to   io.Writer
	left int
}

func (c *cutting) Write(p []byte) (int, error) {
	n, err := c.to.Write(p[:min(len(p), c.left)])
	if c.left -= n; err == nil && n < len(p) {
		err = io.ErrClosedPipe
	}
	return n, err
}

// A content that breaks off again and again arrives in parts, also in a later landing, and each byte once.
func TestLandingContinues(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	content := make([]byte, 3<<20)
	if _, err := rand.NewChaCha8([32]byte{}).Read(content); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"model.bin": content, longName: content, "small": []byte("small")} {
		if err := os.WriteFile(filepath.Join(from, name), text, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m, err := Scan(t.Context(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	const bytesOfAConnection = 1 << 20
	sent, connections := 0, 0
	for done := false; !done; {
		landing, err := NewLanding(t.Context(), to, m)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // two connections for each landing
			if connections++; connections > 10 {
				t.Fatal("it does not end")
			}
			var stream bytes.Buffer
			// The sender stops when the connection has passed so many bytes.
			wrote := WriteContents(t.Context(), &cutting{&stream, bytesOfAConnection}, from, m, landing.Missing(), landing.From())
			sent += stream.Len()
			read := ReadContents(t.Context(), &stream, m.Sizes(), landing.Begun, landing.Put)
			if done = wrote == nil && read == nil; done {
				break
			}
		}
		if done {
			err = landing.Finish()
		}
		landing.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	if sent > len(content)+bytesOfAConnection {
		t.Errorf("%d bytes were sent for a file of %d", sent, len(content))
	}
	landed, err := Scan(t.Context(), to, nil)
	if diff := cmp.Diff(m, landed); err != nil || diff != "" {
		t.Errorf("%v, the folder (-want +got):\n%s", err, diff)
	}
}

// What lies in place of a part is not trusted: the content is checked as a whole, and then begun again.
func TestLandingChecksParts(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "a"), []byte("the whole content"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Scan(t.Context(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(to, Partial+string(m.Entries[0].Content))
	old := filepath.Join(to, Partial+strings.Repeat("0", 64))
	for _, path := range []string{part, old} {
		if err := os.WriteFile(path, []byte("something else that is even longer"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-2*partAge)); err != nil {
		t.Fatal(err)
	}
	landing, err := NewLanding(t.Context(), to, m)
	if err != nil {
		t.Fatal(err)
	}
	defer landing.Close()
	for attempt, want := range []error{ErrDamaged, nil} {
		if err := rest(t, landing, from, m); !errors.Is(err, want) {
			t.Errorf("attempt %d: %v, want %v", attempt, err, want)
		}
	}
	if err := landing.Finish(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(to); err != nil || len(entries) != 1 || entries[0].Name() != "a" {
		t.Errorf("the folder has %v, %v; want the file alone", entries, err)
	}
}

// A part that became shorter after it was read is not filled with zeros.
func TestLandingsPartIsGone(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	content := []byte("the whole content")
	if err := os.WriteFile(filepath.Join(from, "a"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Scan(t.Context(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(to, Partial+string(m.Entries[0].Content))
	if err := os.WriteFile(part, content[:9], 0o600); err != nil {
		t.Fatal(err)
	}
	landing, err := NewLanding(t.Context(), to, m)
	if err != nil {
		t.Fatal(err)
	}
	defer landing.Close()
	if err := os.Truncate(part, 1); err != nil {
		t.Fatal(err)
	}
	if err := rest(t, landing, from, m); !errors.Is(err, errShort) {
		t.Errorf("got %v, want %v", err, errShort)
	}
	if err := rest(t, landing, from, m); err != nil { // from the first byte
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(to, "a")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("got %q, %v", got, err)
	}
}

// Parts of contents that no file has any more are removed once they are old: another landing may be writing a younger one.
func TestLandingRemovesOldParts(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "a"), []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	digest := func(digit string) string { return Partial + strings.Repeat(digit, 64) }
	for name, age := range map[string]time.Duration{digest("0"): 2 * partAge, digest("1"): partAge / 2, Partial + "mine": 2 * partAge,
		filepath.Join("elsewhere", digest("0")): 2 * partAge} {
		path, at := filepath.Join(to, name), time.Now().Add(-age)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := land(t, to, from); err != nil {
		t.Fatal(err)
	}
	var got []string
	err := filepath.WalkDir(to, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			got = append(got, strings.TrimPrefix(path, to+"/"))
		}
		return err
	})
	want := []string{digest("1"), Partial + "mine", "a", "elsewhere/" + digest("0")}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, left (-want +got):\n%s", err, diff)
	}
}

// Names that differ in upper and lower case alone are two files. A file system that takes them for one is refused before it loses one.
func TestLandingKeepsCase(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, name := range []string{"model.pt", "Model.pt"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	here, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	if len(here) == 1 {
		t.Skip("this file system takes both for one")
	}
	if err := land(t, to, from); err != nil {
		t.Fatal(err)
	}
	if there, err := os.ReadDir(to); err != nil || len(there) != 2 {
		t.Errorf("got %v, %v; want both files and nothing else", there, err)
	}
}
