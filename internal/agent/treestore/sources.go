// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// searched is the number of trees that are searched for contents, newest first.
const searched = 8

// source is a file that had a content when an agent last read it.
type source struct {
	// dir is a folder, and escaped the file's path in it, as in a manifest.
	dir, escaped string
	stamp        stamp
	// trusted is true if an equal stamp proves that the content is the same.
	trusted bool
}

// path returns an error if the path leads out of the folder: other programs can write an index too.
func (s source) path() (string, error) {
	name, err := tree.Unescape(s.escaped)
	if err == nil && !filepath.IsLocal(name) {
		err = fmt.Errorf("%s: not a path in a tree", s.escaped)
	}
	return filepath.Join(s.dir, name), err
}

// sources finds files for the contents that a tree needs, in the newest trees and among the contents of broken transfers. It reads
// only indexes, so the caller must verify each source. The transfer of the content begun, if there is one, broke off in its middle.
func (s *Store) sources(sizes map[tree.Digest]int64) (found map[tree.Digest][]source, begun tree.Digest, err error) {
	found = make(map[tree.Digest][]source, len(sizes))
	add := func(content tree.Digest, from source) {
		if _, needed := sizes[content]; !needed {
			return
		}
		others := found[content]
		if !slices.ContainsFunc(others, func(other source) bool { return other.stamp == from.stamp }) {
			found[content] = append(others, from) // else it is the same file by another name
		}
	}
	trees, err := s.listTrees()
	if err != nil {
		return nil, "", err
	}
	for _, t := range trees[:min(searched, len(trees))] {
		dir, known := s.treeDir(t.hash), s.index(t.hash, indexSuffix)
		for _, r := range known.records {
			add(r.content, source{dir: dir, escaped: r.path, stamp: r.stamp, trusted: known.boot == s.boot})
		}
	}
	kept, err := os.ReadDir(filepath.Join(s.root, keptFolder))
	if err != nil {
		return nil, "", err
	}
	for _, k := range kept {
		content := tree.Digest(k.Name())
		if size, needed := sizes[content]; needed && size > small {
			if has := s.size(content); has < size {
				if has > s.size(begun) {
					begun = content
				}
				continue
			}
		}
		add(content, source{dir: filepath.Join(s.root, keptFolder), escaped: k.Name()})
	}
	return found, begun, nil
}

// PartialSize returns how many bytes of the first missing content are here, from a transfer that broke off.
func (s *Store) PartialSize(missing []tree.Digest) int64 {
	if len(missing) == 0 {
		return 0
	}
	return s.size(missing[0])
}

// size returns the size of a kept content, 0 if there is none.
func (s *Store) size(content tree.Digest) int64 {
	now, _ := stampAt(s.partialPath(content))
	return now.size
}

// has reports whether a source, a file at path, has a content. It removes a kept one that was damaged.
func (s *Store) has(from source, path string, content tree.Digest) (now stamp, ok bool) {
	if now, ok = s.hasContent(path, content, from.stamp, from.trusted); !ok && path == s.partialPath(content) {
		claimfile.RemoveAll(s.root, path)
	}
	return now, ok
}

// partialPath returns the path of a content from a broken transfer.
func (s *Store) partialPath(content tree.Digest) string {
	return filepath.Join(s.root, keptFolder, string(content))
}

// storedTree is a complete tree.
type storedTree struct {
	hash tree.Digest
	// used is the time of its arrival or of its last switch.
	used time.Time
}

// listTrees lists the complete trees, last used first.
func (s *Store) listTrees() ([]storedTree, error) {
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return nil, err
	}
	var trees []storedTree
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), indexSuffix)
		t := storedTree{hash: tree.Digest(name)}
		if !ok || !t.hash.Valid() {
			continue
		}
		for _, suffix := range []string{indexSuffix, metaSuffix} {
			if info, err := os.Stat(s.sibling(t.hash, suffix)); err == nil && info.ModTime().After(t.used) {
				t.used = info.ModTime()
			}
		}
		trees = append(trees, t)
	}
	slices.SortFunc(trees, func(a, b storedTree) int {
		return cmp.Or(b.used.Compare(a.used), cmp.Compare(a.hash, b.hash))
	})
	return trees, nil
}
