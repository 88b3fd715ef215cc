package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/tree"
)

// partial is before the name of what is not whole yet.
const partial = ".mlenv-partial-"

// Result is what was fetched from one claim.
type Result struct {
	// Files there are, and bytes of them; Fetched of these were not here already.
	Files, Fetched int
	Bytes          int64
	// Absent are the paths at which the claim has nothing.
	Absent []string
}

// Fetch brings what lies at paths of the claim, relative to its top, into the folder to. Every
// file is verified by its SHA-256 before it has its name; one that is here with the same
// content is not sent again, so that what broke off goes on. Errors: UnsafeTree,
// SyncFailed, PodsNotReady, PermissionDenied.
func Fetch(ctx context.Context, clients *kube.Clients, claim Claim, paths []string, to string) (result Result, err error) {
	s, err := open(ctx, clients, claim)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, s.remove(ctx)) }()
	found, err := s.list(ctx, paths)
	if err != nil {
		return result, err
	}
	result.Absent = found.Absent
	result.Files, result.Bytes = found.Manifest.Totals()
	if len(found.Manifest.Entries) == 0 {
		return result, nil
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return result, fmt.Errorf("making the folder to fetch into: %w", err)
	}
	l, err := newLanding(ctx, to, found.Manifest)
	if err != nil {
		return result, err
	}
	defer l.root.Close()
	if missing := l.missing(); len(missing) > 0 {
		if err := s.send(ctx, found.Manifest, missing, l.put); err != nil {
			return result, err
		}
	}
	result.Fetched = l.fetched
	return result, l.links()
}

// File writes one file of the claim to out, once it is whole and verified.
func File(ctx context.Context, clients *kube.Clients, claim Claim, path string, out io.Writer) (err error) {
	s, err := open(ctx, clients, claim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.remove(ctx)) }()
	found, err := s.list(ctx, []string{path})
	if err != nil {
		return err
	}
	if len(found.Manifest.Entries) != 1 || found.Manifest.Entries[0].Kind != tree.File {
		return fail.Becausef(fail.InvalidInput, "looking for %s on claim %s/%s: there is no such file", path, clients.Namespace, claim.Name)
	}
	return s.send(ctx, found.Manifest, []tree.Digest{found.Manifest.Entries[0].Content}, func(_ tree.Digest, content io.Reader) error {
		_, err := io.Copy(out, content)
		return err
	})
}

// landing is the folder that files come into. Nothing is written outside of it.
type landing struct {
	root *os.Root
	// places are where a content that is missing belongs, by name.
	places  map[tree.Digest][]tree.Entry
	order   []tree.Digest
	others  []tree.Entry
	fetched int
}

// newLanding looks at what is here already.
func newLanding(ctx context.Context, to string, m tree.Manifest) (*landing, error) {
	root, err := os.OpenRoot(to)
	if err != nil {
		return nil, fmt.Errorf("opening the folder to fetch into: %w", err)
	}
	var paths []string
	for _, entry := range m.Entries {
		name, err := tree.Unescape(entry.Path)
		if err != nil {
			return nil, errors.Join(err, root.Close())
		}
		paths = append(paths, name)
	}
	here, err := tree.Scan(ctx, to, tree.Only(paths))
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	had := map[string]tree.Digest{}
	for _, entry := range here.Entries {
		had[entry.Path] = entry.Content
	}
	l := &landing{root: root, places: map[tree.Digest][]tree.Entry{}}
	for _, entry := range m.Entries {
		switch {
		case entry.Kind != tree.File:
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

// missing contents, in the order of the files.
func (l *landing) missing() []tree.Digest { return l.order }

// put writes a content to its first place, and copies it to the others.
func (l *landing) put(digest tree.Digest, content io.Reader) error {
	first := ""
	for i, entry := range l.places[digest] {
		name, err := tree.Unescape(entry.Path)
		if err != nil {
			return err
		}
		from := content
		if i > 0 {
			file, err := l.root.Open(first)
			if err != nil {
				return err
			}
			defer file.Close()
			from = file
		} else {
			first = name
		}
		if err := l.write(name, entry.Executable, from); err != nil {
			return err
		}
		l.fetched++
	}
	return nil
}

func (l *landing) write(name string, executable bool, from io.Reader) error {
	folder, base := filepath.Split(filepath.FromSlash(name))
	if folder = strings.TrimSuffix(folder, string(filepath.Separator)); folder != "" {
		if err := l.root.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	mode := os.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	whole, half := filepath.Join(folder, base), filepath.Join(folder, partial+base)
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

// links makes links and empty folders, which lead nowhere else: the manifest was checked.
func (l *landing) links() error {
	for _, entry := range l.others {
		name, err := tree.Unescape(entry.Path)
		if err != nil {
			return err
		}
		if entry.Kind == tree.Folder {
			if err := l.root.MkdirAll(name, 0o755); err != nil {
				return err
			}
			continue
		}
		target, err := tree.Unescape(entry.Target)
		if err != nil {
			return err
		}
		if folder := filepath.Dir(name); folder != "." {
			if err := l.root.MkdirAll(folder, 0o755); err != nil {
				return err
			}
		}
		if had, err := l.root.Readlink(name); err == nil && had == target {
			continue
		}
		if err := l.root.Symlink(target, name); err != nil {
			return err
		}
	}
	return nil
}
