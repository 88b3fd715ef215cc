// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Partial is the prefix of the name of a file that is not complete yet.
const Partial = ".mlenv-partial-"

// partialName returns the name of a file while it is not complete. It is never too long, as the prefix and a long name would be.
func partialName(name string) string {
	const longest = 255 // bytes, on Linux and macOS
	if len(Partial)+len(name) <= longest {
		return Partial + name
	}
	return fmt.Sprintf("%s%x", Partial, sha256.Sum256([]byte(name)))
}

// Landing receives the files of a tree into a folder. It writes nothing outside of the folder, and gives a file its
// name only when the file is complete and verified.
type Landing struct {
	root *os.Root
	// places are the entries of each missing content, order the contents in the order of the files.
	places map[Digest][]Entry
	order  []Digest
	others []Entry
	landed int
	// begun are the contents of which a part lies in the file of their name, or is just coming.
	begun map[Digest]Begun
	// folders has the folders of the files.
	folders map[string]bool
}

// NewLanding compares the folder to with the manifest, and reads the parts of missing contents that an earlier Landing has left there:
// the caller must read the rest of them, by ReadContents.
func NewLanding(ctx context.Context, to string, m Manifest) (*Landing, error) {
	var paths []string
	for _, entry := range m.Entries {
		name, err := Unescape(entry.Path)
		if err != nil {
			return nil, err
		}
		paths = append(paths, name)
	}
	here, err := Scan(ctx, to, OnlyPaths(paths))
	if err != nil {
		return nil, err
	}
	present := map[string]Digest{}
	for _, entry := range here.Entries {
		present[entry.Path] = entry.Content
	}
	l := &Landing{places: map[Digest][]Entry{}, begun: map[Digest]Begun{}, folders: map[string]bool{}}
	for _, entry := range m.Entries {
		if entry.Kind != File {
			l.others = append(l.others, entry)
			continue
		}
		name, err := Unescape(entry.Path)
		if err != nil {
			return nil, err
		}
		l.folders[path.Dir(name)] = true
		if present[entry.Path] != entry.Content {
			if l.places[entry.Content] == nil {
				l.order = append(l.order, entry.Content)
			}
			l.places[entry.Content] = append(l.places[entry.Content], entry)
		}
	}
	if l.root, err = os.OpenRoot(to); err != nil {
		return nil, fmt.Errorf("opening the folder to receive files: %w", err)
	}
	if one, other := sameFolded(m); one != "" && folds(l.root) {
		return nil, errors.Join(fail.Becausef(fail.UnsafeTree, "receiving files into %s: its file system, as of a Mac, would store %s and %s "+
			"as one file; choose a folder on another one", to, one, other), l.root.Close())
	}
	for _, digest := range l.order {
		part, err := l.readPart(ctx, digest)
		if err != nil {
			return nil, errors.Join(err, l.root.Close())
		}
		l.begun[digest] = part
	}
	return l, nil
}

// sameFolded returns two paths that differ in upper and lower case alone, "" for none.
func sameFolded(m Manifest) (one, other string) {
	seen := map[string]string{}
	for _, entry := range m.Entries {
		folded := strings.ToLower(entry.Path)
		if one, twice := seen[folded]; twice {
			return one, entry.Path
		}
		seen[folded] = entry.Path
	}
	return "", ""
}

// folds reports whether the folder's file system takes upper and lower case for the same.
func folds(root *os.Root) bool {
	name := Partial + "case"
	if err := root.Mkdir(name, 0o700); err != nil {
		return false // the first file will fail, too
	}
	_, err := root.Stat(strings.ToUpper(name))
	_ = root.Remove(name)
	return err == nil
}

// readPart reads what an earlier Landing has left of a content.
func (l *Landing) readPart(ctx context.Context, digest Digest) (Begun, error) {
	part := Begun{Sum: sha256.New()}
	partial, err := l.partial(digest)
	if err != nil {
		return part, err
	}
	file, err := claimfile.OpenIn(l.root, partial)
	if err != nil {
		return part, nil // there is none, or something else in its place, which Put reports
	}
	defer file.Close()
	part.Size, err = io.Copy(part.Sum, io.LimitReader(contextReader{ctx, file}, l.places[digest][0].Size))
	if err != nil {
		return part, fmt.Errorf("reading what came of a file before: %w", err)
	}
	return part, nil
}

// partial returns the path of the file with the first bytes of a missing content. Its name has the content, so that it is never continued
// with another one.
func (l *Landing) partial(digest Digest) (string, error) {
	name, err := Unescape(l.places[digest][0].Path)
	return path.Join(path.Dir(name), Partial+string(digest)), err
}

// Begun returns the part of a missing content that is here, for ReadContents.
func (l *Landing) Begun(digest Digest) Begun {
	part, ok := l.begun[digest]
	if !ok {
		part.Sum = sha256.New()
		l.begun[digest] = part
	}
	return part
}

// From returns the sizes of the parts that are here, for WriteContents.
func (l *Landing) From() map[Digest]int64 {
	from := map[Digest]int64{}
	for digest, part := range l.begun {
		if part.Size > 0 {
			from[digest] = part.Size
		}
	}
	return from
}

// Close closes the folder.
func (l *Landing) Close() { _ = l.root.Close() }

// Landed counts the files that have arrived.
func (l *Landing) Landed() int { return l.landed }

// Missing returns the contents that the folder lacks, in the order of the files.
func (l *Landing) Missing() []Digest { return slices.Clone(l.order) }

// Put writes a content behind the part of it that is here, gives it its first place, and copies it to the others.
func (l *Landing) Put(digest Digest, content io.Reader) error {
	first := ""
	for _, entry := range l.places[digest] {
		name, err := Unescape(entry.Path)
		if err != nil {
			return err
		}
		if first == "" {
			first, err = name, l.write(name, entry, content)
		} else {
			err = l.copy(name, entry, first)
		}
		if err != nil {
			return err
		}
		l.landed++
	}
	l.order = slices.DeleteFunc(l.order, func(other Digest) bool { return other == digest })
	delete(l.begun, digest)
	return nil
}

func (l *Landing) copy(name string, entry Entry, first string) error {
	file, err := claimfile.OpenIn(l.root, first)
	if err != nil {
		return err
	}
	defer file.Close()
	return l.create(name, func(partial string) error {
		target, err := claimfile.OpenFileIn(l.root, partial, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, modeOf(entry))
		if err != nil {
			return err
		}
		if _, err := io.Copy(target, file); err != nil {
			return errors.Join(err, target.Close(), l.root.Remove(partial))
		}
		return target.Close()
	})
}

// modeOf is without the umask.
func modeOf(entry Entry) os.FileMode {
	if entry.Executable {
		return 0o777
	}
	return 0o666
}

// write appends to the part of the content that is here. It keeps what came, unless that cannot be continued.
func (l *Landing) write(name string, entry Entry, from io.Reader) error {
	if err := l.makeFolder(name); err != nil {
		return err
	}
	partial, err := l.partial(entry.Content)
	if err != nil {
		return err
	}
	file, err := claimfile.OpenFileIn(l.root, partial, os.O_CREATE|os.O_WRONLY, modeOf(entry))
	if err != nil {
		return err
	}
	part := l.Begun(entry.Content)
	_, err = file.Seek(part.Size, io.SeekStart)
	if err == nil {
		err = truncate(file, part.Size)
	}
	var came int64
	if err == nil {
		// The reader fails at the end of a damaged content, so that never gets its name.
		came, err = io.Copy(file, from)
	}
	part.Size += came
	l.begun[entry.Content] = part
	closed := file.Close()
	var local *fs.PathError
	switch {
	case errors.Is(err, ErrDamaged), errors.Is(err, errShort), errors.As(err, &local), closed != nil:
		delete(l.begun, entry.Content)
		return errors.Join(err, closed, l.root.Remove(partial))
	case err != nil:
		return err
	}
	return l.root.Rename(partial, name)
}

// errShort is a part of a content that has become shorter.
var errShort = errors.New("what came of a file before is not there any more")

// truncate never makes a file longer: it would get zeros that no digest has seen.
func truncate(file *os.File, size int64) error {
	if info, err := file.Stat(); err != nil || info.Size() < size {
		return cmp.Or(err, errShort)
	}
	return file.Truncate(size)
}

func (l *Landing) makeFolder(name string) error {
	if folder := path.Dir(name); folder != "." {
		return l.root.MkdirAll(folder, 0o777)
	}
	return nil
}

func (l *Landing) create(name string, write func(partial string) error) error {
	if err := l.makeFolder(name); err != nil {
		return err
	}
	partial := path.Join(path.Dir(name), partialName(path.Base(name)))
	if err := write(partial); err != nil {
		return err
	}
	return l.root.Rename(partial, name)
}

// Finish creates the links and empty folders. The manifest was checked, so no link leads out of the folder.
func (l *Landing) Finish() error {
	for _, entry := range l.others {
		name, err := Unescape(entry.Path)
		if err != nil {
			return err
		}
		if entry.Kind == Folder {
			err = l.root.MkdirAll(name, 0o777)
		} else {
			err = l.link(name, entry.Target)
		}
		if err != nil {
			return err
		}
	}
	return l.removeParts()
}

// partAge is how old the part of a content must be that no file has any more: another upload may be writing a younger one.
const partAge = time.Hour

// entries lists a folder. Something else in its place is an error, and does not block.
func (l *Landing) entries(folder string) ([]fs.DirEntry, error) {
	opened, err := l.root.OpenFile(folder, os.O_RDONLY|syscall.O_DIRECTORY, 0) //nolint:forbidigo // a FIFO is not a folder
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return opened.ReadDir(-1)
}

// removeParts removes parts of contents that files had before.
func (l *Landing) removeParts() error {
	for folder := range l.folders {
		entries, err := l.entries(folder)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			digest, ok := strings.CutPrefix(entry.Name(), Partial)
			if !ok || !Digest(digest).Valid() || !entry.Type().IsRegular() {
				continue
			}
			if info, err := entry.Info(); err != nil || time.Since(info.ModTime()) < partAge {
				continue
			}
			if err := l.root.Remove(path.Join(folder, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// link replaces an existing link, for a link such as latest changes after every checkpoint.
func (l *Landing) link(name, escaped string) error {
	target, err := Unescape(escaped)
	if err != nil {
		return err
	}
	if present, err := l.root.Readlink(name); err == nil && present == target {
		return nil
	}
	return l.create(name, func(partial string) error {
		if err := l.root.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return l.root.Symlink(target, partial)
	})
}
