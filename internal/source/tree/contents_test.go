// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// sent returns a tree and the stream of its contents.
func sent(t testing.TB, files map[string]string) (dir string, m Manifest, stream []byte) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		write(t, filepath.Join(dir, name), content)
	}
	m, err := Scan(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	var all []Digest
	for _, e := range m.Entries {
		all = append(all, e.Content)
	}
	var out bytes.Buffer
	if err := WriteContents(t.Context(), &out, dir, m, all, nil); err != nil {
		t.Fatal(err)
	}
	return dir, m, out.Bytes()
}

// nothingBegun is for a reader that has no parts of contents.
func nothingBegun(Digest) Begun { return Begun{Sum: sha256.New()} }

func received(ctx context.Context, stream io.Reader, m Manifest) (map[Digest]string, error) {
	got := make(map[Digest]string)
	err := ReadContents(ctx, stream, m.Sizes(), nothingBegun, func(content Digest, r io.Reader) error {
		data, err := io.ReadAll(r)
		if err == nil {
			got[content] = string(data)
		}
		return err
	})
	return got, err
}

func TestContents(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 200_000)
	_, m, stream := sent(t, map[string]string{"a": "abc", "b": "", "c": large, "d": "x"})
	got, err := received(t.Context(), bytes.NewReader(stream), m)
	if err != nil {
		t.Fatal(err)
	}
	want := map[Digest]string{otherContent: "abc", emptyContent: "", m.Entries[2].Content: large, m.Entries[3].Content: "x"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("contents (-want +got):\n%s", diff)
	}
	if len(stream) > len(large)/10 {
		t.Errorf("%d bytes were sent for %d", len(stream), len(large))
	}
	// ReadContents checks and skips contents that the callback does not read.
	count := 0
	if err := ReadContents(t.Context(), bytes.NewReader(stream), m.Sizes(), nothingBegun, func(Digest, io.Reader) error {
		count++
		return nil
	}); err != nil || count != 4 {
		t.Errorf("skipping: %d contents, %v", count, err)
	}
}

func TestContentsOfNothing(t *testing.T) {
	_, m, stream := sent(t, nil)
	if got, err := received(t.Context(), bytes.NewReader(stream), m); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestReadContentsRefuses(t *testing.T) {
	_, m, stream := sent(t, map[string]string{"a": "abc", "b": strings.Repeat("some text", 1000)})
	_, other, _ := sent(t, map[string]string{"a": "abc"})
	grown := Manifest{Entries: []Entry{{Path: "a", Kind: File, Content: m.Entries[0].Content, Size: 4}, m.Entries[1]}}
	shrunk := Manifest{Entries: []Entry{{Path: "a", Kind: File, Content: m.Entries[0].Content, Size: 2}, m.Entries[1]}}
	for name, test := range map[string]struct {
		stream []byte
		m      Manifest
		want   string
	}{
		"no zstd":            {[]byte("hello, this is no zstd at all"), m, "magic"},
		"a content too many": {stream, other, "is not in the tree"},
		"a larger size":      {stream, grown, "damaged on its way"},
		"a smaller size":     {stream, shrunk, "damaged on its way"},
	} {
		_, err := received(t.Context(), bytes.NewReader(test.stream), test.m)
		if fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	for cut := 1; cut < len(stream); cut++ {
		if _, err := received(t.Context(), bytes.NewReader(stream[:cut]), m); err == nil {
			t.Errorf("a stream cut to %d of %d bytes was accepted as complete", cut, len(stream))
		}
	}
	for at := range stream {
		damaged := bytes.Clone(stream)
		damaged[at] ^= 0x10
		got, err := received(t.Context(), bytes.NewReader(damaged), m)
		for content, data := range got {
			if content == otherContent && data != "abc" {
				t.Errorf("with byte %d wrong, content %q was accepted (%v)", at, data, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := received(ctx, bytes.NewReader(stream), m); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

// TestReadContentsOnce: a stream that repeats a content would never end.
func TestReadContentsOnce(t *testing.T) {
	dir, m, _ := sent(t, map[string]string{"a": "abc"})
	var out bytes.Buffer
	if err := WriteContents(t.Context(), &out, dir, m, []Digest{otherContent, otherContent}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := received(t.Context(), &out, m); fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), "or came before") {
		t.Errorf("got %v, want SyncFailed", err)
	}
}

// FuzzReadContents: each content arrives at most once, and only with its size and SHA-256, whatever a peer sends.
func FuzzReadContents(f *testing.F) {
	_, m, stream := sent(f, map[string]string{"a": "abc", "b": "", "c": strings.Repeat("0123456789abcdef", 100)})
	f.Add(stream)
	f.Add(stream[:len(stream)/2])
	f.Add([]byte("\x28\xb5\x2f\xfd"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		seen := map[Digest]bool{}
		err := ReadContents(t.Context(), bytes.NewReader(stream), m.Sizes(), nothingBegun, func(want Digest, r io.Reader) error {
			content, size, err := hashReader(t.Context(), r, m.Sizes()[want])
			if err == nil && (content != want || size != m.Sizes()[want] || seen[want]) {
				t.Errorf("content %s with %d bytes was accepted as %s", content, size, want)
			}
			seen[want] = true
			return err
		})
		if err != nil && fail.ReasonOf(err) != fail.SyncFailed {
			t.Errorf("reason %s: %v", fail.ReasonOf(err), err)
		}
	})
}

func TestWriteContentsOfChangedFile(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"other bytes": func(path string) error { return os.WriteFile(path, []byte("cba"), 0o600) },
		"shorter":     func(path string) error { return os.WriteFile(path, []byte("ab"), 0o600) },
		"gone":        os.Remove,
		"a link out": func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path))
		},
	} {
		large := strings.Repeat("0123456789abcdef", 200_000) // sent before the change is noticed
		dir, m, _ := sent(t, map[string]string{"first": large, "sub/a.py": "abc"})
		if err := change(filepath.Join(dir, "sub/a.py")); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := WriteContents(t.Context(), &out, dir, m, []Digest{m.Entries[0].Content, m.Entries[1].Content}, nil)
		if fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), "sub/a.py") {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := received(t.Context(), &out, m); err == nil {
			t.Errorf("%s: the stream was accepted as complete", name)
		}
	}
	dir, m, _ := sent(t, map[string]string{"a": "1"})
	if err := WriteContents(t.Context(), io.Discard, dir, m, []Digest{emptyContent}, nil); fail.ReasonOf(err) != fail.SyncFailed {
		t.Errorf("a content that no file has: %v", err)
	}
}

// TestContentsDoNotBlock: a FIFO that took the place of a file is an error, on each side.
func TestContentsDoNotBlock(t *testing.T) {
	dir, m, _ := sent(t, map[string]string{"a": "content"})
	fifo := filepath.Join(dir, "a")
	if err := errors.Join(os.Remove(fifo), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, use := range map[string]func() error{
		"sending": func() error {
			return WriteContents(t.Context(), io.Discard, dir, m, []Digest{m.Entries[0].Content}, nil)
		},
		"landing": func() error {
			to := t.TempDir()
			l, err := NewLanding(t.Context(), to, m)
			if err != nil {
				t.Error(err)
				return err
			}
			defer l.Close()
			if err := syscall.Mkfifo(filepath.Join(to, Partial+string(m.Entries[0].Content)), 0o600); err != nil {
				t.Error(err)
			}
			return l.Put(m.Entries[0].Content, strings.NewReader("content"))
		},
	} {
		const timeForAnError = time.Minute // in which only a call that blocks returns none
		ended := make(chan error, 1)
		go func() { ended <- use() }()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s succeeded", name)
			}
		case <-time.After(timeForAnError):
			t.Errorf("%s blocks", name)
		}
	}
}

// The file grows, like a log that a rank is writing.
func TestWriteContentsOfGrownFile(t *testing.T) {
	dir, m, _ := sent(t, map[string]string{"rank-0.log": "abc"})
	if err := os.WriteFile(filepath.Join(dir, "rank-0.log"), []byte("abcd"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := WriteContents(t.Context(), &out, dir, m, []Digest{m.Entries[0].Content}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := received(t.Context(), &out, m); err != nil {
		t.Error(err)
	}
}

func TestWriteContentsToNobody(t *testing.T) {
	dir, m, _ := sent(t, map[string]string{"a": "abc", "b": strings.Repeat("text", 1000)})
	r, w := io.Pipe()
	gone := errors.New("the other end is gone")
	r.CloseWithError(gone)
	if err := WriteContents(t.Context(), w, dir, m, []Digest{m.Entries[0].Content, m.Entries[1].Content}, nil); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkContents(b *testing.B) {
	dir := manyFiles(b)
	m, err := Scan(b.Context(), dir, nil)
	if err != nil {
		b.Fatal(err)
	}
	_, size := m.Totals()
	var all []Digest
	for _, e := range m.Entries {
		all = append(all, e.Content)
	}
	b.SetBytes(size)
	for b.Loop() {
		r, w := io.Pipe()
		go func() { w.CloseWithError(WriteContents(b.Context(), w, dir, m, all, nil)) }()
		if err := ReadContents(b.Context(), r, m.Sizes(), nothingBegun, func(Digest, io.Reader) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
