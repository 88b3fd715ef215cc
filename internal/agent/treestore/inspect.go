// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// workers is the number of parallel file operations: more than processors, because on network storage each takes a round trip.
const workers = 16

// inParallel calls f for 0 to n-1 and returns one of the errors.
func inParallel(n int, f func(i int) error) error {
	var group errgroup.Group
	size := max(1, min(64, n/workers)) // a goroutine for each call would cost more than some calls
	group.SetLimit(workers)
	for from := 0; from < n; from += size {
		group.Go(func() error {
			for i := from; i < min(n, from+size); i++ {
				if err := f(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// namedManifest adds unescaped names to a manifest.
type namedManifest struct {
	tree.Manifest
	// names has the name of each entry.
	names []string
	// folders are all folders of the tree, parents first.
	folders []string
}

// nameManifest requires a checked manifest.
func nameManifest(m tree.Manifest) (namedManifest, error) {
	n := namedManifest{Manifest: m, names: make([]string, len(m.Entries))}
	seen := map[string]bool{".": true}
	folder := func(name string) {
		for ; !seen[name]; name = filepath.Dir(name) {
			seen[name] = true
			n.folders = append(n.folders, name)
		}
	}
	for i, e := range m.Entries {
		name, err := tree.Unescape(e.Path)
		if err != nil {
			return n, err
		}
		n.names[i] = name
		if e.Kind == tree.Folder {
			folder(name)
		} else {
			folder(filepath.Dir(name))
		}
	}
	slices.SortFunc(n.folders, strings.Compare) // a prefix comes first
	return n, nil
}

// inspection is the state of a tree's folder.
type inspection struct {
	// folders: all exist.
	folders bool
	// right is true for each correct entry; stamps has the stamp of each of them that is a file.
	right  []bool
	stamps []stamp
}

func (i inspection) complete() bool { return i.folders && !slices.Contains(i.right, false) }

// inspect compares a tree's folder with its manifest. It reads files unless the known index recognises them, and ignores other
// files. The store is locked.
func (s *Store) inspect(hash tree.Digest, m namedManifest, known index) (inspection, error) {
	dir := s.treeDir(hash)
	found := inspection{folders: true, right: make([]bool, len(m.Entries)), stamps: make([]stamp, len(m.Entries))}
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return inspection{}, nil
	}
	if err != nil {
		return inspection{}, err
	}
	if !info.IsDir() {
		return inspection{}, fmt.Errorf("%s: it is not a folder (%s): want a folder", dir, info.Mode())
	}
	for _, folder := range m.folders {
		if !isFolder(filepath.Join(dir, folder)) {
			found.folders = false
		}
	}
	records := make(map[string]record, len(known.records))
	for _, r := range known.records {
		records[r.path] = r
	}
	_ = inParallel(len(m.Entries), func(i int) error { // f gives no error
		e, path := m.Entries[i], filepath.Join(dir, m.names[i])
		switch e.Kind {
		case tree.File:
			r, ok := records[e.Path]
			now, holds := s.hasContent(path, e.Content, r.stamp, ok && r.content == e.Content && known.boot == s.boot)
			// The recorded mode is right too: some file systems know no executable bit.
			found.stamps[i], found.right[i] = now, holds && (now.executable() == e.Executable || now.mode == r.stamp.mode)
		case tree.Link:
			target, err := os.Readlink(path)
			found.right[i] = err == nil && tree.Escape(target) == e.Target
		case tree.Folder:
			found.right[i] = true // has been looked at
		}
		return nil
	})
	return found, nil
}

func isFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// certify writes the index of a complete tree. The store is locked.
func (s *Store) certify(hash tree.Digest, m namedManifest, stamps []stamp, known index) error {
	now := index{boot: s.boot}
	for i, e := range m.Entries {
		if e.Kind == tree.File {
			now.records = append(now.records, record{path: e.Path, content: e.Content, stamp: stamps[i]})
		}
	}
	if known.boot != now.boot || !slices.Equal(known.records, now.records) {
		if err := s.replace(s.sibling(hash, indexSuffix), now.encode()); err != nil {
			return err
		}
	}
	return removeFile(s.sibling(hash, removingSuffix))
}

// removeFile removes a file that may be missing.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// hasContent reports whether the file at path has a content: by a trusted stamp, else by reading it. It returns the stamp to record.
func (s *Store) hasContent(path string, want tree.Digest, known stamp, trusted bool) (stamp, bool) {
	now, err := stampAt(path)
	if err != nil {
		return stamp{}, false
	}
	if trusted && now == known {
		return now, true
	}
	now = now.settled(time.Now())
	got, err := s.memory.content(path, now)
	return now, err == nil && got == want
}
