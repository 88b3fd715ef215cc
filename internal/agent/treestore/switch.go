// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Switch makes a complete tree the current one and records its virtual environment, "" for none. It replaces the link in one step,
// so there is always a current tree. If the current path is anything other than this store's link, Switch fails with SyncFailed and
// leaves it untouched.
func (s *Store) Switch(hash tree.Digest, venv string) error {
	unlock, err := s.lock()
	if err != nil {
		return fail.Becausef(fail.SyncFailed, "switching %s: %w", s.current, err)
	}
	defer unlock()
	dir, err := s.Path(hash)
	if err != nil {
		return err
	}
	previous, err := s.linked()
	if err != nil {
		err = fail.Becausef(fail.SyncFailed, "switching %s: %w", s.current, err)
		return fail.Advise(err, "move it away: mv %s %s.mine", s.current, s.current)
	}
	if err := s.switchTo(dir, hash, venv, previous); err != nil {
		return fail.Becausef(fail.SyncFailed, "switching %s: %w", s.current, err)
	}
	return nil
}

func (s *Store) switchTo(dir string, hash tree.Digest, venv string, previous tree.Digest) error {
	about := s.meta(hash)
	if about.Venvs == nil {
		about.Venvs = map[string]string{}
	}
	about.Venv, about.Venvs[s.linkName()] = venv, venv
	if err := s.replaceJSON(hash, metaSuffix, about); err != nil {
		return err
	}
	target, err := filepath.Rel(filepath.Dir(s.current), dir)
	if err != nil {
		return err
	}
	if err := makeFolders(filepath.Dir(s.current)); err != nil {
		return err
	}
	if previous == "" {
		return os.Symlink(target, s.current) // fails if another program was first
	}
	link := filepath.Join(s.root, stagingFolder, "link-"+rand.Text())
	if err := os.Symlink(target, link); err != nil {
		return err
	}
	if err := os.Rename(link, s.current); err != nil {
		os.Remove(link)
		return err
	}
	return nil
}

// Current returns the current tree and its virtual environment, both "" if there is none.
func (s *Store) Current() (hash tree.Digest, venv string) {
	hash, err := s.linked()
	if err != nil || hash == "" {
		return "", ""
	}
	return hash, s.Venv(hash)
}

// linked returns the tree that the link names, "" if nothing exists at its path. The error describes anything other than this store's
// link.
func (s *Store) linked() (tree.Digest, error) {
	info, err := os.Lstat(s.current)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	switch {
	case info.IsDir():
		entries, err := os.ReadDir(s.current)
		if err != nil {
			return "", fmt.Errorf("a folder is in its place: %w", err)
		}
		return "", fmt.Errorf("a folder with %d entries is in its place: want nothing or the link that a sync created", len(entries))
	case info.Mode().Type() != fs.ModeSymlink:
		return "", fmt.Errorf("a file of %d bytes is in its place: want nothing or the link that a sync created", info.Size())
	}
	target, err := os.Readlink(s.current)
	if err != nil {
		return "", err
	}
	at := target
	if !filepath.IsAbs(at) {
		at = filepath.Join(filepath.Dir(s.current), at)
	}
	if hash := tree.Digest(filepath.Base(at)); filepath.Dir(at) == filepath.Clean(s.root) && hash.Valid() {
		return hash, nil
	}
	return "", fmt.Errorf("a link to %s is in its place: want nothing or the link that a sync created", target)
}
