// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// stage is a tree under construction, in a folder that no other program reads.
type stage struct {
	namedManifest
	store *Store
	// dir is the stage's own folder, top the tree's folder in it.
	dir, top string
	// modified is the time stamp of new files: old enough that a later change is visible, however coarse the file system's clock is.
	modified time.Time
	// stamps of the files, by entry.
	stamps []stamp
	// awaited are the entries, by content, without a source on this node.
	awaited map[tree.Digest][]int

	// mu guards awaited and arrived.
	mu sync.Mutex
	// arrived are the entries with received contents.
	arrived []int
}

func (s *Store) newStage(m namedManifest) (*stage, error) {
	dir, err := os.MkdirTemp(filepath.Join(s.root, stagingFolder), "tree-")
	if err != nil {
		return nil, err
	}
	return &stage{
		namedManifest: m, store: s, dir: dir, top: filepath.Join(dir, "tree"),
		modified: time.Now().Add(-restless).Truncate(time.Second),
		stamps:   make([]stamp, len(m.Entries)),
		awaited:  make(map[tree.Digest][]int),
	}, nil
}

func (st *stage) path(entry int) string { return filepath.Join(st.top, st.names[entry]) }

// settle notes an entry whose content was received. It reads a continued one as a whole, because the transfer did not verify it.
func (st *stage) settle(entry int, continued bool) error {
	e, path := st.Entries[entry], st.path(entry)
	if continued {
		got, err := hashFile(path, e.Size)
		if err == nil && got != e.Content {
			err = fmt.Errorf("%w: %s was continued, and its bytes have SHA-256 %s", tree.ErrDamaged, e.Path, got)
		}
		if err != nil {
			return err
		}
	}
	if e.Size > small {
		// If the node fails now, this content need not be sent again, unless the volume has no hard links.
		_ = os.Link(path, st.store.partialPath(e.Content))
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.arrived = append(st.arrived, entry)
	return nil
}

// createFolders creates the folders and links.
func (st *stage) createFolders() error {
	for _, folder := range slices.Concat([]string{"."}, st.folders) {
		if err := makeFolder(filepath.Join(st.top, folder)); err != nil {
			return err
		}
	}
	for i, e := range st.Entries {
		if e.Kind != tree.Link {
			continue
		}
		target, err := tree.Unescape(e.Target)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, st.path(i)); err != nil {
			return err
		}
	}
	return nil
}

// copyLocal creates the files that have a source on this node.
func (st *stage) copyLocal() error {
	sources, _, err := st.store.sources(st.Sizes())
	if err != nil {
		return err
	}
	return inParallel(len(st.Entries), func(i int) error {
		e := st.Entries[i]
		if e.Kind != tree.File {
			return nil
		}
		for _, from := range sources[e.Content] {
			if ok, err := st.takeFrom(i, from); ok || err != nil {
				return err
			}
		}
		st.mu.Lock()
		defer st.mu.Unlock()
		st.awaited[e.Content] = append(st.awaited[e.Content], i)
		return nil
	})
}

// takeFrom returns false if the source no longer has the content.
func (st *stage) takeFrom(entry int, from source) (bool, error) {
	path, err := from.path()
	if err != nil {
		return false, nil //nolint:nilerr // no source then
	}
	settled := from.stamp.modified != 0
	if from.trusted && settled && st.link(entry, path, from.stamp) {
		return true, nil
	}
	now, holds := st.store.has(from, path, st.Entries[entry].Content)
	if !holds {
		return false, nil
	}
	if st.link(entry, path, now) {
		return true, nil
	}
	return st.copy(entry, path)
}

// link creates an entry as a hard link to a file with its content, if the file is read-only and has not changed since.
func (st *stage) link(entry int, from string, known stamp) bool {
	if known.mode&0o222 != 0 || known.executable() != st.Entries[entry].Executable {
		return false
	}
	path := st.path(entry)
	if os.Link(from, path) != nil {
		return false // not supported, too many links, or another user's file
	}
	now, err := stampAt(path)
	if known.modified == 0 {
		now.modified = 0 // an unsettled one, which will be read again
	}
	if err != nil || now != known {
		os.Remove(path)
		return false
	}
	st.stamps[entry] = now
	return true
}

// copy returns false if the copied file does not have the content.
func (st *stage) copy(entry int, from string) (bool, error) {
	f, err := claimfile.Open(from)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, claimfile.ErrNotRegular) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	sum := sha256.New()
	if err := st.write(entry, 0, io.TeeReader(f, sum)); err != nil {
		return false, err
	}
	if tree.DigestOf(sum) != st.Entries[entry].Content {
		return false, os.Remove(st.path(entry))
	}
	return true, nil
}

// multiply links or copies received files to the other entries of the same content.
func (st *stage) multiply() error {
	return inParallel(len(st.arrived), func(n int) error {
		first := st.arrived[n]
		for _, i := range st.awaited[st.Entries[first].Content][1:] {
			if st.link(i, st.path(first), st.stamps[first]) {
				continue
			}
			if ok, err := st.copy(i, st.path(first)); err != nil || !ok {
				return errors.Join(err, fmt.Errorf("copying %s to %s", st.Entries[first].Path, st.Entries[i].Path))
			}
		}
		return nil
	})
}

// open creates an entry's file. If its first bytes are here, open takes their file, so that no other transfer writes to it.
func (st *stage) open(entry int, from int64, mode fs.FileMode) (*os.File, error) {
	e, path := st.Entries[entry], st.path(entry)
	if e.Size > small {
		mode |= 0o200 // it may be continued
	}
	if from == 0 {
		return claimfile.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	}
	if err := os.Rename(st.store.partialPath(e.Content), path); err != nil {
		return nil, err
	}
	f, err := claimfile.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	// A complete file may be a tree's, too.
	if err == nil && (info.Size() < from || info.Size() >= e.Size) {
		err = fmt.Errorf("it has %d bytes here: want at least %d, and less than %d; plan again", info.Size(), from, e.Size)
	}
	if err == nil {
		err = f.Truncate(from)
	}
	if err == nil {
		_, err = f.Seek(from, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// leave keeps what came of a large content before its transfer broke, unless a byte of it is known to be wrong or the volume is full.
func (st *stage) leave(entry int, broken error) {
	var local *fs.PathError
	if st.Entries[entry].Size > small && !errors.As(broken, &local) && !errors.Is(broken, tree.ErrDamaged) {
		_ = os.Rename(st.path(entry), st.store.partialPath(st.Entries[entry].Content))
	}
	os.Remove(st.path(entry))
}

// write creates an entry's file with the content in r, which follows the first bytes, from of them, that an earlier transfer left.
func (st *stage) write(entry int, from int64, r io.Reader) (err error) {
	path, mode := st.path(entry), fs.FileMode(0o444)
	if st.Entries[entry].Executable {
		mode = 0o555
	}
	f, err := st.open(entry, from, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			st.leave(entry, err)
		}
	}()
	_, err = io.Copy(f, r)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Chtimes(path, time.Time{}, st.modified); err != nil {
		return err
	}
	now, err := stampAt(path)
	if err == nil && now.mode&0o777 != uint32(mode) { // the umask of this process
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
		now, err = stampAt(path)
	}
	st.stamps[entry] = now
	return err
}
