package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Partial is the prefix of the name of a file that is not complete yet.
const Partial = ".mlenv-partial-"

// Landing receives the files of a tree into a folder. It writes nothing outside of the folder, and gives a file its
// name only when the file is complete and verified.
type Landing struct {
	root *os.Root
	// places are the entries of each missing content, order the contents in the order of the files.
	places map[Digest][]Entry
	order  []Digest
	others []Entry
	landed int
}

// NewLanding compares the folder to with the manifest.
func NewLanding(ctx context.Context, to string, m Manifest) (*Landing, error) {
	var paths []string
	for _, entry := range m.Entries {
		name, err := Unescape(entry.Path)
		if err != nil {
			return nil, err
		}
		paths = append(paths, name)
	}
	here, err := Scan(ctx, to, Only(paths))
	if err != nil {
		return nil, err
	}
	present := map[string]Digest{}
	for _, entry := range here.Entries {
		present[entry.Path] = entry.Content
	}
	l := &Landing{places: map[Digest][]Entry{}}
	for _, entry := range m.Entries {
		switch {
		case entry.Kind != File:
			l.others = append(l.others, entry)
		case present[entry.Path] != entry.Content:
			if l.places[entry.Content] == nil {
				l.order = append(l.order, entry.Content)
			}
			l.places[entry.Content] = append(l.places[entry.Content], entry)
		}
	}
	if l.root, err = os.OpenRoot(to); err != nil {
		return nil, fmt.Errorf("opening the folder to receive files: %w", err)
	}
	return l, nil
}

// Close closes the folder.
func (l *Landing) Close() { _ = l.root.Close() }

// Landed counts the files that have arrived.
func (l *Landing) Landed() int { return l.landed }

// Missing returns the contents that the folder lacks, in the order of the files.
func (l *Landing) Missing() []Digest { return l.order }

// Put writes a content to its first place, and copies it to the others.
func (l *Landing) Put(digest Digest, content io.Reader) error {
	first := ""
	for _, entry := range l.places[digest] {
		name, err := Unescape(entry.Path)
		if err != nil {
			return err
		}
		if first == "" {
			first, err = name, l.write(name, entry.Executable, content)
		} else {
			err = l.copy(name, entry.Executable, first)
		}
		if err != nil {
			return err
		}
		l.landed++
	}
	return nil
}

func (l *Landing) copy(name string, executable bool, first string) error {
	file, err := claimfile.OpenIn(l.root, first)
	if err != nil {
		return err
	}
	defer file.Close()
	return l.write(name, executable, file)
}

func (l *Landing) write(name string, executable bool, from io.Reader) error {
	mode := os.FileMode(0o666) // less the umask
	if executable {
		mode = 0o777
	}
	return l.create(name, func(partial string) error {
		file, err := claimfile.OpenFileIn(l.root, partial, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		// The reader fails at the end of a damaged content, so that never gets its name.
		if _, err := io.Copy(file, from); err != nil {
			return errors.Join(err, file.Close(), l.root.Remove(partial))
		}
		return file.Close()
	})
}

func (l *Landing) create(name string, write func(partial string) error) error {
	folder := path.Dir(name)
	if folder != "." {
		if err := l.root.MkdirAll(folder, 0o777); err != nil {
			return err
		}
	}
	partial := path.Join(folder, Partial+path.Base(name))
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
