// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

var all = files{
	"train.py":             "import torch",
	"run.sh*":              "#!/bin/sh",
	"copy of run.sh":       "#!/bin/sh",
	"pkg/__init__.py":      "",
	"pkg/sub/__init__.py":  "",
	"pkg/sub/deep/mod.py":  "x = 1",
	"data/latest":          "->../pkg/sub",
	"empty/inner/":         "",
	"odd \n\xff%41":        "odd",
	"large":                strings.Repeat("0123456789abcdef", 1<<16),
	"another of that kind": strings.Repeat("0123456789abcdef", 1<<16),
}

func TestReceive(t *testing.T) {
	old := syscall.Umask(0o077) // whatever the umask is
	defer syscall.Umask(old)
	w := newWorkspace(t)
	dir, m := newSource(t, all)
	hash := m.Hash()
	if _, err := w.Path(hash); fail.ReasonOf(err) != fail.SyncFailed {
		t.Errorf("path before: %v", err)
	}
	present, missing, err := w.Plan(m, hash)
	if err != nil || present || len(missing) != 6 {
		t.Fatalf("plan: %v, %d missing, %v", present, len(missing), err)
	}
	err = w.Receive(t.Context(), hash, 0, stream(t, dir, m, missing))
	if err != nil {
		t.Fatal(err)
	}
	w.wantTree(t, hash, all)
	w.wantRoot(t, 1)
	if got := scan(t, w.treeDir(hash)).Hash(); got != hash {
		t.Errorf("the received tree has hash %s", got)
	}
	if count, size := m.Totals(); count != 9 || size != 2<<20+38 {
		t.Errorf("totals: %d files, %d bytes", count, size)
	}
	if present, missing, err := w.Plan(m, hash); !present || len(missing) != 0 || err != nil {
		t.Errorf("plan again: %v, %v, %v", present, missing, err)
	}
	err = filepath.WalkDir(w.treeDir(hash), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		want := fs.FileMode(0o444)
		switch {
		case e.IsDir():
			want = fs.ModeDir | folderMode
		case e.Type() != 0:
			return err
		case e.Name() == "run.sh":
			want = 0o555
		}
		if err == nil && info.Mode() != want {
			t.Errorf("%s has mode %s, want %s", path, info.Mode(), want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestReceiveOfNothing(t *testing.T) {
	w := newWorkspace(t)
	hash := w.synced(t, files{})
	w.wantTree(t, hash, files{})
	w.wantRoot(t, 1, metaSuffix)
}

func TestResync(t *testing.T) {
	w := newWorkspace(t)
	first := w.synced(t, files{"a": "1", "b": "2", "c*": "3", "d/e": "4", "l": "->a"})
	dir, m := newSource(t, files{"a": "1", "b": "new", "moved*": "3", "d/plain": "3", "l": "->b"})
	second, sent := receive(t, w.Store, dir, m)
	if sent != 1 {
		t.Errorf("%d contents were sent, want only the changed one", sent)
	}
	w.wantTree(t, first, files{"a": "1", "b": "2", "c*": "3", "d/e": "4", "l": "->a"})
	w.wantTree(t, second, files{"a": "1", "b": "new", "moved*": "3", "d/plain": "3", "l": "->b"})
	for was, is := range map[string]string{"a": "a", "c": "moved"} {
		old, oldErr := os.Stat(filepath.Join(w.treeDir(first), was))
		now, nowErr := os.Stat(filepath.Join(w.treeDir(second), is))
		if oldErr != nil || nowErr != nil || !os.SameFile(old, now) {
			t.Errorf("%s and %s do not share a file", was, is)
		}
	}
}

// The bytes of an earlier tree's file are used only if they are right, whatever happened to the file.
func TestReuseTrustsNothing(t *testing.T) {
	const content = "the right content"
	for name, test := range map[string]struct {
		change func(path string) error
		reused bool
	}{
		"nothing":              {func(string) error { return nil }, true},
		"touched":              {func(path string) error { return os.Chtimes(path, t1, t1) }, true},
		"made writable":        {func(path string) error { return os.Chmod(path, 0o644) }, true},
		"replaced by the same": {func(path string) error { return replaceFile(path, content) }, true},
		"removed":              {os.Remove, false},
		"overwritten in place": {func(path string) error {
			return errors.Join(os.Chmod(path, 0o644), os.WriteFile(path, []byte("the wrong content"), 0o600))
		}, false},
		"overwritten, its time set back": {func(path string) error {
			before, err := os.Stat(path)
			if err != nil {
				return err
			}
			return errors.Join(os.Chmod(path, 0o644), replaceFile(path, "the wrong content"), os.Chtimes(path, before.ModTime(), before.ModTime()))
		}, false},
		"replaced":           {func(path string) error { return replaceFile(path, "the wrong content") }, false},
		"a link to the same": {func(path string) error { return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path)) }, false},
		"a folder":           {func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t)
			first := w.synced(t, files{"sub/file": content})
			if err := test.change(filepath.Join(w.treeDir(first), "sub/file")); err != nil {
				t.Fatal(err)
			}
			dir, m := newSource(t, files{"sub/file": content, "other": "x"})
			second, sent := receive(t, w.Store, dir, m)
			w.wantTree(t, second, files{"sub/file": content, "other": "x"})
			if reused := sent == 1; reused != test.reused {
				t.Errorf("%d contents were sent", sent)
			}
			if info, err := os.Stat(filepath.Join(w.treeDir(second), "sub/file")); err != nil || info.Mode() != 0o444 {
				t.Errorf("file has mode %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestNothingIsTrustedAfterReboot(t *testing.T) {
	w := newWorkspace(t)
	dir, m := newSource(t, files{"lost": "written but lost", "there": "x"})
	hash, _ := receive(t, w.Store, dir, m)
	path := filepath.Join(w.treeDir(hash), "lost")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{ // the state of the file if its pages had not been written
		os.Chmod(path, 0o644), os.WriteFile(path, make([]byte, info.Size()), 0o600), os.Chmod(path, 0o444),
		os.Chtimes(path, info.ModTime(), info.ModTime()),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if present, _, err := w.Plan(m, hash); !present || err != nil {
		t.Fatalf("the test proves nothing, because the stamp differs: %v, %v", present, err)
	}
	after := workspace{Store: open(t, w.dir), dir: w.dir}
	after.boot = "another"
	if hash, sent := receive(t, after.Store, dir, m); sent != 1 {
		t.Errorf("%d contents were sent for %s, want the lost one", sent, hash)
	}
	after.wantTree(t, hash, files{"lost": "written but lost", "there": "x"})
	// A file that was read once is recognised from now on.
	if x := after.index(hash, indexSuffix); x.boot != "another" {
		t.Errorf("index is of boot %q", x.boot)
	}
}

// A file that was read shortly after a change may have changed again within the same time stamp, so it is read again.
func TestUnsettledSourceIsRead(t *testing.T) {
	w := newWorkspace(t)
	first := w.synced(t, files{"file": "the right content"})
	known := w.index(first, indexSuffix)
	known.records[0].stamp.modified = 0
	path := filepath.Join(w.treeDir(first), "file")
	for _, err := range []error{
		w.replace(w.sibling(first, indexSuffix), known.encode()),
		os.Chmod(path, 0o644), os.WriteFile(path, []byte("the wrong content"), 0o600), os.Chmod(path, 0o444), // the same size, inode and mode
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, m := newSource(t, files{"file": "the right content", "other": "x"})
	second, _ := receive(t, w.Store, dir, m)
	w.wantTree(t, second, files{"file": "the right content", "other": "x"})
}

func TestMend(t *testing.T) {
	w := newWorkspace(t)
	content := files{"kept": "1", "edited": "2", "dir/removed": "3", "dir/x": "4", "linked": "->kept", "linkdir/y": "5", "z": "6", "void/": ""}
	dir, m := newSource(t, content)
	hash, _ := receive(t, w.Store, dir, m)
	top := w.treeDir(hash)
	elsewhere := t.TempDir()
	for _, err := range []error{
		replaceFile(filepath.Join(top, "edited"), "by a program"),
		os.Remove(filepath.Join(top, "dir/removed")),
		os.Remove(filepath.Join(top, "linked")), os.WriteFile(filepath.Join(top, "linked"), []byte("file"), 0o600),
		os.Rename(filepath.Join(top, "linkdir"), filepath.Join(elsewhere, "moved")),
		os.Symlink(filepath.Join(elsewhere, "moved"), filepath.Join(top, "linkdir")),
		os.Remove(filepath.Join(top, "z")), os.MkdirAll(filepath.Join(top, "z/sub"), 0o755),
		os.WriteFile(filepath.Join(top, "z/sub/f"), []byte("deep"), 0o600),
		os.Remove(filepath.Join(top, "void")),
		os.WriteFile(filepath.Join(top, "dir/checkpoint"), []byte("precious"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	present, missing, err := w.Plan(m, hash)
	if present || err != nil {
		t.Fatalf("plan: %v, %v", present, err)
	}
	if err := w.Receive(t.Context(), hash, 0, stream(t, dir, m, missing)); err != nil {
		t.Fatal(err)
	}
	want := files{"dir/checkpoint": "precious"}
	for name, text := range content {
		want[name] = text
	}
	w.wantTree(t, hash, want)
	away, err := filepath.Glob(top + changedInfix + "*")
	if err != nil || len(away) != 1 {
		t.Fatalf("moved away: %v, %v", away, err)
	}
	wantAway := files{"edited": "by a program", "linked": "file", "linkdir": "->" + filepath.Join(elsewhere, "moved"), "z/sub/f": "deep"}
	if diff := cmp.Diff(wantAway, reads(t, away[0])); diff != "" {
		t.Errorf("moved away (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(files{"moved/y": "5"}, reads(t, elsewhere)); diff != "" {
		t.Errorf("elsewhere (-want +got):\n%s", diff)
	}
	if present, _, err := w.Plan(m, hash); !present || err != nil {
		t.Errorf("plan after: %v, %v", present, err)
	}
}

func TestMendOfLink(t *testing.T) {
	w := newWorkspace(t)
	dir, m := newSource(t, files{"a": "1", "l": "->a"})
	hash, _ := receive(t, w.Store, dir, m)
	if err := os.Remove(filepath.Join(w.treeDir(hash), "l")); err != nil {
		t.Fatal(err)
	}
	receive(t, w.Store, dir, m)
	w.wantTree(t, hash, files{"a": "1", "l": "->a"})
}

// A tree whose index was not written is complete all the same, and gets an index.
func TestIndexIsLost(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"gone":    os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"garbage": func(path string) error { return os.WriteFile(path, []byte(indexHeader+"x\ngarbage\n"), 0o600) },
	} {
		w := newWorkspace(t)
		dir, m := newSource(t, all)
		hash, _ := receive(t, w.Store, dir, m)
		if err := lose(w.sibling(hash, indexSuffix)); err != nil {
			t.Fatal(err)
		}
		if present, _, err := w.Plan(m, hash); !present || err != nil {
			t.Errorf("%s: %v, %v", name, present, err)
		}
		w.wantTree(t, hash, all)
	}
}

func TestReceiveRefuses(t *testing.T) {
	w := newWorkspace(t)
	dir, m := newSource(t, files{"a": "one", "b": "two", "c": "three"})
	hash := m.Hash()
	if err := w.Receive(t.Context(), hash, 0, bytes.NewReader(nil)); fail.ReasonOf(err) != fail.SyncFailed ||
		!strings.Contains(err.Error(), "not planned") {
		t.Errorf("before the plan: %v", err)
	}
	_, missing, err := w.Plan(m, hash)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := io.ReadAll(stream(t, dir, m, missing))
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]io.Reader{
		"nothing":           bytes.NewReader(nil),
		"one content less":  stream(t, dir, m, missing[1:]),
		"garbage":           strings.NewReader("garbage that is no zstd"),
		"cut off":           bytes.NewReader(whole[:len(whole)-4]),
		"a broken transfer": io.MultiReader(bytes.NewReader(whole[:40]), brokenReader{}),
	} {
		err := w.Receive(t.Context(), hash, 0, body)
		if fail.ReasonOf(err) != fail.SyncFailed {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := w.Path(hash); err == nil {
			t.Errorf("%s: a tree was created", name)
		}
	}
	for _, from := range []int64{-1, 1, 3, 4, 1 << 40} {
		if err := w.Receive(t.Context(), hash, from, bytes.NewReader(whole)); fail.ReasonOf(err) != fail.SyncFailed {
			t.Errorf("from byte %d, which the node does not have: got %v", from, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Receive(ctx, hash, 0, bytes.NewReader(whole)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	receive(t, w.Store, dir, m)
	w.wantTree(t, hash, files{"a": "one", "b": "two", "c": "three"})
	w.wantRoot(t, 1)
}

func TestPlanRefuses(t *testing.T) {
	w := newWorkspace(t)
	_, m := newSource(t, files{"a": "one"})
	hostile := tree.Manifest{Entries: []tree.Entry{{Path: "../../x", Kind: tree.File, Content: m.Entries[0].Content}}}
	for name, test := range map[string]struct {
		m    tree.Manifest
		hash tree.Digest
		want fail.Reason
	}{
		"a path up":         {hostile, hostile.Hash(), fail.UnsafeTree},
		"another hash":      {m, hostile.Hash(), fail.SyncFailed},
		"a hash as a path":  {m, "../../../x", fail.SyncFailed},
		"no hash":           {m, "", fail.SyncFailed},
		"an absolute link":  linkTo("/etc"),
		"a link out of all": linkTo("../x"),
	} {
		if _, _, err := w.Plan(test.m, test.hash); fail.ReasonOf(err) != test.want {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
	w.wantRoot(t, 0)
}

func linkTo(target string) struct {
	m    tree.Manifest
	hash tree.Digest
	want fail.Reason
} {
	m := tree.Manifest{Entries: []tree.Entry{{Path: "l", Kind: tree.Link, Target: target}}}
	return struct {
		m    tree.Manifest
		hash tree.Digest
		want fail.Reason
	}{m, m.Hash(), fail.UnsafeTree}
}

// A transfer that breaks at any byte leaves no tree, and the next one sends less.
func TestInterruptedTransfer(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	noise := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return string(b)
	}
	content := files{"a": noise(1000), "b": noise(300_000), "c*": noise(2000), "d": noise(700_000), "e": "", "f": noise(100)}
	dir, m := newSource(t, content)
	hash := m.Hash()
	for _, size := range []int{10, 1200, 200_000, 303_000, 700_000, 1_003_000} {
		w := newWorkspace(t)
		_, missing, err := w.Plan(m, hash)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := io.ReadAll(stream(t, dir, m, missing))
		if err != nil {
			t.Fatal(err)
		}
		body := io.MultiReader(bytes.NewReader(whole[:size]), brokenReader{})
		if err := w.Receive(t.Context(), hash, 0, body); !errors.Is(err, errBroken) {
			t.Fatalf("broken at byte %d: %v", size, err)
		}
		if _, err := w.Path(hash); err == nil {
			t.Errorf("broken at byte %d: a tree was created", size)
		}
		again := workspace{Store: open(t, w.dir), dir: w.dir} // as after a restart
		_, rest, err := again.Plan(m, hash)
		if err != nil {
			t.Fatal(err)
		}
		sizes, left := m.Sizes(), int64(0)
		for _, content := range rest {
			left += sizes[content]
		}
		// Everything that arrived is kept, except the content in progress and what zstd had not yet returned.
		const bytesOfAContent, bytesInZstd, bytesUntilOneIsKept = 700_000, 300_000, 600_000
		if left > int64(len(whole)-size+bytesOfAContent+bytesInZstd) || size > bytesUntilOneIsKept && len(rest) >= len(missing) {
			t.Errorf("broken at byte %d of %d: %d bytes to send again", size, len(whole), left)
		}
		if err := again.Receive(t.Context(), hash, 0, stream(t, dir, m, rest)); err != nil {
			t.Fatal(err)
		}
		again.wantTree(t, hash, content)
		again.wantRoot(t, 1)
	}
}

// interrupted breaks the transfer of a file of 1 MB in its middle. It returns what follows from byte begun.
func interrupted(t *testing.T, w workspace) (dir string, m tree.Manifest, begun int64, rest func() io.Reader) {
	t.Helper()
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	dir, m = newSource(t, files{"a": "one", "m*": string(noise)})
	_, missing, err := w.Plan(m, m.Hash())
	if err != nil {
		t.Fatal(err)
	}
	const bytesThatPass, bytesThatAreKept = 700_000, 300_000
	body := io.MultiReader(io.LimitReader(stream(t, dir, m, missing), bytesThatPass), brokenReader{})
	if err := w.Receive(t.Context(), m.Hash(), 0, body); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	_, missing, err = w.Plan(m, m.Hash())
	if begun = w.PartialSize(missing); err != nil || len(missing) != 1 || begun < bytesThatAreKept {
		t.Fatalf("%d contents are missing, of the first %d bytes are here, %v", len(missing), begun, err)
	}
	return dir, m, begun, func() io.Reader {
		var out bytes.Buffer
		if err := tree.WriteContents(t.Context(), &out, dir, m, missing, map[tree.Digest]int64{missing[0]: begun}); err != nil {
			t.Error(err)
		}
		return &out
	}
}

// Of several transfers one continues a part. The others do not write to its file.
func TestPartIsContinuedOnce(t *testing.T) {
	w := newWorkspace(t)
	dir, m, begun, rest := interrupted(t, w)
	var done atomic.Int32
	var clients sync.WaitGroup
	for range 4 {
		agent := open(t, w.dir)
		body := rest()
		clients.Go(func() {
			if err := agent.Receive(t.Context(), m.Hash(), begun, body); err == nil {
				done.Add(1)
			} else if fail.ReasonOf(err) != fail.SyncFailed {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	if done.Load() == 0 {
		t.Error("no transfer continued the part")
	}
	w.wantTree(t, m.Hash(), reads(t, dir))
	w.wantRoot(t, 1)
}

// A file of another kind in the place of a part is not written to, and the next transfer begins at the first byte.
func TestWhatIsNoPartIsNotContinued(t *testing.T) {
	for name, put := range map[string]func(path, other string) error{
		"a file that a tree may have, too": func(path, other string) error { return os.Link(other, path) },
		"a link":                           func(path, other string) error { return os.Symlink(other, path) },
		"nothing":                          func(string, string) error { return nil },
		"a pipe":                           func(path, _ string) error { return syscall.Mkfifo(path, 0o644) },
		"fewer bytes":                      func(path, _ string) error { return os.WriteFile(path, []byte("x"), 0o644) },
	} {
		w := newWorkspace(t)
		dir, m, begun, rest := interrupted(t, w)
		content := m.Entries[1].Content
		other := filepath.Join(w.dir, "other")
		whole := bytes.Repeat([]byte("x"), 1<<20)
		if err := errors.Join(os.WriteFile(other, whole, 0o644), os.Remove(w.partialPath(content))); err != nil {
			t.Fatal(err)
		}
		if err := put(w.partialPath(content), other); err != nil {
			t.Fatal(err)
		}
		if err := w.Receive(t.Context(), m.Hash(), begun, rest()); fail.ReasonOf(err) != fail.SyncFailed {
			t.Errorf("%s: got %v, want SyncFailed", name, err)
		}
		if got, err := os.ReadFile(other); err != nil || !bytes.Equal(got, whole) {
			t.Errorf("%s: another file has %d bytes now, %v", name, len(got), err)
		}
		if _, missing, err := w.Plan(m, m.Hash()); err != nil || w.PartialSize(missing) != 0 {
			t.Errorf("%s: byte %d is next, %v", name, w.PartialSize(missing), err)
		}
		receive(t, w.Store, dir, m)
		w.wantTree(t, m.Hash(), reads(t, dir))
		w.wantRoot(t, 1)
	}
}

// A tree that is complete keeps none of its contents twice, and leaves those of other transfers.
func TestKeptContentsOfOthersStay(t *testing.T) {
	w := newWorkspace(t)
	dir, m := newSource(t, files{"a": "one", "b": "two"})
	_, missing, err := w.Plan(m, m.Hash())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Receive(t.Context(), m.Hash(), 0, stream(t, dir, m, missing[:1])); err == nil {
		t.Fatal("Receive accepted a tree with half of its contents")
	}
	other := tree.Digest(strings.Repeat("0", len(missing[0])))
	if err := os.WriteFile(w.partialPath(other), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	receive(t, w.Store, dir, m)
	left, err := os.ReadDir(filepath.Join(w.root, keptFolder))
	if err != nil || len(left) != 1 || left[0].Name() != string(other) {
		t.Errorf("kept are %v, %v; want %s", left, err, other)
	}
}

// A kept content that was damaged afterwards is not used.
func TestKeptContentsAreRead(t *testing.T) {
	w := newWorkspace(t)
	dir, m := newSource(t, files{"a": "one", "b": "two"})
	hash := m.Hash()
	_, missing, err := w.Plan(m, hash)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Receive(t.Context(), hash, 0, stream(t, dir, m, missing[:1])); err == nil {
		t.Fatal("Receive accepted a tree with half of its contents")
	}
	if err := replaceFile(w.partialPath(missing[0]), "eno"); err != nil {
		t.Fatal(err)
	}
	if _, again, err := w.Plan(m, hash); err != nil || len(again) != 2 {
		t.Errorf("plan: %d missing, %v", len(again), err)
	}
	receive(t, w.Store, dir, m)
	w.wantTree(t, hash, files{"a": "one", "b": "two"})
}

// A file that vanishes or changes between plan and transfer fails the transfer.
func TestSourceChangesAfterPlan(t *testing.T) {
	w := newWorkspace(t)
	first := w.synced(t, files{"a": "one", "b": "two"})
	dir, m := newSource(t, files{"a": "one", "b": "two", "c": "three"})
	hash := m.Hash()
	_, missing, err := w.Plan(m, hash)
	if err != nil || len(missing) != 1 {
		t.Fatalf("%v, %v", missing, err)
	}
	if err := replaceFile(filepath.Join(w.treeDir(first), "b"), "owt"); err != nil {
		t.Fatal(err)
	}
	err = w.Receive(t.Context(), hash, 0, stream(t, dir, m, missing))
	if fail.ReasonOf(err) != fail.SyncFailed || !strings.Contains(err.Error(), "plan again") {
		t.Fatalf("got %v", err)
	}
	if _, sent := receive(t, w.Store, dir, m); sent != 1 {
		t.Errorf("%d contents were sent, want the one that changed", sent)
	}
	w.wantTree(t, hash, files{"a": "one", "b": "two", "c": "three"})
}

// Agents on several nodes, each with several clients, receive one tree at the same time.
func TestConcurrentReceive(t *testing.T) {
	w := newWorkspace(t)
	w.synced(t, files{"train.py": "import torch", "old": "1"})
	dir, m := newSource(t, all)
	hash := m.Hash()
	var clients sync.WaitGroup
	var done atomic.Int32
	for range 3 {
		agent := open(t, w.dir)
		for range 4 {
			clients.Go(func() {
				for !received(t, agent, dir, m) {
					runtime.Gosched() // another client took what the plan relied on: plan again
				}
				if err := agent.Switch(hash, "/workspace/venv"); err != nil {
					t.Error(err)
				}
				done.Add(1)
			})
		}
	}
	clients.Wait()
	if done.Load() != 12 {
		t.Errorf("%d clients of 12 were served", done.Load())
	}
	w.wantTree(t, hash, all)
	w.wantRoot(t, 2, metaSuffix, metaSuffix)
	if current, venv := w.Current(); current != hash || venv != "/workspace/venv" {
		t.Errorf("current is %s with %s", current, venv)
	}
	if present, _, err := w.Plan(m, hash); !present || err != nil {
		t.Errorf("plan after: %v, %v", present, err)
	}
}

func received(t *testing.T, s *Store, dir string, m tree.Manifest) bool {
	present, missing, err := s.Plan(m, m.Hash())
	if err != nil {
		t.Error(err)
	}
	if present || err != nil {
		return true
	}
	err = s.Receive(t.Context(), m.Hash(), 0, stream(t, dir, m, missing))
	if err != nil && !strings.Contains(err.Error(), "plan again") {
		t.Error(err)
		return true
	}
	return err == nil
}

// If files cannot be shared they are copied.
func TestCopiesWhereLinksCannotBe(t *testing.T) {
	w := newWorkspace(t)
	first := w.synced(t, files{"a*": "one"})
	if err := os.Chmod(filepath.Join(w.treeDir(first), "a"), 0o775); err != nil {
		t.Fatal(err)
	}
	dir, m := newSource(t, files{"b": "one", "c*": "one", "d": "two", "e*": "two"})
	hash, sent := receive(t, w.Store, dir, m)
	if sent != 1 {
		t.Errorf("%d contents were sent", sent)
	}
	w.wantTree(t, hash, files{"b": "one", "c*": "one", "d": "two", "e*": "two"})
	if present, _, err := w.Plan(m, hash); !present || err != nil {
		t.Errorf("plan after: %v, %v", present, err)
	}
}

func TestLargeFilesNeedLittleMemory(t *testing.T) {
	w := newWorkspace(t)
	dir := t.TempDir()
	for i := range 2 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(f, "%d", i)
		if err := errors.Join(err, f.Truncate(48<<20), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	m := scan(t, dir)
	_, missing, err := w.Plan(m, m.Hash())
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, pipe := io.Pipe()
	go func() { pipe.CloseWithError(tree.WriteContents(t.Context(), pipe, dir, m, missing, nil)) }()
	if err := w.Receive(t.Context(), m.Hash(), 0, r); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	// TotalAlloc counts all allocations of both ends; less than that was in use at any time.
	const memoryOfATransfer = 24 << 20
	if used := after.TotalAlloc - before.TotalAlloc; used > memoryOfATransfer {
		t.Errorf("%d MiB were allocated for 96 MiB", used>>20)
	}
}

var errBroken = errors.New("connection reset")

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }
