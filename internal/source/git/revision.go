package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// minShort is how many digits of a hash git itself shows at least.
const minShort = 7

// fetched is the ref of what was fetched.
const fetched = "refs/fetched"

// history are the refs that a repository's history is fetched by.
var history = []string{"+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"}

// ref is a name that the remote repository has.
type ref struct {
	name string
	hash string
	// target is the ref that a symbolic one means, empty if the server does not tell.
	target string
}

// fetch receives the commit that the revision means and returns its hash.
func (r *repository) fetch(ctx context.Context, revision string) (string, error) {
	commit, err := r.fetchRevision(ctx, revision)
	return commit, r.explain(ctx, err)
}

func (r *repository) fetchRevision(ctx context.Context, revision string) (string, error) {
	if isHash(revision) {
		return r.fetchCommit(ctx, revision, strings.ToLower(revision))
	}
	refs, err := r.refs(ctx)
	if err != nil {
		return "", err
	}
	found, ok, err := r.find(refs, revision)
	if err != nil {
		return "", err
	}
	if !ok {
		hash, err := r.expand(ctx, revision, refs)
		if err != nil {
			return "", err
		}
		return r.fetchCommit(ctx, revision, hash)
	}
	r.log.Info(fmt.Sprintf("Fetching %s of %s, %s.", describe(found), r.address, found.hash))
	err = r.receive(ctx, "--depth=1", "+"+found.name+":"+fetched)
	if said(err, messageNoShallow) {
		err = r.receive(ctx, "+"+found.name+":"+fetched)
	}
	if err != nil {
		return "", err
	}
	return r.peel(ctx, revision, fetched)
}

// receive runs git fetch.
func (r *repository) receive(ctx context.Context, args ...string) error {
	_, err := r.git(ctx, append([]string{"fetch", "--progress", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance", "--no-write-fetch-head"},
		separate(args, "origin")...)...)
	return err
}

// separate puts the remote between options and refspecs.
func separate(args []string, remote string) []string {
	first := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "--") })
	return slices.Insert(slices.Clone(args), first, remote)
}

// refs are all names that the server has, HEAD among them.
func (r *repository) refs(ctx context.Context) ([]ref, error) {
	text, err := r.git(ctx, "ls-remote", "--quiet", "--symref", "origin")
	if err != nil {
		return nil, err
	}
	var refs []ref
	targets := map[string]string{}
	for line := range strings.Lines(text) {
		hash, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if target, isTarget := strings.CutPrefix(hash, "ref: "); isTarget {
			targets[name] = target
			continue
		}
		if ok && !strings.HasSuffix(name, "^{}") {
			refs = append(refs, ref{name: name, hash: hash, target: targets[name]})
		}
	}
	return refs, nil
}

// fetchCommit receives one commit by its hash, or the history if the server
// does not send it in another way.
func (r *repository) fetchCommit(ctx context.Context, revision, hash string) (string, error) {
	r.log.Info(fmt.Sprintf("Fetching commit %s of %s.", hash, r.address))
	err := r.receive(ctx, "--depth=1", "+"+hash+":"+fetched)
	switch {
	case said(err, messageUnadvertised) || said(err, messageNoShallow):
		r.log.Warn("The server does not give single commits; fetching the whole history.")
		if err = r.receive(ctx, history...); err != nil {
			return "", err
		}
		if _, err := r.git(ctx, "cat-file", "-e", hash); err != nil {
			return "", r.noCommit(hash)
		}
	case said(err, messageNotOurRef):
		return "", r.noCommit(hash)
	case err != nil:
		return "", err
	}
	return r.peel(ctx, revision, hash)
}

// peel follows annotated tags to their commit.
func (r *repository) peel(ctx context.Context, revision, object string) (string, error) {
	kind, err := r.git(ctx, "cat-file", "-t", object+"^{}")
	if err != nil {
		return "", err
	}
	if kind = strings.TrimSpace(kind); kind != "commit" {
		return "", fail.Becausef(fail.RevisionNotFound, "finding revision %q of %s: it is a %s: want a commit", revision, r.address, kind)
	}
	commit, err := r.git(ctx, "rev-parse", "--verify", object+"^{commit}")
	return strings.TrimSpace(commit), err
}

func (r *repository) noCommit(commit string) error {
	return fail.Advise(
		fail.Becausef(fail.RevisionNotFound, "finding commit %s of %s: the repository does not have it: want one that was pushed", commit, r.address),
		"git branch --remotes --contains %s   # in your clone: none means that it was not pushed", commit)
}

// find looks a revision up among the refs. It is not found, without an error,
// if it may be a shortened hash.
func (r *repository) find(refs []ref, revision string) (ref, bool, error) {
	if revision == "" {
		revision = "HEAD"
	}
	names := []string{"refs/heads/" + revision, "refs/tags/" + revision, "refs/" + revision, revision}
	if !strings.HasPrefix(revision, "refs/") && revision != "HEAD" {
		names = names[:3]
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
	all := named(refs)
	if !isShort(revision) {
		return ref{}, false, r.unknown(revision, all)
	}
	for _, t := range all {
		if strings.HasPrefix(t.hash, strings.ToLower(revision)) {
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

// named are the branches and tags.
func named(refs []ref) []ref {
	return slices.DeleteFunc(slices.Clone(refs), func(r ref) bool {
		return !strings.HasPrefix(r.name, "refs/heads/") && !strings.HasPrefix(r.name, "refs/tags/")
	})
}

// tips are the different objects that refs name.
func tips(refs []ref) []string {
	var hashes []string
	for _, r := range refs {
		hashes = append(hashes, r.hash)
	}
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

// isShort reports whether a revision may be a shortened hash.
func isShort(revision string) bool {
	return len(revision) >= minShort && !strings.ContainsFunc(revision, func(r rune) bool {
		return !strings.ContainsRune("0123456789abcdefABCDEF", r)
	})
}

// isHash reports whether a revision is a whole hash.
func isHash(revision string) bool { return len(revision) == 40 && isShort(revision) }

// expand looks a shortened hash up among all commits, without their files, in a
// repository of its own.
func (r *repository) expand(ctx context.Context, short string, refs []ref) (string, error) {
	r.log.Info(fmt.Sprintf("Looking %s up in the history of %s.", short, r.address))
	all, err := r.open(ctx, r.address, "history", filepath.Join(r.scratch, "tmp"))
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(all.dir)
	all.abort = messageNoFilter
	if err := all.receive(ctx, append([]string{"--filter=tree:0"}, history...)...); err != nil {
		if errors.Is(err, errAborted) {
			return "", r.cannotExpand(short)
		}
		return "", err
	}
	text, err := all.git(ctx, "rev-list", "--all")
	if err != nil {
		return "", err
	}
	var found []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, strings.ToLower(short)) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	switch len(found) {
	case 0:
		return "", r.unknown(short, named(refs))
	case 1:
		return found[0], nil
	}
	return "", r.ambiguous(short, found)
}

func (r *repository) cannotExpand(short string) error {
	return fail.Advise(
		fail.Becausef(fail.RevisionNotFound,
			"finding revision %q of %s: no branch or tag is named so or lies there, and this server looks no shortened hash up: want all 40 digits", short, r.address),
		"git rev-parse %s   # in your clone", short)
}

func (r *repository) ambiguous(short string, found []string) error {
	return fail.Becausef(fail.RevisionNotFound, "finding revision %q of %s: %d commits begin so (%s): want more digits",
		short, r.address, len(found), strings.Join(found[:min(len(found), maxNear)], ", "))
}

func (r *repository) unknown(revision string, all []ref) error {
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
