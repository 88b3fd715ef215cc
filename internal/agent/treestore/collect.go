// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// scrapAge is the age at which leftovers of a killed agent are removed, from the start of the transfer: a longer one must be sent again.
const scrapAge = 24 * time.Hour

// Collect removes the oldest trees until keep are left, which include the current one and pinned ones; those always stay. It
// removes only unchanged files that sync wrote: files of programs stay in their folders.
func (s *Store) Collect(keep int, pinned func(tree.Digest) bool) (removed []tree.Digest, err error) {
	defer syncFailed(&err, "collecting trees")
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	removed, err = s.collect(keep, pinned)
	return removed, errors.Join(err, s.dropScraps(time.Now().Add(-scrapAge)))
}

func (s *Store) collect(keep int, pinned func(tree.Digest) bool) (removed []tree.Digest, err error) {
	trees, err := s.listTrees()
	if err != nil {
		return nil, err
	}
	current, err := s.linked()
	if err != nil {
		current = "" // something else lies there; it needs no tree
	}
	for _, t := range trees[min(max(keep, 0), len(trees)):] {
		if t.hash == current || pinned(t.hash) {
			continue
		}
		// From here on the tree is incomplete, whatever happens.
		if err := os.Rename(s.sibling(t.hash, indexSuffix), s.sibling(t.hash, removingSuffix)); err != nil {
			return removed, err
		}
		if err := s.remove(t.hash); err != nil {
			return removed, err
		}
		removed = append(removed, t.hash)
	}
	return removed, nil
}

// remove deletes a tree whose index has been renamed.
func (s *Store) remove(hash tree.Digest) error {
	m, err := s.manifest(hash)
	if err != nil {
		m = namedManifest{} // lost in a crash: all files stay
	}
	if _, err := s.newRemover(s.treeDir(hash), m, s.index(hash, removingSuffix)).emptyFolder("."); err != nil {
		return err
	}
	for _, suffix := range []string{metaSuffix, manifestSuffix, removingSuffix} {
		if err := removeFile(s.sibling(hash, suffix)); err != nil {
			return err
		}
	}
	return nil
}

// remover has the entries of a tree that were laid in a folder.
type remover struct {
	namedManifest
	store *Store
	dir   string
	// ours are the entries, and folders the folders, by name.
	ours    map[string]tree.Entry
	folders map[string]bool
	// stamps of the files, by path.
	stamps map[string]stamp
	// caches is true if what Python compiled from the entries is removed, too.
	caches bool
}

func (s *Store) newRemover(dir string, m namedManifest, known index) *remover {
	r := &remover{
		namedManifest: m, store: s, dir: dir,
		ours: make(map[string]tree.Entry), folders: map[string]bool{".": true}, stamps: make(map[string]stamp),
	}
	for _, f := range known.records {
		r.stamps[f.path] = f.stamp
	}
	for _, folder := range m.folders {
		r.folders[folder] = true
	}
	for i, e := range m.Entries {
		r.ours[m.names[i]] = e
	}
	return r
}

// emptyFolder removes sync's unchanged entries from a folder, and sync's folder if it is empty then. It walks the real folder and
// follows no link.
func (r *remover) emptyFolder(folder string) (gone bool, err error) {
	entries, err := os.ReadDir(filepath.Join(r.dir, folder))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	left := 0
	for _, e := range entries {
		name := filepath.Join(folder, e.Name())
		gone := false
		if e.IsDir() {
			gone, err = r.emptyFolder(name)
		} else if r.unchanged(name) || r.caches && r.compiled(name) {
			gone, err = true, os.Remove(filepath.Join(r.dir, name))
		}
		if err != nil {
			return false, err
		}
		if !gone {
			left++
		}
	}
	ours := r.folders[folder] || r.caches && filepath.Base(folder) == compiledFolder
	if left > 0 || !ours {
		return false, nil
	}
	err = os.Remove(filepath.Join(r.dir, folder))
	if errors.Is(err, syscall.ENOTEMPTY) { // something came just now
		return false, nil
	}
	return err == nil, err
}

// unchanged reports whether a file or link is as sync wrote it.
func (r *remover) unchanged(name string) bool {
	e, ok := r.ours[name]
	if !ok {
		return false
	}
	path := filepath.Join(r.dir, name)
	switch e.Kind {
	case tree.Link:
		target, err := os.Readlink(path)
		return err == nil && tree.Escape(target) == e.Target
	case tree.Folder:
		return false
	}
	if now, err := stampAt(path); err != nil || now.size != e.Size {
		return false // without reading it: it may be large
	}
	_, holds := r.store.hasContent(path, e.Content, r.stamps[e.Path], true)
	return holds
}

// compiledFolder is where Python keeps the modules that it has compiled.
const compiledFolder = "__pycache__"

// compiled reports whether Python made a file from one of the entries. It would make it again.
func (r *remover) compiled(name string) bool {
	folder, file := filepath.Split(name)
	module, rest, _ := strings.Cut(file, ".")
	_, ours := r.ours[filepath.Join(filepath.Dir(filepath.Clean(folder)), module+".py")]
	return ours && filepath.Base(folder) == compiledFolder && strings.Contains("."+rest, ".pyc")
}

// dropScraps completes interrupted removals, and removes old stages, kept contents, and manifests without a tree.
func (s *Store) dropScraps(before time.Time) error {
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return err
	}
	var wrong []error
	for _, e := range entries {
		if hash, ok := strings.CutSuffix(e.Name(), removingSuffix); ok && tree.Digest(hash).Valid() {
			wrong = append(wrong, s.remove(tree.Digest(hash)))
		}
		if hash, ok := strings.CutSuffix(e.Name(), manifestSuffix); ok && !isFolder(filepath.Join(s.root, hash)) {
			wrong = append(wrong, s.removeOlder(filepath.Join(s.root, e.Name()), before))
		}
	}
	for _, folder := range []string{stagingFolder, keptFolder} {
		entries, err := os.ReadDir(filepath.Join(s.root, folder))
		wrong = append(wrong, err)
		for _, e := range entries {
			wrong = append(wrong, s.removeOlder(filepath.Join(s.root, folder, e.Name()), before))
		}
	}
	return errors.Join(wrong...)
}

func (s *Store) removeOlder(path string, before time.Time) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || info.ModTime().After(before) {
		return err
	}
	return claimfile.RemoveAll(s.root, path)
}
