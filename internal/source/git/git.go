// SPDX-License-Identifier: Apache-2.0

// Package git fetches the files of one commit of a git repository. It calls the programs git and git-lfs with none of
// the user's configuration. This program is their ssh client and answers their questions for credentials (see
// Helper): OpenSSH refuses a UID without a passwd entry, and credentials must not appear in arguments or environments.
package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Source names what to fetch.
type Source struct {
	// URL is https://, http://, ssh:// or user@host:path. Its user info, which is never shown, is used if Auth has
	// none.
	URL string
	// Revision is a branch, a tag, a commit's hash, whole or shortened, or a full name such as refs/pull/7/head.
	// Empty is the remote's HEAD.
	Revision string
	// Submodules fetches them too, at any depth. Without it their folders stay empty.
	Submodules bool
	// LFS fetches the objects of Git LFS pointers. Without it a pointer is an error.
	LFS bool
	// Auth is sent to the URL's own host only.
	Auth Auth

	// limits are usualLimits unless a test sets them.
	limits limits
}

// limits bound what a server and a repository can use of this machine.
type limits struct {
	// disk bounds the objects and the files together, in bytes.
	disk int64
	// files bounds the number of files, output the bytes that a command of git prints, their names for example.
	files, output int
	// memory in bytes and cpu bound each process of git, on Linux only. A pack of some kilobytes can hold deltas that
	// take days to resolve.
	memory uint64
	cpu    time.Duration
	// silence is how long a server may send nothing. git servers send something every 5 s while they work.
	silence time.Duration
	// retries is how often a server that cannot be reached is tried again; pause comes before the first, and doubles.
	retries int
	pause   time.Duration
}

var usualLimits = limits{
	disk: 200 << 30, files: 500_000, output: 64 << 20, memory: 640 << 20, cpu: time.Hour, silence: 2 * time.Minute, retries: 4,
	pause: time.Second,
}

// scratchName is the folder for temporary files. No tree can have it.
const scratchName = ".git"

// Fetch writes the files of a commit to dir, which must be empty, and returns the commit's hash. Links may lead
// anywhere: package tree checks them. Attributes that change content on checkout, such as eol, are not applied. After
// a failure dir is empty again. The reasons are InvalidInput, RepositoryUnavailable, HostKeyUnknown,
// RevisionNotFound, LFSPointers, DiskFull and UnsafeTree.
func Fetch(ctx context.Context, log *slog.Logger, dir string, s Source) (commit string, err error) {
	home, err := parseAddress(s.URL)
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", home, err)
	}
	if len(entries) > 0 {
		return "", fmt.Errorf("fetching %s into %s: it has %q: want an empty folder", home, dir, entries[0].Name())
	}
	s.limits = cmp.Or(s.limits, usualLimits)
	defer func() {
		if err != nil {
			commit, err = "", errors.Join(err, empty(dir))
		}
	}()
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	programs, err := newPrograms(log, filepath.Join(dir, scratchName), s, home)
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", home, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	c := &checkout{programs: programs, root: root, source: s}
	if err := c.load(ctx, home, s.Revision, "", 0); err != nil {
		return "", err
	}
	if err := c.fetchPointers(ctx); err != nil {
		return "", err
	}
	return c.modules[0].commit, claimfile.RemoveAll(dir, programs.scratch)
}

func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		err = errors.Join(err, claimfile.RemoveAll(dir, filepath.Join(dir, entry.Name())))
	}
	return err
}
