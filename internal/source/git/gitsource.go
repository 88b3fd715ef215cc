// Package git fetches the files of one commit of a git repository. It
// speaks git's protocol itself, because files of any size must go through
// little memory, and needs no git, no ssh, no HOME and no passwd entry.
package git

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// Source is what to fetch.
type Source struct {
	// URL is https://, http://, ssh:// or user@host:path. User info in it is
	// used where Auth has nothing for it, and is shown nowhere.
	URL string
	// Revision is a branch, a tag, a commit's hash, whole or shortened, or a full
	// name as refs/pull/7/head. Empty is the remote's HEAD.
	Revision string
	// Submodules fetches them too, at any depth. Without it their folders stay empty.
	Submodules bool
	// LFS fetches the objects that Git LFS pointers stand for. Without it a
	// pointer is an error.
	LFS bool
	// Auth is sent to the URL's own host only.
	Auth Auth
}

// scratchName is the folder for what is needed on the way. No tree can have it.
const scratchName = ".git"

// Fetch writes the files of a commit to dir, which must be empty, and returns
// the commit's hash. Attributes that change content on checkout, as eol, are
// not applied. On failure dir is empty again. The reasons are
// InvalidInput, RepositoryUnavailable, HostKeyUnknown, RevisionNotFound,
// LFSPointers and UnsafeTree.
func Fetch(ctx context.Context, log *slog.Logger, dir string, s Source) (string, error) {
	home, err := parseAddress(s.URL)
	if err != nil {
		return "", err
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", home, err)
	}
	if len(there) > 0 {
		return "", fmt.Errorf("fetching %s into %s: it has %q: want an empty folder", home, dir, there[0].Name())
	}
	commit, err := fetch(ctx, log, dir, s, home)
	if err != nil {
		return "", errors.Join(err, empty(dir))
	}
	return commit, nil
}

func fetch(ctx context.Context, log *slog.Logger, dir string, s Source, home address) (commit string, err error) {
	scratch := filepath.Join(dir, scratchName)
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	c := newCheckout(log, root, scratch, s, home)
	defer c.close()
	if err := c.load(ctx, home, s.Revision, "", 0); err != nil {
		return "", err
	}
	if err := c.refuse(); err != nil {
		return "", err
	}
	if err := c.write(ctx); err != nil {
		return "", err
	}
	c.close()
	return c.modules[0].commit.String(), os.RemoveAll(scratch)
}

// empty removes what is in a folder.
func empty(dir string) error {
	there, err := os.ReadDir(dir)
	for _, entry := range there {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return err
}
