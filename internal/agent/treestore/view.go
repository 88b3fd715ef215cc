// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// linkedFrom is the size from which files of a working directory are hard links to the read-only files of the tree, in bytes. Scripts
// change small files, and copying them takes no longer than linking.
const linkedFrom = 1 << 20

// view is a working directory under construction, in a folder that no other program reads.
type view struct {
	namedManifest
	store *Store
	// from is the folder of the tree, and known has the stamps of its files, by path.
	from  string
	known map[string]stamp
	// stage is the view's own folder, top the working directory in it.
	stage, top string
	// modified is the time stamp of copies, as in stage.
	modified time.Time
	// lacking is true for each entry to lay, replaced has the folders where the job has put something else, and stamps has the stamp of
	// each file that was laid.
	lacking  []bool
	replaced map[string]bool
	stamps   []stamp
}

func (s *Store) newView(m namedManifest, from string, known index) (*view, error) {
	dir, err := os.MkdirTemp(filepath.Join(s.root, stagingFolder), "work-")
	if err != nil {
		return nil, err
	}
	v := &view{
		namedManifest: m, store: s, from: from, known: make(map[string]stamp, len(known.records)), stage: dir, top: filepath.Join(dir, "work"),
		modified: time.Now().Add(-restless).Truncate(time.Second), lacking: make([]bool, len(m.Entries)), stamps: make([]stamp, len(m.Entries)),
	}
	for _, r := range known.records {
		v.known[r.path] = r.stamp
	}
	return v, nil
}

// layAt makes dir complete: in one step if it does not exist.
func (v *view) layAt(dir string) error {
	exists := isFolder(dir)
	if err := v.compare(dir); err != nil {
		return err
	}
	if err := v.fill(); err != nil {
		return err
	}
	if !exists {
		err := os.Rename(v.top, dir)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		// Without locks another agent was first, and its ranks may run there.
		if err := v.compare(dir); err != nil {
			return err
		}
	}
	return v.merge(dir)
}

// compare finds what dir lacks.
func (v *view) compare(dir string) error {
	v.replaced = v.namedManifest.replaced(dir)
	return inParallel(len(v.Entries), func(i int) error {
		v.lacking[i] = false
		if v.Entries[i].Kind == tree.Folder || v.replaced[filepath.Dir(v.names[i])] {
			return nil
		}
		_, err := os.Lstat(filepath.Join(dir, v.names[i]))
		if errors.Is(err, fs.ErrNotExist) {
			v.lacking[i], err = true, nil
		}
		return err
	})
}

// fill lays the lacking entries in the stage.
func (v *view) fill() error {
	for _, folder := range slices.Concat([]string{"."}, v.folders) {
		if err := makeFolder(filepath.Join(v.top, folder)); err != nil {
			return err
		}
	}
	return inParallel(len(v.Entries), func(i int) error {
		if !v.lacking[i] {
			return nil
		}
		return v.put(i)
	})
}

// put lays one file or link in the stage.
func (v *view) put(entry int) error {
	e, to := v.Entries[entry], filepath.Join(v.top, v.names[entry])
	if e.Kind == tree.Link {
		target, err := tree.Unescape(e.Target)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	from := filepath.Join(v.from, v.names[entry])
	if _, holds := v.store.hasContent(from, e.Content, v.known[e.Path], true); !holds {
		return fmt.Errorf("%s: a program changed or removed this file of the tree", e.Path)
	}
	// A process that could write to the tree's file could so through the link, too. Links of another user's files are not allowed.
	if e.Size < linkedFrom || v.store.writable(from) || os.Link(from, to) != nil {
		if err := v.copy(e, from, to); err != nil {
			return err
		}
	}
	now, err := stampAt(to)
	v.stamps[entry] = now
	return err
}

// writable reports whether this process, and so a rank, could write to a read-only file: as root, or on a file system without modes.
func writable(path string) bool {
	f, err := claimfile.OpenFile(path, os.O_WRONLY, 0)
	f.Close()
	return !errors.Is(err, fs.ErrPermission)
}

// copy copies from file to file, which lets the file system share the blocks or copy them itself.
func (v *view) copy(e tree.Entry, from, to string) error {
	mode := fs.FileMode(0o664)
	if e.Executable {
		mode = 0o775
	}
	in, err := claimfile.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := claimfile.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if info, statErr := out.Stat(); statErr == nil && info.Mode().Perm() != mode { // the umask of this process
		err = errors.Join(err, out.Chmod(mode))
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Chtimes(to, time.Time{}, v.modified)
}

// merge moves the lacking entries from the stage to dir.
func (v *view) merge(dir string) error {
	for _, folder := range v.folders {
		if v.replaced[folder] {
			continue
		}
		if err := makeFolder(filepath.Join(dir, folder)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return inParallel(len(v.Entries), func(i int) error {
		if !v.lacking[i] {
			return nil
		}
		return os.Rename(filepath.Join(v.top, v.names[i]), filepath.Join(dir, v.names[i]))
	})
}

// index has the stamps of the files that were laid.
func (v *view) index(boot string) index {
	x := index{boot: boot}
	for i, e := range v.Entries {
		if e.Kind == tree.File && v.lacking[i] {
			x.records = append(x.records, record{path: e.Path, content: e.Content, stamp: v.stamps[i]})
		}
	}
	return x
}
