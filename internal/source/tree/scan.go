// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Scan describes the folder dir. It reports all entries that cannot be stored safely in one error with reason
// UnsafeTree: special files, links that are absolute or lead out of the tree, names that are too long. A file that
// cannot be read is SyncFailed, and the end of a context that was cancelled has no reason.
func Scan(ctx context.Context, dir string, ignore *Ignore) (Manifest, error) {
	s := scanner{dir: dir, ignore: ignore}
	err := s.folder(ctx, "")
	if err == nil {
		err = s.hash(ctx)
	}
	if err != nil {
		return Manifest{}, notScanned(ctx, dir, err)
	}
	m := Manifest{Entries: s.entries}
	slices.SortFunc(m.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	if err := slices.Concat(s.problems, m.problems()).err("scanning " + dir); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

func notScanned(ctx context.Context, dir string, err error) error {
	err = fmt.Errorf("scanning %s: %w", dir, err)
	if errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	return fail.Because(fail.SyncFailed, err)
}

type scanner struct {
	problems
	dir     string
	ignore  *Ignore
	entries []Entry
}

// folder adds the entries of the folder at an unescaped path. An empty folder adds itself.
func (s *scanner) folder(ctx context.Context, path string) error {
	files, err := os.ReadDir(filepath.Join(s.dir, path))
	if err != nil {
		return err
	}
	kept := 0
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := strings.TrimPrefix(path+"/"+file.Name(), "/")
		if s.ignore.leavesOut(name, file.IsDir()) {
			continue
		}
		kept++
		if err := s.add(ctx, name, file); err != nil {
			return err
		}
	}
	if kept == 0 && path != "" {
		s.entries = append(s.entries, Entry{Path: Escape(path), Kind: Folder})
	}
	return nil
}

func (s *scanner) add(ctx context.Context, name string, file fs.DirEntry) error {
	switch file.Type() {
	case fs.ModeDir:
		return s.folder(ctx, name)
	case fs.ModeSymlink:
		target, err := os.Readlink(filepath.Join(s.dir, name))
		if err != nil {
			return err
		}
		s.entries = append(s.entries, Entry{Path: Escape(name), Kind: Link, Target: Escape(target)})
	case 0:
		s.entries = append(s.entries, Entry{Path: Escape(name), Kind: File})
	default:
		s.problems.add(Escape(name), "is a special file (%s): want files, folders and links", file.Type())
	}
	return nil
}

func (s *scanner) hash(ctx context.Context) error {
	return forEachFile(ctx, s.entries, func(ctx context.Context, e *Entry) error { return s.hashFile(ctx, e) })
}

// forEachFile calls do for every file, some at once.
func forEachFile(ctx context.Context, entries []Entry, do func(context.Context, *Entry) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(min(runtime.GOMAXPROCS(0), 8))
	for i := range entries {
		if entries[i].Kind == File {
			group.Go(func() error { return do(ctx, &entries[i]) })
		}
	}
	return group.Wait()
}

func (s *scanner) hashFile(ctx context.Context, e *Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	name, err := Unescape(e.Path)
	if err != nil {
		return err
	}
	file, err := claimfile.Open(filepath.Join(s.dir, name))
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil {
		e.Executable = info.Mode()&0o100 != 0
		e.Content, e.Size, err = hashReader(ctx, file, info.Size())
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", file.Name(), err)
	}
	return nil
}

// hashReader reads r, probably of so many bytes, to its end.
func hashReader(ctx context.Context, r io.Reader, probably int64) (content Digest, size int64, err error) {
	hash := sha256.New()
	size, err = io.CopyBuffer(hash, contextReader{ctx, r}, make([]byte, max(1, min(probably, 256<<10))))
	return DigestOf(hash), size, err
}

type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
