// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// FuzzParseIndex: writing an index that was read gives the same entries again.
func FuzzParseIndex(f *testing.F) {
	content := strings.Repeat("a", 64)
	f.Add(indexHeader + "boot\n" + content + " 3 1700000000000000000 42 100444 a/b c\n")
	f.Add(indexHeader + "\n" + content + " -1 0 18446744073709551615 7 \n")
	f.Add(indexHeader + "boot\n" + content + " x\n")
	f.Fuzz(func(t *testing.T, text string) {
		first, err := parseIndex(text)
		if err != nil {
			return
		}
		second, err := parseIndex(string(first.encode()))
		if err != nil || !reflect.DeepEqual(first, second) {
			t.Fatalf("written and read again: %+v, %v; want %+v", second, err, first)
		}
	})
}

// FuzzManifest: every path of an accepted manifest stays in the tree, and the manifest is the same after it was saved and
// read.
func FuzzManifest(f *testing.F) {
	_, m := newSource(f, files{"train.py": "print(1)", "link": "->train.py", "empty/": "", "run.sh*": "x"})
	seed, err := json.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"entries":[{"path":"../x","kind":"file"}]}`))
	f.Add([]byte(`{"entries":[{"path":"a","kind":"link","target":"/etc"}]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		var m tree.Manifest
		if json.Unmarshal(content, &m) != nil || checkManifest(m, m.Hash()) != nil {
			return
		}
		n, err := nameManifest(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append(n.names, n.folders...) {
			if !filepath.IsLocal(name) {
				t.Fatalf("%q is accepted", name)
			}
		}
		w := newWorkspace(t)
		if err := w.replaceJSON(m.Hash(), manifestSuffix, m); err != nil {
			t.Fatal(err)
		}
		if again, err := w.manifest(m.Hash()); err != nil || again.Hash() != m.Hash() {
			t.Fatalf("saved and read again: %s, %v; want %s", again.Hash(), err, m.Hash())
		}
	})
}

// FuzzReceive sends any stream for a tree. Either it is refused and leaves no stage, or the tree is exactly the planned
// one.
func FuzzReceive(f *testing.F) {
	want := files{"a": "first", "b/c": "second", "b/d*": "first"}
	dir, m := newSource(f, want)
	var whole bytes.Buffer
	_, missing, err := newWorkspace(f).Plan(m, m.Hash())
	if err != nil {
		f.Fatal(err)
	}
	if err := tree.WriteContents(f.Context(), &whole, dir, m, missing, nil); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add(whole.Bytes()[:whole.Len()/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		w := newWorkspace(t)
		hash := m.Hash()
		if _, _, err := w.Plan(m, hash); err != nil {
			t.Fatal(err)
		}
		if err := w.Receive(t.Context(), hash, 0, bytes.NewReader(body)); err == nil {
			w.wantTree(t, hash, want)
		} else if _, err := w.Path(hash); err == nil {
			t.Error("a tree that was refused has its name")
		}
		if stages, err := os.ReadDir(filepath.Join(w.root, stagingFolder)); err != nil || len(stages) > 0 {
			t.Errorf("stages %v, %v; want none", stages, err)
		}
	})
}

// A tree can be synced, made current and collected, whatever programs put in place of the store's own files.
func TestForeignFilesInTheStore(t *testing.T) {
	w := newWorkspace(t)
	old := w.synced(t, files{"a": "1"})
	for _, suffix := range []string{manifestSuffix, indexSuffix, metaSuffix} {
		path := w.sibling(old, suffix)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(path, 0o664); err != nil {
			t.Fatal(err)
		}
	}
	if venv := w.Venv(old); venv != "" {
		t.Errorf("venv %q of a FIFO", venv)
	}
	w.synced(t, files{"a": "1", "b": "2"})
	if hash := w.synced(t, files{"a": "1"}); hash != old {
		t.Errorf("tree %s, want %s again", hash, old)
	}
	w.wantTree(t, old, files{"a": "1"})
	if err := syscall.Mkfifo(filepath.Join(w.root, strings.Repeat("c", 64)+indexSuffix), 0o664); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Collect(0, func(tree.Digest) bool { return false }); err != nil {
		t.Errorf("collecting: %v", err)
	}
}
