// SPDX-License-Identifier: Apache-2.0

package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// lookLimits bounds ListFiles, which receives no contents of files.
var lookLimits = limits{
	disk: 256 << 20, files: usualLimits.files, output: usualLimits.output, memory: 320 << 20, cpu: time.Minute, silence: time.Minute,
	retries: 2, pause: time.Second,
}

// Listing is what a server shows of a commit without the contents of its files.
type Listing struct {
	// Commit is its hash, "" if the server did not show it.
	Commit string
	// Unproven is why the names of the files are not known, "" if they are.
	Unproven string
	// modes has the mode of each of git's tree entries, by path.
	modes map[string]string
}

// Modes of entries that are not files.
const (
	linkMode      = "120000"
	submoduleMode = "160000"
)

// ListFiles finds the commit of a source and the names of its files. It fetches no contents, which the server must support: a
// Listing is incomplete for a server without partial clones, and for a repository beyond the limits of ListFiles. dir must exist.
// The reasons are InvalidInput, RepositoryUnavailable, HostKeyUnknown and RevisionNotFound.
func ListFiles(ctx context.Context, log *slog.Logger, dir string, s Source) (Listing, error) {
	home, err := parseAddress(s.URL)
	if err != nil {
		return Listing{}, err
	}
	s.limits = cmp.Or(s.limits, lookLimits)
	programs, err := newPrograms(log, filepath.Join(dir, scratchName), s, home)
	if err != nil {
		return Listing{}, fmt.Errorf("looking at %s: %w", home, err)
	}
	defer claimfile.RemoveAll(dir, programs.scratch)
	r, err := programs.open(ctx, home, "repository", filepath.Join(programs.scratch, "tmp"))
	if err != nil {
		return Listing{}, r.explain(ctx, err)
	}
	r.namesOnly, r.abort = true, messageNoFilter
	// This alone shows whether the repository can be read. Later failures may come from the limits of ListFiles.
	refs, err := r.refs(ctx)
	if err != nil {
		return Listing{}, r.explain(ctx, err)
	}
	listing, err := r.look(ctx, s.Revision, refs)
	switch {
	case err == nil:
		return listing, nil
	case errors.Is(err, errAborted):
		return Listing{Unproven: "its server lists no files without their contents"}, nil
	case fail.ReasonOf(err) == fail.RevisionNotFound:
		return Listing{}, r.explain(ctx, err)
	}
	return Listing{Unproven: r.explain(ctx, err).Error()}, nil
}

func (r *repository) look(ctx context.Context, revision string, refs []ref) (Listing, error) {
	commit, err := r.fetchRevision(ctx, revision, refs)
	if err != nil {
		return Listing{}, err
	}
	// Sizes would need the contents.
	text, err := r.runGit(ctx, "ls-tree", "-r", "-z", "--full-tree", commit)
	if err != nil {
		return Listing{}, err
	}
	listing := Listing{Commit: commit, modes: map[string]string{}}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\x00"), "\x00") {
		// MODE KIND HASH, a tab, and the path.
		if about, name, ok := strings.Cut(line, "\t"); ok {
			listing.modes[name], _, _ = strings.Cut(about, " ")
		}
	}
	return listing, nil
}

// Has reports whether the commit has a file or a folder of that path, or may have it behind a link or in a submodule.
func (l Listing) Has(name string) bool {
	seen := l.WhyMissing(name)
	return seen == "" || l.hasFolder(path.Clean(name))
}

func (l Listing) hasFolder(name string) bool {
	for other := range l.modes {
		if strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}

// Submodule returns the submodule in which the path lies, "" for none.
func (l Listing) Submodule(name string) string { return l.ancestor(path.Clean(name), submoduleMode) }

// ancestor returns the entry of that mode in which name lies, "" for none.
func (l Listing) ancestor(name, mode string) string {
	for folder := path.Dir(name); folder != "." && folder != "/"; folder = path.Dir(folder) {
		if l.modes[folder] == mode {
			return folder
		}
	}
	return ""
}

// WhyMissing describes why the commit has no file of that path, "" if it has one or if only the contents of links and
// submodules would show it.
func (l Listing) WhyMissing(name string) string {
	name = path.Clean(name)
	_, known := l.modes[name]
	switch {
	case l.modes == nil, known, l.ancestor(name, linkMode) != "", l.ancestor(name, submoduleMode) != "":
		return ""
	case l.hasFolder(name):
		return "it is a folder in commit " + l.Commit
	}
	return fmt.Sprintf("it is not in commit %s, which has %s", l.Commit, tree.Nearby(slices.Collect(maps.Keys(l.modes)), name))
}
