// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// attempts is how often Fetch lists files that changed while it fetched them, and how often a connection may break without a byte.
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
// verifies every file by its SHA-256 before the file gets its name, and fetches no file that is already here with the same content. After
// a broken connection, and in another call, it continues at the byte where it was. A training may write meanwhile: a file that grows is
// fetched as it was when it was listed; after another change Fetch lists all files again. Errors: UnsafeTree, SyncFailed, PodsNotReady,
// PermissionDenied.
func Fetch(
	ctx context.Context, clients *kube.Clients, claim Claim, paths []Path, moved map[string]string, to string,
) (result Result, err error) {
	p, err := startPod(ctx, clients, claim)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, p.remove(ctx)) }()
	fetched := 0
	known := openMemory(to, claim.Name)
	for range attempts {
		result, err = p.fetch(ctx, paths, moved, to, known)
		fetched += result.Fetched
		if fail.ReasonOf(err) != fail.SyncFailed || ctx.Err() != nil {
			break
		}
		known.Files = nil // files have changed
	}
	result.Fetched = fetched
	return result, err
}

func (p *pod) fetch(ctx context.Context, paths []Path, moved map[string]string, to string, known *memory) (result Result, err error) {
	found, err := findPaths(paths, func(places []string) (listing, error) { return p.listFiles(ctx, places, known) })
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
	if err := known.save(); err != nil {
		return result, fmt.Errorf("storing the list of files: %w", err)
	}
	landing, err := tree.NewLanding(ctx, to, manifest)
	if err != nil {
		return result, err
	}
	defer landing.Close()
	err = p.receive(ctx, found.manifest, landing)
	result.Fetched = landing.Landed()
	if err != nil {
		return result, err
	}
	return result, errors.Join(landing.Finish(), known.remove())
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
	p, err := startPod(ctx, clients, claim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove(ctx)) }()
	found, err := p.listFiles(ctx, []string{path}, &memory{})
	if err != nil {
		return err
	}
	if len(found.Manifest.Entries) != 1 || found.Manifest.Entries[0].Kind != tree.File {
		return fail.Becausef(fail.InvalidInput, "looking for %s on claim %s/%s: there is no such file", path, clients.Namespace, claim.Name)
	}
	return p.receive(ctx, found.Manifest, newStream(found.Manifest.Entries[0].Content, out))
}

// stream is a receiver of one content that writes it to a stream.
type stream struct {
	digest tree.Digest
	to     io.Writer
	part   tree.Begun
	over   bool
}

func newStream(digest tree.Digest, to io.Writer) *stream {
	return &stream{digest: digest, to: to, part: tree.Begun{Sum: sha256.New()}}
}

func (s *stream) Missing() []tree.Digest {
	if s.over {
		return nil
	}
	return []tree.Digest{s.digest}
}

func (s *stream) From() map[tree.Digest]int64 {
	if s.part.Size == 0 {
		return nil
	}
	return map[tree.Digest]int64{s.digest: s.part.Size}
}

func (s *stream) Begun(tree.Digest) tree.Begun { return s.part }

func (s *stream) Put(_ tree.Digest, content io.Reader) error {
	n, err := io.Copy(s.to, content)
	s.part.Size += n
	s.over = err == nil
	return err
}
