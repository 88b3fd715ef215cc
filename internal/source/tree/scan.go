package tree

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// chunk is how many bytes are read or written at a time.
const chunk = 256 << 10

// Scan describes the folder dir. Entries that cannot be stored safely (special
// files, links that are absolute or lead out of the tree, names too long) are
// told all at once, with UnsafeTree; a file that cannot be read is SyncFailed.
// A folder of which everything is left out is an empty folder.
func Scan(ctx context.Context, dir string, ignore *Ignore) (Manifest, error) {
	s := scanner{dir: dir, ignore: ignore}
	if err := s.folder(ctx, ""); err != nil {
		return Manifest{}, fail.Becausef(fail.SyncFailed, "scanning %s: %w", dir, err)
	}
	if err := s.hash(ctx); err != nil {
		return Manifest{}, fail.Becausef(fail.SyncFailed, "scanning %s: %w", dir, err)
	}
	m := Manifest{Entries: s.entries}
	slices.SortFunc(m.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	found := slices.Concat(s.problems, m.problems())
	if err := found.err("scanning " + dir); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

type scanner struct {
	problems
	dir     string
	ignore  *Ignore
	entries []Entry
	// files are the names, and places in entries, of what is to be hashed.
	files []scannedFile
}

type scannedFile struct {
	name  string
	entry int
}

// folder adds what lies in the folder at an unescaped path. An empty one adds itself.
func (s *scanner) folder(ctx context.Context, at string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	found, err := os.ReadDir(filepath.Join(s.dir, at))
	if err != nil {
		return err
	}
	kept := 0
	for _, f := range found {
		name := f.Name()
		if at != "" {
			name = at + "/" + name
		}
		if s.ignore.leavesOut(name, f.IsDir()) {
			continue
		}
		kept++
		if err := s.add(ctx, name, f); err != nil {
			return err
		}
	}
	if kept == 0 && at != "" {
		s.entries = append(s.entries, Entry{Path: Escape(at), Kind: Folder})
	}
	return nil
}

func (s *scanner) add(ctx context.Context, name string, f fs.DirEntry) error {
	switch f.Type() {
	case fs.ModeDir:
		return s.folder(ctx, name)
	case fs.ModeSymlink:
		target, err := os.Readlink(filepath.Join(s.dir, name))
		if err != nil {
			return err
		}
		s.entries = append(s.entries, Entry{Path: Escape(name), Kind: Link, Target: Escape(target)})
	case 0:
		info, err := f.Info()
		if err != nil {
			return err
		}
		s.files = append(s.files, scannedFile{name: name, entry: len(s.entries)})
		s.entries = append(s.entries, Entry{Path: Escape(name), Kind: File, Executable: info.Mode()&0o100 != 0})
	default:
		s.problems.add(Escape(name), "is a special file (%s): want files, folders and links", f.Type())
	}
	return nil
}

// hash reads the files, a few at a time.
func (s *scanner) hash(ctx context.Context) error {
	workers := min(runtime.GOMAXPROCS(0), 8)
	group, ctx := errgroup.WithContext(ctx)
	next := make(chan scannedFile)
	for range workers {
		group.Go(func() error {
			buffer := make([]byte, chunk)
			for f := range next {
				if err := s.hashFile(ctx, f, buffer); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(next)
		for _, f := range s.files {
			select {
			case next <- f:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return group.Wait()
}

func (s *scanner) hashFile(ctx context.Context, f scannedFile, buffer []byte) error {
	file, err := os.Open(filepath.Join(s.dir, f.name))
	if err != nil {
		return err
	}
	defer file.Close()
	content, size, err := sum(ctx, file, buffer)
	if err != nil {
		return fmt.Errorf("reading %s: %w", file.Name(), err)
	}
	s.entries[f.entry].Content, s.entries[f.entry].Size = content, size
	return nil
}

func sum(ctx context.Context, r io.Reader, buffer []byte) (content Digest, size int64, err error) {
	hash := sha256.New()
	for {
		if err := ctx.Err(); err != nil {
			return "", 0, err
		}
		n, err := r.Read(buffer)
		hash.Write(buffer[:n])
		size += int64(n)
		if err == io.EOF {
			return digestOf(hash), size, nil
		}
		if err != nil {
			return "", 0, err
		}
	}
}
