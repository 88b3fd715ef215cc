// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// small bounds the contents that are held in memory, so that several are written in parallel, in bytes. A larger one goes
// straight to its file.
const small = 256 << 10

// Receive builds a planned tree from files of this node and the contents in body, as tree.WriteContents sends them. The tree gets
// its name only when it is complete and verified. A broken transfer or a wrong byte is SyncFailed; valid contents are kept: plan
// again and send the rest. Receive repairs a tree that programs changed, and moves their files to HASH.changed-TIME.
//
// The body lacks the first bytes of its first content, from of them, which Begun has reported.
func (s *Store) Receive(ctx context.Context, hash tree.Digest, from int64, body io.Reader) (err error) {
	defer syncFailed(&err, "receiving tree %s", hash)
	m, err := s.manifest(hash)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("it was not planned here")
	}
	if err != nil {
		return err
	}
	st, err := s.newStage(m)
	if err != nil {
		return err
	}
	defer claimfile.RemoveAll(s.root, st.dir)
	if err = st.fill(ctx, from, body); err == nil {
		err = s.land(hash, st)
	}
	if err != nil {
		return errors.Join(err, st.keepArrived())
	}
	return s.dropKept(st)
}

// fill makes the tree complete.
func (st *stage) fill(ctx context.Context, from int64, body io.Reader) error {
	if err := st.createFolders(); err != nil {
		return err
	}
	if err := st.copyLocal(); err != nil {
		return err
	}
	if err := st.read(ctx, from, body); err != nil {
		return err
	}
	return st.multiply()
}

// read takes the awaited contents from body, the first of them without its first bytes.
func (st *stage) read(ctx context.Context, from int64, body io.Reader) error {
	sizes := st.Sizes()
	var writers errgroup.Group
	writers.SetLimit(workers)
	begun := make(map[tree.Digest]bool, len(st.awaited))
	part, next := tree.Begun{}, tree.Begun{Size: from} // settle verifies what is continued
	first := func(tree.Digest) tree.Begun {
		part, next = next, tree.Begun{}
		if part.Size == 0 {
			part.Sum = sha256.New()
		}
		return part
	}
	err := tree.ReadContents(ctx, body, sizes, first, func(content tree.Digest, r io.Reader) error {
		entries, awaited := st.awaited[content]
		if !awaited || begun[content] {
			return nil // found meanwhile
		}
		begun[content] = true
		if from := part.Size; from > 0 || sizes[content] > small {
			if err := st.write(entries[0], from, r); err != nil {
				return err
			}
			writers.Go(func() error { return st.settle(entries[0], from > 0) })
			return nil
		}
		data := bytes.NewBuffer(make([]byte, 0, sizes[content]+bytes.MinRead))
		if _, err := data.ReadFrom(r); err != nil {
			return err
		}
		writers.Go(func() error {
			if err := st.write(entries[0], 0, data); err != nil {
				return err
			}
			return st.settle(entries[0], false)
		})
		return nil
	})
	if err := errors.Join(err, writers.Wait()); err != nil {
		return err
	}
	if missing := len(st.awaited) - len(begun); missing > 0 {
		return fmt.Errorf("%d contents are missing: want all that were planned; if files here changed since, plan again", missing)
	}
	return nil
}

// keepArrived moves the complete contents out of the stage, before its removal.
func (st *stage) keepArrived() error {
	var wrong []error
	for _, i := range st.arrived {
		err := os.Rename(st.path(i), st.store.partialPath(st.Entries[i].Content))
		if !errors.Is(err, fs.ErrNotExist) { // in its place already
			wrong = append(wrong, err)
		}
	}
	return errors.Join(wrong...)
}

// dropKept removes kept contents that a tree has now.
func (s *Store) dropKept(st *stage) error {
	kept, err := os.ReadDir(filepath.Join(s.root, keptFolder))
	if err != nil || len(kept) == 0 {
		return err
	}
	sizes := st.Sizes()
	for _, k := range kept {
		if _, ok := sizes[tree.Digest(k.Name())]; ok {
			err = errors.Join(err, removeFile(s.partialPath(tree.Digest(k.Name()))))
		}
	}
	return err
}

// land gives a complete tree its name. If a folder has that name, another transfer was first or the tree is broken: land replaces
// only the wrong files.
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

// mend replaces the wrong files of a tree. The store is locked.
func (s *Store) mend(hash tree.Digest, st *stage) error {
	known := s.index(hash, indexSuffix)
	found, err := s.inspect(hash, st.namedManifest, known)
	if err != nil {
		return err
	}
	if found.complete() {
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
