package git

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git/pack"
)

// minShort is how many digits of a hash git itself shows at least.
const minShort = 7

// fetchName receives the commit that a name or a shortened hash means, and
// returns the hash it was found by, which may be a tag's.
func (r *remote) fetchName(ctx context.Context, revision string) (p *pack.Pack, h pack.Hash, err error) {
	lookUp := false
	err = r.session(ctx, func(s *session) error {
		found, ok, err := r.find(s, revision)
		if err != nil {
			return err
		}
		if !ok {
			lookUp = s.can("filter")
			if !lookUp {
				return r.cannotExpand(revision)
			}
			return nil
		}
		h = found.hash
		r.log.Info(fmt.Sprintf("Fetching %s of %s, %s.", describe(found), r.address, h))
		p, err = r.receive(ctx, s, order{wants: []pack.Hash{h}})
		return err
	})
	if err != nil || !lookUp {
		return p, h, err
	}
	if h, err = r.expand(ctx, revision); err != nil {
		return nil, h, err
	}
	p, err = r.fetchCommit(ctx, h)
	return p, h, err
}

// find looks a revision up among the refs. It is not found, without an error,
// if it may be a shortened hash.
func (r *remote) find(s *session, revision string) (ref, bool, error) {
	if revision == "" {
		revision = "HEAD"
	}
	names := []string{"refs/heads/" + revision, "refs/tags/" + revision, "refs/" + revision, revision}
	if !strings.HasPrefix(revision, "refs/") && revision != "HEAD" {
		names = names[:3]
	}
	refs, err := s.refs(names...)
	if err != nil {
		return ref{}, false, err
	}
	var found []ref
	for _, name := range names {
		if i := slices.IndexFunc(refs, func(r ref) bool { return r.name == name }); i >= 0 {
			found = append(found, refs[i])
		}
	}
	if len(found) > 1 && found[0].hash != found[1].hash {
		r.log.Warn(fmt.Sprintf("%q is both %s and %s; taking the first. The full name, as %s, decides.",
			revision, describe(found[0]), describe(found[1]), found[1].name))
	}
	if len(found) > 0 {
		return found[0], true, nil
	}
	if revision == "HEAD" {
		return ref{}, false, fail.Advise(
			fail.Becausef(fail.RevisionNotFound, "finding HEAD of %s: it leads to no commit: want a default branch that exists", r.address),
			"git ls-remote --heads --tags %s   # and pass one of them as revision", r.address)
	}
	all, err := s.refs("refs/heads/", "refs/tags/")
	if err != nil {
		return ref{}, false, err
	}
	if !isShort(revision) {
		return ref{}, false, r.unknown(revision, all)
	}
	for _, t := range all {
		if strings.HasPrefix(t.hash.String(), strings.ToLower(revision)) {
			found = append(found, t)
		}
	}
	switch len(tips(found)) {
	case 0:
		return ref{}, false, nil
	case 1:
		return found[0], true, nil
	}
	return ref{}, false, r.ambiguous(revision, tips(found))
}

// isShort says whether a revision may be a shortened hash.
func isShort(revision string) bool {
	return len(revision) >= minShort && !strings.ContainsFunc(revision, func(r rune) bool {
		return !strings.ContainsRune("0123456789abcdefABCDEF", r)
	})
}

// expand looks a shortened hash up among all commits, without their files.
func (r *remote) expand(ctx context.Context, short string) (pack.Hash, error) {
	r.log.Info(fmt.Sprintf("Looking %s up in the history of %s.", short, r.address))
	var found []pack.Hash
	var all []ref
	err := r.session(ctx, func(s *session) error {
		var err error
		if all, err = s.refs("refs/heads/", "refs/tags/"); err != nil || len(all) == 0 {
			return err
		}
		p, err := r.receive(ctx, s, order{wants: tips(all), history: true, commits: true})
		if err != nil {
			return err
		}
		defer p.Close()
		found = p.Commits(strings.ToLower(short))
		return nil
	})
	switch {
	case err != nil:
		return pack.Hash{}, err
	case len(found) == 0:
		return pack.Hash{}, r.unknown(short, all)
	case len(found) > 1:
		return pack.Hash{}, r.ambiguous(short, found)
	}
	return found[0], nil
}

func (r *remote) cannotExpand(short string) error {
	return fail.Advise(
		fail.Becausef(fail.RevisionNotFound,
			"finding revision %q of %s: no branch or tag is named so or lies there, and this server looks no shortened hash up: want all 40 digits", short, r.address),
		"git rev-parse %s   # in your clone", short)
}

func (r *remote) ambiguous(short string, found []pack.Hash) error {
	names := make([]string, 0, maxNear)
	for _, h := range found[:min(len(found), maxNear)] {
		names = append(names, h.String())
	}
	return fail.Becausef(fail.RevisionNotFound, "finding revision %q of %s: %d commits begin so (%s): want more digits",
		short, r.address, len(found), strings.Join(names, ", "))
}

func (r *remote) unknown(revision string, all []ref) error {
	seen := "it has no branch"
	if names := near(revision, all); len(names) > 0 {
		seen = "near are " + strings.Join(names, ", ")
	}
	return fail.Advise(
		fail.Becausef(fail.RevisionNotFound, "finding revision %q of %s: no branch, tag or commit has this name: %s", revision, r.address, seen),
		"git ls-remote --heads --tags %s", r.address)
}

// maxNear is how many names are proposed.
const maxNear = 5

// near describes the branches and tags whose names are most like the word.
func near(word string, refs []ref) []string {
	type candidate struct {
		ref      ref
		distance int
	}
	var candidates []candidate
	word = strings.ToLower(word)
	for _, r := range refs {
		name := strings.ToLower(shortName(r.name))
		d := humanize.Distance(word, name)
		if strings.Contains(name, word) || strings.Contains(word, name) {
			d = min(d, 1)
		}
		candidates = append(candidates, candidate{r, d})
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return cmp.Compare(a.distance, b.distance) })
	var names []string
	for _, c := range candidates[:min(len(candidates), maxNear)] {
		names = append(names, describe(c.ref))
	}
	return names
}

func shortName(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, "refs/heads/"), "refs/tags/")
}

func describe(r ref) string {
	switch {
	case strings.HasPrefix(r.name, "refs/heads/"):
		return "branch " + shortName(r.name)
	case strings.HasPrefix(r.name, "refs/tags/"):
		return "tag " + shortName(r.name)
	case r.target != "":
		return "branch " + shortName(r.target) + " (" + r.name + ")"
	}
	return r.name
}
