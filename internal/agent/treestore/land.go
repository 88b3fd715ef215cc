package treestore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// land gives a complete tree its name. Where a folder has that name already, the
// same tree came another way, or is broken: then only what is wrong is replaced.
func (s *Store) land(hash tree.Digest, st *stage) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err = os.Rename(st.top, s.treeDir(hash)); errors.Is(err, fs.ErrExist) {
		return s.mend(hash, st)
	}
	if err != nil {
		return err
	}
	return s.certify(hash, st.namedManifest, st.stamps, index{})
}

// mend replaces in a tree's place what is not as it should be. The store is locked.
func (s *Store) mend(hash tree.Digest, st *stage) error {
	known := s.index(hash)
	found, err := s.inspect(hash, st.namedManifest, known)
	if err != nil {
		return err
	}
	if found.whole() {
		return s.certify(hash, st.namedManifest, found.stamps, known)
	}
	if err := removeFile(s.sibling(hash, indexSuffix)); err != nil {
		return err
	}
	dir, away := s.treeDir(hash), s.sibling(hash, changedInfix+time.Now().UTC().Format("20060102T150405.000000000"))
	for _, folder := range st.folders {
		if path := filepath.Join(dir, folder); !isFolder(path) {
			if err := moveAway(dir, folder, away); err != nil {
				return err
			}
			if err := makeFolder(path); err != nil {
				return err
			}
		}
	}
	if found, err = s.inspect(hash, st.namedManifest, known); err != nil { // again: folders that are new have nothing yet
		return err
	}
	for i, name := range st.names {
		if found.right[i] {
			continue
		}
		if err := moveAway(dir, name, away); err != nil {
			return err
		}
		if err := os.Rename(st.path(i), filepath.Join(dir, name)); err != nil {
			return err
		}
		found.stamps[i] = st.stamps[i]
	}
	return s.certify(hash, st.namedManifest, found.stamps, index{})
}

// moveAway saves what a program made of an entry, if there is anything.
func moveAway(dir, name, away string) error {
	from, to := filepath.Join(dir, name), filepath.Join(away, name)
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := makeFolders(filepath.Dir(to)); err != nil {
		return err
	}
	return os.Rename(from, to)
}
