package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// lookLimits are those of Look, which receives no contents of files.
var lookLimits = limits{
	disk: 256 << 20, files: usualLimits.files, output: usualLimits.output, memory: 320 << 20, cpu: time.Minute, silence: time.Minute, retries: 2, pause: time.Second,
}

// Listing is what a server shows of a commit without the contents of its files.
type Listing struct {
	// Commit is its hash, "" if the server did not show it.
	Commit string
	// Unproven is why the names of the files are not known, "" if they are.
	Unproven string
	// leads is true for a link or a submodule, false for a file, by path.
	leads map[string]bool
}

// Look finds the commit of a source and the names of its files. It fetches no contents, which the server must support: a
// Listing is incomplete for a server without partial clones, and for a repository beyond Look's limits. dir must exist.
// The reasons are InvalidInput, RepositoryUnavailable, HostKeyUnknown and RevisionNotFound.
func Look(ctx context.Context, log *slog.Logger, dir string, s Source) (Listing, error) {
	home, err := parseAddress(s.URL)
	if err != nil {
		return Listing{}, err
	}
	s.limits = cmp.Or(s.limits, lookLimits)
	programs, err := newPrograms(log, filepath.Join(dir, scratchName), s, home)
	if err != nil {
		return Listing{}, fmt.Errorf("looking at %s: %w", home, err)
	}
	defer os.RemoveAll(programs.scratch)
	r, err := programs.open(ctx, home, "repository", filepath.Join(programs.scratch, "tmp"))
	if err != nil {
		return Listing{}, r.explain(ctx, err)
	}
	r.namesOnly, r.abort = true, messageNoFilter
	// This alone shows whether the repository can be read. Later failures may come from Look's own limits.
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
	text, err := r.git(ctx, "ls-tree", "-r", "-z", "--full-tree", commit)
	if err != nil {
		return Listing{}, err
	}
	listing := Listing{Commit: commit, leads: map[string]bool{}}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\x00"), "\x00") {
		// MODE KIND HASH, a tab, and the path.
		if about, name, ok := strings.Cut(line, "\t"); ok {
			listing.leads[name] = strings.HasPrefix(about, "120000") || strings.HasPrefix(about, "160000")
		}
	}
	return listing, nil
}

// Lacks describes why the commit has no file of that path, "" if it has one or if only the contents of links and
// submodules would show it.
func (l Listing) Lacks(name string) string {
	if l.leads == nil {
		return ""
	}
	name = path.Clean(name)
	if _, ok := l.leads[name]; ok {
		return ""
	}
	for folder := path.Dir(name); folder != "." && folder != "/"; folder = path.Dir(folder) {
		if l.leads[folder] {
			return ""
		}
	}
	folder := ""
	if at := path.Dir(name); at != "." {
		folder = at + "/"
	}
	var inside []string
	names := slices.Sorted(maps.Keys(l.leads))
	if slices.ContainsFunc(names, func(other string) bool { return strings.HasPrefix(other, name+"/") }) {
		return "it is a folder in commit " + l.Commit
	}
	for _, other := range names {
		if path.Base(other) == path.Base(name) {
			return fmt.Sprintf("it is not in commit %s, which has %s", l.Commit, other)
		}
		if rest, ok := strings.CutPrefix(other, folder); ok {
			inside = append(inside, strings.SplitAfter(rest, "/")[0])
		}
	}
	if inside = slices.Compact(inside); len(inside) == 0 {
		return fmt.Sprintf("it is not in commit %s, which has no folder %s", l.Commit, path.Dir(name))
	}
	const most = 12
	if more := len(inside) - most; more > 0 {
		inside = append(inside[:most], fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("it is not in commit %s, which has %s in %s", l.Commit, strings.Join(inside, ", "), cmp.Or(strings.TrimSuffix(folder, "/"), "its top folder"))
}
