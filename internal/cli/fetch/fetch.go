package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// attempts are how often files are looked for anew that have changed meanwhile.
const attempts = 5

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
// content is not sent again, so that what broke off goes on. What lies in the claim's folder
// record comes into the folder logs. A training may write meanwhile: a file that grows is
// fetched as it was when it was found, and after another change they are all found anew.
// Errors: UnsafeTree, SyncFailed, PodsNotReady, PermissionDenied.
func Fetch(ctx context.Context, clients *kube.Clients, claim Claim, paths []string, record, to string) (result Result, err error) {
	s, err := open(ctx, clients, claim)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, s.remove(ctx)) }()
	fetched := 0
	for range attempts {
		result, err = s.fetch(ctx, paths, record, to)
		fetched += result.Fetched
		if fail.ReasonOf(err) != fail.SyncFailed || ctx.Err() != nil {
			break
		}
	}
	result.Fetched = fetched
	return result, err
}

// fetch is Fetch, once.
func (s *source) fetch(ctx context.Context, paths []string, record, to string) (result Result, err error) {
	found, err := s.list(ctx, paths)
	if err != nil {
		return result, err
	}
	result.Absent = found.Absent
	landed, err := moved(found.Manifest, record, "logs")
	if err != nil {
		return result, err
	}
	result.Files, result.Bytes = found.Manifest.Totals()
	if len(found.Manifest.Entries) == 0 {
		return result, nil
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return result, fmt.Errorf("making the folder to fetch into: %w", err)
	}
	landing, err := tree.NewLanding(ctx, to, landed)
	if err != nil {
		return result, err
	}
	defer landing.Close()
	if missing := landing.Missing(); len(missing) > 0 {
		if err := s.send(ctx, found.Manifest, missing, landing.Put); err != nil {
			result.Fetched = landing.Landed()
			return result, err
		}
	}
	result.Fetched = landing.Landed()
	return result, landing.Finish()
}

// moved is the manifest with what lies in one folder in another one. UnsafeTree where
// something lies there already.
func moved(m tree.Manifest, from, to string) (tree.Manifest, error) {
	m.Entries = slices.Clone(m.Entries)
	for i, entry := range m.Entries {
		if rest, ok := strings.CutPrefix(entry.Path, from+"/"); ok {
			m.Entries[i].Path = to + "/" + rest
		}
	}
	slices.SortFunc(m.Entries, func(a, b tree.Entry) int { return strings.Compare(a.Path, b.Path) })
	return m, m.Check()
}

// File writes one file of the claim to out as it comes. It is verified at its end: of one that was
// damaged or cut off on its way there is an error behind what was written.
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
