// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

func nobody(tree.Digest) bool { return false }

// age makes a tree older than all trees used since then.
func (w workspace) age(t *testing.T, hash tree.Digest, age time.Duration) {
	t.Helper()
	at := time.Now().Add(-age)
	for _, suffix := range []string{indexSuffix, metaSuffix} {
		if err := os.Chtimes(w.sibling(hash, suffix), at, at); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCollect(t *testing.T) {
	for name, test := range map[string]struct {
		keep    int
		current int
		pinned  []int
		removed []int
	}{
		"fewer than kept":       {keep: 5, current: 3},
		"the oldest":            {keep: 2, current: 3, removed: []int{1, 0}},
		"all but the current":   {keep: 0, current: 3, removed: []int{2, 1, 0}},
		"not the current":       {keep: 1, current: 0, removed: []int{2, 1}},
		"not one that is used":  {keep: 1, current: 3, pinned: []int{1}, removed: []int{2, 0}},
		"a number that is none": {keep: -1, current: 3, removed: []int{2, 1, 0}},
	} {
		w := newWorkspace(t)
		var trees []tree.Digest
		for i, text := range []string{"0", "1", "2", "3"} {
			trees = append(trees, w.synced(t, files{"a": text, "d/same": "same", "l": "->a", "e/f/": ""}))
			w.age(t, trees[i], time.Duration(10-i)*time.Hour)
		}
		times, err := os.Stat(w.sibling(trees[test.current], metaSuffix))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Switch(trees[test.current], ""); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(w.sibling(trees[test.current], metaSuffix), times.ModTime(), times.ModTime()); err != nil {
			t.Fatal(err)
		}
		removed, err := w.Collect(test.keep, func(hash tree.Digest) bool {
			return slices.Contains(test.pinned, slices.Index(trees, hash))
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, hash := range removed {
			got = append(got, slices.Index(trees, hash))
		}
		if diff := cmp.Diff(test.removed, got); diff != "" {
			t.Errorf("%s: removed (-want +got):\n%s", name, diff)
		}
		left := 4 - len(removed)
		w.wantRoot(t, left, slices.Repeat([]string{metaSuffix}, left)...)
		for i, hash := range trees {
			if !slices.Contains(test.removed, i) {
				w.wantTree(t, hash, files{"a": string("0123"[i]), "d/same": "same", "l": "->a", "e/f/": ""})
			}
		}
	}
}

func TestCollectLeavesWhatProgramsWrote(t *testing.T) {
	w := newWorkspace(t)
	content := files{
		"train.py": "import torch", "edited.json": "{}", "touched": "1", "pkg/mod.py": "x", "pkg/sub/y.py": "y", "moved/z": "z",
		"l": "->train.py", "relinked": "->train.py", "gone": "1", "empty/": "",
	}
	dir, m := newSource(t, content)
	hash, _ := receive(t, w.Store, dir, m)
	top := w.treeDir(hash)
	elsewhere := t.TempDir()
	for _, err := range []error{
		replaceFile(filepath.Join(top, "edited.json"), `{"lr": 1}`),
		os.Chtimes(filepath.Join(top, "touched"), t1, t1),
		os.Remove(filepath.Join(top, "gone")),
		os.Mkdir(filepath.Join(top, "pkg/__pycache__"), 0o755),
		os.WriteFile(filepath.Join(top, "pkg/__pycache__/mod.pyc"), []byte("pyc"), 0o600),
		os.MkdirAll(filepath.Join(top, "checkpoints/step-10"), 0o755),
		os.WriteFile(filepath.Join(top, "checkpoints/step-10/model"), []byte("weights"), 0o600),
		os.MkdirAll(filepath.Join(top, "runs/later"), 0o755),
		os.Remove(filepath.Join(top, "relinked")), os.Symlink("edited.json", filepath.Join(top, "relinked")),
		// The folder was moved to other storage, and a link leads to it.
		os.Rename(filepath.Join(top, "moved"), filepath.Join(elsewhere, "moved")),
		os.Symlink(filepath.Join(elsewhere, "moved"), filepath.Join(top, "moved")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	removed, err := w.Collect(0, nobody)
	if err != nil || len(removed) != 1 {
		t.Fatalf("removed %v, %v", removed, err)
	}
	want := files{
		"edited.json": `{"lr": 1}`, "pkg/__pycache__/mod.pyc": "pyc", "checkpoints/step-10/model": "weights", "runs/later/": "",
		"relinked": "->edited.json", "moved": "->" + filepath.Join(elsewhere, "moved"),
	}
	if diff := cmp.Diff(want, reads(t, top)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(files{"moved/z": "z"}, reads(t, elsewhere)); diff != "" {
		t.Errorf("elsewhere (-want +got):\n%s", diff)
	}
	if _, err := w.Path(hash); err == nil {
		t.Error("the remains count as a tree")
	}
	// Collect does not touch the remains again, and a later sync can restore the tree around them.
	if removed, err := w.Collect(0, nobody); err != nil || len(removed) != 0 {
		t.Errorf("again: %v, %v", removed, err)
	}
	receive(t, w.Store, dir, m)
	got := reads(t, top)
	for name, text := range content {
		if got[name] != text {
			t.Errorf("after the tree came back, %s is %q, want %q", name, got[name], text)
		}
	}
	if got["checkpoints/step-10/model"] != "weights" {
		t.Error("the checkpoint is gone")
	}
}

// The next collection finishes a removal that broke off, unless the tree was sent again.
func TestCollectAfterCrash(t *testing.T) {
	w := newWorkspace(t)
	dir, m := newSource(t, files{"a": "1", "b": "2"})
	hash, _ := receive(t, w.Store, dir, m)
	crash := func() {
		t.Helper()
		err := errors.Join(os.Rename(w.sibling(hash, indexSuffix), w.sibling(hash, removingSuffix)),
			os.Remove(filepath.Join(w.treeDir(hash), "a")))
		if err != nil {
			t.Fatal(err)
		}
	}
	crash()
	if _, sent := receive(t, w.Store, dir, m); sent != 2 {
		t.Errorf("%d contents were sent", sent)
	}
	if _, err := w.Collect(1, nobody); err != nil {
		t.Fatal(err)
	}
	w.wantTree(t, hash, files{"a": "1", "b": "2"})
	crash()
	if _, err := w.Collect(1, nobody); err != nil {
		t.Fatal(err)
	}
	w.wantRoot(t, 0)
}

func TestCollectDropsScraps(t *testing.T) {
	w := newWorkspace(t)
	kept := w.synced(t, files{"a": "1"})
	dir, m := newSource(t, files{"b": "2", "c": "3"})
	_, missing, err := w.Plan(m, m.Hash())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Receive(t.Context(), m.Hash(), 0, stream(t, dir, m, missing[:1])); err == nil {
		t.Fatal("Receive accepted a tree with half of its contents")
	}
	n, err := nameManifest(m)
	if err != nil {
		t.Fatal(err)
	}
	left, err := w.newStage(n) // left by an agent that was killed
	if err != nil {
		t.Fatal(err)
	}
	scraps := []string{left.dir, w.partialPath(missing[0]), w.sibling(m.Hash(), manifestSuffix)}
	if _, err := w.Collect(1, nobody); err != nil {
		t.Fatal(err)
	}
	for _, path := range scraps {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("a new scrap is gone: %v", err)
		}
		if err := os.Chtimes(path, t1, t1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Collect(1, nobody); err != nil {
		t.Fatal(err)
	}
	w.wantRoot(t, 1, metaSuffix)
	w.wantTree(t, kept, files{"a": "1"})
}

// One agent collects as much as it may while others receive trees and switch to them.
func TestCollectWhileReceiving(t *testing.T) {
	w := newWorkspace(t)
	var clients sync.WaitGroup
	stop := make(chan struct{})
	for _, text := range []string{"one", "two"} {
		agent := open(t, w.dir)
		content := files{"a": text, "d/same": "same", "l": "->a"}
		dir, m := newSource(t, content)
		clients.Go(func() {
			for range 30 {
				for !received(t, agent, dir, m) {
					runtime.Gosched() // files it planned with were removed: plan again
				}
				// Switch fails if the tree is gone again, and never switches to an incomplete tree.
				_ = agent.Switch(m.Hash(), "")
			}
		})
	}
	collected := make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				collected <- nil
				return
			default:
			}
			if _, err := w.Collect(0, nobody); err != nil {
				collected <- err
				return
			}
		}
	}()
	clients.Wait()
	close(stop)
	if err := <-collected; err != nil {
		t.Fatal(err)
	}
	hash, _ := w.Current()
	got := reads(t, w.treeDir(hash))
	if text := got["a"]; text != "one" && text != "two" || got["d/same"] != "same" || got["l"] != "->a" {
		t.Errorf("the current tree is %v", got)
	}
}
