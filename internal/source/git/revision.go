// SPDX-License-Identifier: Apache-2.0

package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/agext/levenshtein"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

var (
	// wholeHash is one of SHA-1, or of SHA-256 in repositories with extensions.objectFormat.
	wholeHash = regexp.MustCompile(`^(?:[0-9a-fA-F]{40}|[0-9a-fA-F]{64})$`)
	// shortHash has at least as many digits as git itself shows.
	shortHash = regexp.MustCompile(`^[0-9a-fA-F]{7,64}$`)
)

// sha256Digits is how many hexadecimal digits a SHA-256 hash has.
const sha256Digits = 64

const fetched = "refs/fetched"

var history = []string{"+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"}

type ref struct {
	name string
	hash string
	// target is the ref that a symbolic one stands for, empty if the server does not report it.
	target string
}

func (r *repository) fetch(ctx context.Context, revision string) (string, error) {
	var refs []ref
	var err error
	if !wholeHash.MatchString(revision) {
		if refs, err = r.refs(ctx); err != nil {
			return "", r.explain(ctx, err)
		}
	}
	commit, err := r.fetchRevision(ctx, revision, refs)
	if refs == nil && outputMatches(err, messageOtherHash) {
		if refs, err = r.refs(ctx); err == nil {
			commit, err = r.fetchRevision(ctx, revision, refs)
		}
	}
	return commit, r.explain(ctx, err)
}

// fetchRevision needs no refs for a whole hash, unless the server's hashes have another length.
func (r *repository) fetchRevision(ctx context.Context, revision string, refs []ref) (string, error) {
	digits := len(revision)
	if len(refs) > 0 {
		digits = len(refs[0].hash)
	}
	if err := r.setHashKind(ctx, digits == sha256Digits); err != nil {
		return "", err
	}
	if wholeHash.MatchString(revision) && digits == len(revision) {
		return r.fetchCommit(ctx, revision, strings.ToLower(revision))
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
	if outputMatches(err, messageNoShallow) && !r.namesOnly {
		err = r.receive(ctx, "--progress", "+"+found.name+":"+fetched)
	}
	if err != nil {
		return "", err
	}
	return r.peel(ctx, revision, fetched)
}

// receive runs git fetch with one more option.
func (r *repository) receive(ctx context.Context, option string, refspecs ...string) error {
	args := []string{"fetch", "--progress", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance", "--no-write-fetch-head", option}
	if r.namesOnly {
		// The check of objects would miss the contents.
		args = append([]string{"-c", "fetch.fsckObjects=false"}, append(args, "--filter=blob:none")...)
	}
	_, err := r.remote(ctx, slices.Concat(args, []string{"origin"}, refspecs)...)
	return err
}

// refs lists all names that the server has, including HEAD. It bounds the time for it, because git waits five minutes for a server
// that accepts connections and sends nothing.
func (r *repository) refs(ctx context.Context) ([]ref, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.limits.silence, fail.Advise(fail.Becausef(fail.RepositoryUnavailable,
		"fetching %s: the server did not list its branches and tags within %s: want a server that answers", r.address, r.limits.silence),
		adviseConnection))
	defer cancel()
	text, err := r.remote(ctx, "ls-remote", "--quiet", "--symref", "origin")
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

// fetchCommit receives one commit by its hash, or the whole history if the server does not send single commits.
func (r *repository) fetchCommit(ctx context.Context, revision, hash string) (string, error) {
	r.log.Info(fmt.Sprintf("Fetching commit %s of %s.", hash, r.address))
	err := r.receive(ctx, "--depth=1", "+"+hash+":"+fetched)
	switch {
	case !r.namesOnly && (outputMatches(err, messageUnadvertised) || outputMatches(err, messageNoShallow)):
		r.log.Warn("The server does not send single commits; fetching the whole history.")
		if err = r.receive(ctx, "--progress", history...); err != nil {
			return "", err
		}
		if _, err := r.runGit(ctx, "cat-file", "-e", hash); err != nil {
			return "", r.noCommit(hash)
		}
	case outputMatches(err, messageNotOurRef):
		return "", r.noCommit(hash)
	case err != nil:
		return "", err
	}
	return r.peel(ctx, revision, hash)
}

func (r *repository) peel(ctx context.Context, revision, object string) (string, error) {
	kind, err := r.runGit(ctx, "cat-file", "-t", object+"^{}")
	if err != nil {
		return "", err
	}
	if kind = strings.TrimSpace(kind); kind != "commit" {
		return "", fail.Becausef(fail.RevisionNotFound, "finding revision %q of %s: it is a %s: want a commit", revision, r.address, kind)
	}
	commit, err := r.runGit(ctx, "rev-parse", "--verify", object+"^{commit}")
	return strings.TrimSpace(commit), err
}

func (r *repository) noCommit(commit string) error {
	return fail.Advise(
		fail.Becausef(fail.RevisionNotFound, "finding commit %s of %s: the repository does not have it: want one that was pushed", commit,
			r.address),
		"git branch --remotes --contains %s   # in your clone: no output means that it was not pushed", commit)
}

// find looks a revision up among the refs. It finds none, without an error, if the revision may be a shortened hash.
func (r *repository) find(refs []ref, revision string) (ref, bool, error) {
	revision = cmp.Or(revision, "HEAD")
	var found []ref
	for _, name := range []string{"refs/heads/" + revision, "refs/tags/" + revision, "refs/" + revision, revision} {
		if i := slices.IndexFunc(refs, func(r ref) bool { return r.name == name }); i >= 0 {
			found = append(found, refs[i])
		}
	}
	if len(found) > 1 && found[0].hash != found[1].hash {
		r.log.Warn(fmt.Sprintf("%q is both %s and %s; using the first. Pass the full name, such as %s, to choose.",
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
	if !shortHash.MatchString(revision) || len(refs) > 0 && len(revision) > len(refs[0].hash) {
		return ref{}, false, r.unknown(revision, refs)
	}
	var hashes []string
	for _, t := range named(refs) {
		if strings.HasPrefix(t.hash, strings.ToLower(revision)) {
			found, hashes = append(found, t), append(hashes, t.hash)
		}
	}
	slices.Sort(hashes)
	if hashes = slices.Compact(hashes); len(hashes) > 1 {
		return ref{}, false, r.ambiguous(revision, hashes)
	}
	if len(hashes) == 1 {
		return found[0], true, nil
	}
	return ref{}, false, nil
}

func named(refs []ref) []ref {
	return slices.DeleteFunc(slices.Clone(refs), func(r ref) bool { return shortName(r.name) == r.name })
}

// expand looks a shortened hash up among all commits, without their files, in a repository of its own.
func (r *repository) expand(ctx context.Context, short string, refs []ref) (string, error) {
	r.log.Info(fmt.Sprintf("Looking %s up in the history of %s.", short, r.address))
	all, err := r.open(ctx, r.address, "history", filepath.Join(r.scratch, "tmp"))
	if err != nil {
		return "", err
	}
	defer claimfile.RemoveAll(r.scratch, all.dir)
	if err := all.setHashKind(ctx, r.sha256); err != nil {
		return "", err
	}
	all.abort = messageNoFilter
	err = all.receive(ctx, "--filter=tree:0", history...)
	if errors.Is(err, errAborted) {
		return "", fail.Advise(
			fail.Becausef(fail.RevisionNotFound,
				"finding revision %q of %s: no branch or tag has this name or hash, and this server looks no shortened hash up: want all %d digits",
				short, r.address, len(refs[0].hash)),
			"git rev-parse %s   # in your clone", short)
	}
	if err != nil {
		return "", err
	}
	text, err := all.runGit(ctx, "rev-list", "--all")
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
		return "", r.unknown(short, refs)
	case 1:
		return found[0], nil
	}
	return "", r.ambiguous(short, found)
}

// maxNear is how many names or hashes an error proposes.
const maxNear = 5

func (r *repository) ambiguous(short string, found []string) error {
	return fail.Becausef(fail.RevisionNotFound, "finding revision %q of %s: %d commits begin with it (%s): want more digits",
		short, r.address, len(found), strings.Join(found[:min(len(found), maxNear)], ", "))
}

func (r *repository) unknown(revision string, refs []ref) error {
	seen := "it has no branch"
	if names := nearestRefs(revision, named(refs)); len(names) > 0 {
		seen = "the nearest: " + strings.Join(names, ", ")
	}
	return fail.Advise(
		fail.Becausef(fail.RevisionNotFound, "finding revision %q of %s: no branch, tag or commit has this name; %s", revision, r.address, seen),
		"git ls-remote --heads --tags %s", r.address)
}

func nearestRefs(word string, refs []ref) []string {
	word = strings.ToLower(word)
	distance := map[string]int{}
	for _, r := range refs {
		name := strings.ToLower(shortName(r.name))
		distance[r.name] = levenshtein.Distance(word, name, nil)
		if strings.Contains(name, word) || strings.Contains(word, name) {
			distance[r.name] = min(distance[r.name], 1)
		}
	}
	slices.SortStableFunc(refs, func(a, b ref) int { return cmp.Compare(distance[a.name], distance[b.name]) })
	var names []string
	for _, r := range refs[:min(len(refs), maxNear)] {
		names = append(names, describe(r))
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
