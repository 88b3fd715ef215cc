package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Partial is before the name of what is not whole yet.
const Partial = ".mlenv-partial-"

// Landing is a folder that files come into. Nothing is written outside of it, and nothing
// has its name before it is whole and verified.
type Landing struct {
	root *os.Root
	// places are where a content that is missing belongs, by name.
	places map[Digest][]Entry
	order  []Digest
	others []Entry
	landed int
}

// NewLanding looks at what is in the folder to already, of what the manifest lists.
func NewLanding(ctx context.Context, to string, m Manifest) (*Landing, error) {
	root, err := os.OpenRoot(to)
	if err != nil {
		return nil, fmt.Errorf("opening the folder that files come into: %w", err)
	}
	var paths []string
	for _, entry := range m.Entries {
		name, err := Unescape(entry.Path)
		if err != nil {
			return nil, errors.Join(err, root.Close())
		}
		paths = append(paths, name)
	}
	here, err := Scan(ctx, to, Only(paths))
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	had := map[string]Digest{}
	for _, entry := range here.Entries {
		had[entry.Path] = entry.Content
	}
	l := &Landing{root: root, places: map[Digest][]Entry{}}
	for _, entry := range m.Entries {
		switch {
		case entry.Kind != File:
			l.others = append(l.others, entry)
		case had[entry.Path] != entry.Content:
			if l.places[entry.Content] == nil {
				l.order = append(l.order, entry.Content)
			}
			l.places[entry.Content] = append(l.places[entry.Content], entry)
		}
	}
	return l, nil
}

// Close lets the folder go.
func (l *Landing) Close() { _ = l.root.Close() }

// Landed is how many files have come.
func (l *Landing) Landed() int { return l.landed }

// Missing are the contents that are to come, in the order of the files.
func (l *Landing) Missing() []Digest { return l.order }

// Put writes a content to its first place, and copies it to the others.
func (l *Landing) Put(digest Digest, content io.Reader) error {
	first := ""
	for i, entry := range l.places[digest] {
		name, err := Unescape(entry.Path)
		if err != nil {
			return err
		}
		if i == 0 {
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

// copy writes what is at first. As many files may have one content as there are, empty ones say.
func (l *Landing) copy(name string, executable bool, first string) error {
	file, err := l.root.Open(first)
	if err != nil {
		return err
	}
	defer file.Close()
	return l.write(name, executable, file)
}

func (l *Landing) write(name string, executable bool, from io.Reader) error {
	folder, base := filepath.Split(filepath.FromSlash(name))
	if folder = strings.TrimSuffix(folder, string(filepath.Separator)); folder != "" {
		if err := l.root.MkdirAll(folder, 0o777); err != nil {
			return err
		}
	}
	mode := os.FileMode(0o666) // less the umask
	if executable {
		mode = 0o777
	}
	whole, half := filepath.Join(folder, base), filepath.Join(folder, Partial+base)
	file, err := l.root.OpenFile(half, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	// The reader fails at the end of what is damaged, so nothing damaged gets its name.
	if _, err := io.Copy(file, from); err != nil {
		return errors.Join(err, file.Close(), l.root.Remove(half))
	}
	if err := file.Close(); err != nil {
		return err
	}
	return l.root.Rename(half, whole)
}

// Finish makes links and empty folders, which lead nowhere else: the manifest was checked.
func (l *Landing) Finish() error {
	for _, entry := range l.others {
		name, err := Unescape(entry.Path)
		if err != nil {
			return err
		}
		if entry.Kind == Folder {
			if err := l.root.MkdirAll(name, 0o777); err != nil {
				return err
			}
			continue
		}
		target, err := Unescape(entry.Target)
		if err != nil {
			return err
		}
		if err := l.link(name, target); err != nil {
			return err
		}
	}
	return nil
}

// link makes a link, in place of what has its name: one that leads elsewhere now, as latest
// does after every checkpoint, is no error.
func (l *Landing) link(name, target string) error {
	folder, base := filepath.Split(filepath.FromSlash(name))
	if folder = filepath.Clean(folder); folder != "." {
		if err := l.root.MkdirAll(folder, 0o777); err != nil {
			return err
		}
	}
	if had, err := l.root.Readlink(name); err == nil && had == target {
		return nil
	}
	half := filepath.Join(folder, Partial+base)
	if err := l.root.Remove(half); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := l.root.Symlink(target, half); err != nil {
		return err
	}
	return l.root.Rename(half, name)
}
