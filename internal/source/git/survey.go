package git

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/ml-dev-env/ml-dev-env/internal/source/git/pack"
)

// maxEntries bounds the tree: a few small objects can spell billions of files.
const maxEntries = 5_000_000

// Modes of tree entries; the file type is in the highest bits.
const (
	typeMask   = 0o170000
	typeFolder = 0o040000
	typeFile   = 0o100000
	typeLink   = 0o120000
	typeModule = 0o160000
)

// submodule is a commit of another repository in a tree.
type submodule struct {
	// path is relative to the module's own root.
	path   string
	commit pack.Hash
}

// surveyor lists one module's tree.
type surveyor struct {
	*checkout
	module     *module
	submodules []submodule
}

// survey lists all that a module's commit has, and notes what is unsafe.
func (c *checkout) survey(m *module) ([]submodule, error) {
	commit, err := m.pack.Read(m.commit, pack.Commit)
	if err != nil {
		return nil, err
	}
	tree, err := header(commit, "tree")
	if err != nil {
		return nil, err
	}
	s := &surveyor{checkout: c, module: m}
	err = s.walk(tree, m.prefix)
	return s.submodules, err
}

func (s *surveyor) walk(tree pack.Hash, prefix string) error {
	content, err := s.module.pack.Read(tree, pack.Tree)
	if err != nil {
		return err
	}
	if len(content) == 0 && prefix != "" {
		s.module.folders = append(s.module.folders, prefix[:len(prefix)-1])
	}
	names := map[string]bool{}
	for len(content) > 0 {
		e, rest, err := readEntry(content)
		if err != nil {
			return fmt.Errorf("reading tree %s: %w", tree, err)
		}
		content = rest
		if s.entries++; s.entries > maxEntries {
			return fmt.Errorf("reading tree %s: more than %d files in all", tree, maxEntries)
		}
		bad := badName(e.name)
		switch {
		case bad == "" && names[e.name]:
			bad = "a name that is there twice"
		case bad == "" && len(prefix)+len(e.name) > maxPath:
			bad = fmt.Sprintf("a path of %d bytes: want at most %d", len(prefix)+len(e.name), maxPath)
		}
		if bad != "" {
			s.unsafe = append(s.unsafe, fmt.Sprintf("%q has %s", prefix+e.name, bad))
			continue
		}
		names[e.name] = true
		if err := s.add(e, prefix+e.name); err != nil {
			return err
		}
	}
	return nil
}

func (s *surveyor) add(e treeEntry, path string) error {
	switch e.mode & typeMask {
	case typeFolder:
		return s.walk(e.hash, path+"/")
	case typeFile:
		return s.addFile(file{path: path, content: e.hash, executable: e.mode&0o100 != 0})
	case typeLink:
		target, err := s.module.pack.Read(e.hash, pack.Blob)
		if err != nil {
			return err
		}
		s.links[path] = string(target)
		return nil
	case typeModule:
		s.module.folders = append(s.module.folders, path)
		s.submodules = append(s.submodules, submodule{path: path[len(s.module.prefix):], commit: e.hash})
		return nil
	}
	s.unsafe = append(s.unsafe, fmt.Sprintf("%q has mode %o: want a file, link, folder or submodule", path, e.mode))
	return nil
}

// addFile notes a file, and whether it is an LFS pointer.
func (s *surveyor) addFile(f file) error {
	kind, length, err := s.module.pack.Stat(f.content)
	if err != nil {
		return err
	}
	if kind != pack.Blob {
		return fmt.Errorf("%q is a %s: want a blob", f.path, kind)
	}
	isConfig := f.path == s.module.prefix+".lfsconfig"
	if length <= maxPointer || isConfig {
		content, err := s.module.pack.Read(f.content, pack.Blob)
		if err != nil {
			return err
		}
		if isConfig {
			s.module.lfsURL = lfsURL(string(content))
		}
		if p, ok := parsePointer(content); ok {
			s.module.pointers = append(s.module.pointers, pointerFile{pointer: p, file: f})
			return nil
		}
	}
	s.module.files = append(s.module.files, f)
	return nil
}

// treeEntry is one line of a tree.
type treeEntry struct {
	mode uint32
	name string
	hash pack.Hash
}

// readEntry reads the first entry: mode in octal digits, space, name, zero byte, hash.
func readEntry(content []byte) (e treeEntry, rest []byte, err error) {
	mode, rest, ok := bytes.Cut(content, []byte(" "))
	name, rest, ended := bytes.Cut(rest, []byte{0})
	if !ok || !ended || len(rest) < len(e.hash) {
		return e, nil, errors.New("it ends inside an entry")
	}
	bits, err := strconv.ParseUint(string(mode), 8, 32)
	if err != nil {
		return e, nil, fmt.Errorf("mode %q: want octal digits", mode)
	}
	e.mode, e.name = uint32(bits), string(name)
	copy(e.hash[:], rest)
	return e, rest[len(e.hash):], nil
}
