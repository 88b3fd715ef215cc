package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// attempts is how often Fetch lists files that changed while it fetched them.
const attempts = 5

// Path is something to fetch: what lies at the first of its places, relative to the claim's top, that exists.
type Path struct {
	// Name is for messages.
	Name   string
	Places []string
}

// Result summarizes a fetch from one claim.
type Result struct {
	// Files and Bytes count the files on the claim; Fetched of them were new here.
	Files, Fetched int
	Bytes          int64
	// Absent has, by name, what is wrong with paths without files: for one that does not exist, what exists there.
	Absent map[string]string
	// LeftOut are special files, and links that lead out of the working directory of the run.
	LeftOut []string
}

// Fetch copies paths of the claim into the folder to. Folders of the claim that are in moved, which has their names here, get these. It
// verifies every file by its SHA-256 before the file gets its name, and fetches no file that is already here with the same content. A
// training may write meanwhile: a file that grows is fetched as it was when it was listed; after another change Fetch lists all files
// again. Errors: UnsafeTree, SyncFailed, PodsNotReady, PermissionDenied.
func Fetch(
	ctx context.Context, clients *kube.Clients, claim Claim, paths []Path, moved map[string]string, to string,
) (result Result, err error) {
	p, err := open(ctx, clients, claim)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, p.remove(ctx)) }()
	fetched := 0
	for range attempts {
		result, err = p.fetch(ctx, paths, moved, to)
		fetched += result.Fetched
		if fail.ReasonOf(err) != fail.SyncFailed || ctx.Err() != nil {
			break
		}
	}
	result.Fetched = fetched
	return result, err
}

func (p *pod) fetch(ctx context.Context, paths []Path, moved map[string]string, to string) (result Result, err error) {
	found, err := find(paths, func(places []string) (agent.FileListing, error) { return p.list(ctx, places) })
	if err != nil {
		return result, err
	}
	result.Absent, result.LeftOut = found.absent, found.leftOut
	manifest := found.manifest
	for _, from := range slices.Sorted(maps.Keys(moved)) {
		if manifest, err = move(manifest, from, moved[from]); err != nil {
			return result, err
		}
	}
	result.Files, result.Bytes = found.manifest.Totals()
	if result.Files == 0 {
		return result, nil
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return result, fmt.Errorf("creating the folder to fetch into: %w", err)
	}
	landing, err := tree.NewLanding(ctx, to, manifest)
	if err != nil {
		return result, err
	}
	defer landing.Close()
	if missing := landing.Missing(); len(missing) > 0 {
		err = p.send(ctx, found.manifest, missing, landing.Put)
	}
	result.Fetched = landing.Landed()
	if err != nil {
		return result, err
	}
	return result, landing.Finish()
}

// move returns the manifest with one folder under another name. Errors: UnsafeTree if the name is taken.
func move(m tree.Manifest, from, to string) (tree.Manifest, error) {
	m.Entries = slices.Clone(m.Entries)
	for i, entry := range m.Entries {
		if rest, ok := strings.CutPrefix(entry.Path, from+"/"); ok {
			m.Entries[i].Path = to + "/" + rest
		}
	}
	slices.SortFunc(m.Entries, func(a, b tree.Entry) int { return strings.Compare(a.Path, b.Path) })
	return m, m.Check()
}

// File writes one file of the claim to out as it arrives. A file that was damaged or cut off on its way ends with an error.
func File(ctx context.Context, clients *kube.Clients, claim Claim, path string, out io.Writer) (err error) {
	p, err := open(ctx, clients, claim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove(ctx)) }()
	found, err := p.list(ctx, []string{path})
	if err != nil {
		return err
	}
	if len(found.Manifest.Entries) != 1 || found.Manifest.Entries[0].Kind != tree.File {
		return fail.Becausef(fail.InvalidInput, "looking for %s on claim %s/%s: there is no such file", path, clients.Namespace, claim.Name)
	}
	return p.send(ctx, found.Manifest, []tree.Digest{found.Manifest.Entries[0].Content}, func(_ tree.Digest, content io.Reader) error {
		_, err := io.Copy(out, content)
		return err
	})
}
