// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// workspace is a store as a node has it.
type workspace struct {
	*Store
	dir string
}

func newWorkspace(t testing.TB) workspace {
	t.Helper()
	dir := t.TempDir()
	return workspace{Store: open(t, dir), dir: dir}
}

// open opens the store as an agent that mounts the workspace does.
func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(filepath.Join(dir, ".mlenv/trees"), filepath.Join(dir, "repo"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// files is a folder: contents by name. A name that ends with a slash is a folder, a name that ends with * is executable,
// and a value that starts with -> is a link.
type files map[string]string

// newSource writes files to a folder of their own and scans it.
func newSource(t testing.TB, content files) (dir string, m tree.Manifest) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range content {
		write(t, dir, name, text)
	}
	return dir, scan(t, dir)
}

func scan(t testing.TB, dir string) tree.Manifest {
	t.Helper()
	m, err := tree.Scan(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	name, executable := strings.CutSuffix(name, "*")
	path := filepath.Join(dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	target, isLink := strings.CutPrefix(text, "->")
	switch {
	case strings.HasSuffix(name, "/"):
		err = errors.Join(err, os.MkdirAll(path, 0o755))
	case isLink:
		err = errors.Join(err, os.Symlink(target, path))
	case executable:
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o755))
	default:
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// stream returns what a client would send.
func stream(t testing.TB, dir string, m tree.Manifest, missing []tree.Digest) *bytes.Reader {
	t.Helper()
	var out bytes.Buffer
	if err := tree.WriteContents(t.Context(), &out, dir, m, missing, nil); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(out.Bytes())
}

// receive plans and sends a tree and returns how many contents were sent.
func receive(t testing.TB, s *Store, dir string, m tree.Manifest) (hash tree.Digest, sent int) {
	t.Helper()
	hash = m.Hash()
	present, missing, err := s.Plan(m, hash)
	if err != nil {
		t.Fatal(err)
	}
	if present {
		return hash, 0
	}
	if err := s.Receive(t.Context(), hash, 0, stream(t, dir, m, missing)); err != nil {
		t.Fatal(err)
	}
	return hash, len(missing)
}

// synced sends files as a tree and switches to it.
func (w workspace) synced(t testing.TB, content files) tree.Digest {
	t.Helper()
	dir, m := newSource(t, content)
	hash, _ := receive(t, w.Store, dir, m)
	if err := w.Switch(hash, ""); err != nil {
		t.Fatal(err)
	}
	return hash
}

// reads returns the content of a folder as files.
func reads(t testing.TB, dir string) files {
	t.Helper()
	found := files{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		switch {
		case e.IsDir():
			entries, err := os.ReadDir(path)
			if err == nil && len(entries) == 0 {
				found[name+"/"] = ""
			}
			return err
		case e.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			found[name] = "->" + target
			return err
		}
		content, err := os.ReadFile(path)
		if info, err := e.Info(); err == nil && info.Mode()&0o100 != 0 {
			name += "*"
		}
		found[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// wantTree checks the whole content of a tree.
func (w workspace) wantTree(t testing.TB, hash tree.Digest, want files) {
	t.Helper()
	path, err := w.Path(hash)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, reads(t, path)); diff != "" {
		t.Errorf("tree %.8s (-want +got):\n%s", hash, diff)
	}
}

// wantRoot checks that the root contains the files of that many trees, others, and nothing else.
func (w workspace) wantRoot(t testing.TB, trees int, others ...string) {
	t.Helper()
	for _, folder := range []string{stagingFolder, keptFolder} {
		entries, err := os.ReadDir(filepath.Join(w.root, folder))
		if err != nil || len(entries) != 0 {
			t.Errorf("%s holds %v, %v", folder, entries, err)
		}
	}
	entries, err := os.ReadDir(w.root)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range entries {
		if name := e.Name(); tree.Digest(name).Valid() {
			count["tree"]++
		} else {
			count[filepath.Ext(name)]++
		}
	}
	want := map[string]int{stagingFolder: 1, keptFolder: 1}
	delete(count, lockFile)
	if trees > 0 {
		want["tree"], want[manifestSuffix], want[indexSuffix] = trees, trees, trees
	}
	for _, other := range others {
		want[other]++
	}
	if diff := cmp.Diff(want, count); diff != "" {
		t.Errorf("content of the root (-want +got):\n%s", diff)
	}
}

// manyFiles creates a folder of 2,000 files and 20 MB.
func manyFiles(t testing.TB) (dir string, m tree.Manifest) {
	t.Helper()
	dir = t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	content := make([]byte, 10_000)
	for i := range 2000 {
		for j := range content {
			content[j] = "abcdefgh \n"[random.IntN(10)]
		}
		write(t, dir, fmt.Sprintf("package%02d/module%d.py", i%40, i), string(content))
	}
	return dir, scan(t, dir)
}
