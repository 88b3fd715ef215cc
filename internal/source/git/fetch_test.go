// SPDX-License-Identifier: Apache-2.0

package git

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// servers lists the four ways to reach one repository.
func servers(t *testing.T, root string) map[string]func(repository, revision string) Source {
	t.Setenv("HOME", "") // nothing may depend on it
	ways := map[string]func(string, string) Source{}
	for _, old := range []bool{false, true} {
		web, shell := newWebServer(t, root), newSSHServer(t, root)
		web.old, shell.old = old, old
		webAuth, shellAuth := web.goodAuth(t), shell.goodAuth(t)
		version := " version 2"
		if old {
			version = " version 0"
		}
		ways["https"+version] = func(repository, revision string) Source {
			s := web.source(repository, revision)
			s.Auth = webAuth
			return s
		}
		ways["ssh"+version] = func(repository, revision string) Source {
			s := shell.source(repository, revision)
			s.Auth = shellAuth
			return s
		}
	}
	return ways
}

func TestFetchRevision(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	put(t, repo, "file", "first")
	first := commit(t, repo, "first")
	git(t, repo, "", "tag", "light")
	put(t, repo, "file", "second")
	second := commit(t, repo, "second") // neither a branch nor a tag names it
	put(t, repo, "file", "third")
	third := commit(t, repo, "third")
	git(t, repo, "", "tag", "-a", "-m", "annotated", "v1")
	git(t, repo, "", "tag", "-a", "-m", "of a tag", "v1-again", "v1")
	git(t, repo, "", "checkout", "-q", "-b", "feature/x")
	put(t, repo, "file", "fourth")
	fourth := commit(t, repo, "fourth")
	git(t, repo, "", "update-ref", "refs/pull/7/head", first)
	git(t, repo, "", "checkout", "-q", "main")
	annotated := git(t, repo, "", "rev-parse", "v1")

	for name, source := range servers(t, root) {
		for _, test := range []struct {
			revision, commit, content string
		}{
			{"", third, "third"},
			{"HEAD", third, "third"},
			{"main", third, "third"},
			{"feature/x", fourth, "fourth"},
			{"heads/feature/x", fourth, "fourth"},
			{"light", first, "first"},
			{"v1", third, "third"},
			{"v1-again", third, "third"},
			{"refs/pull/7/head", first, "first"},
			{third, third, "third"},
			{second, second, "second"},
			{annotated, third, "third"},
			{fourth[:8], fourth, "fourth"},
			{strings.ToUpper(first[:12]), first, "first"},
		} {
			t.Run(name+"/"+test.revision, func(t *testing.T) {
				dir, commit, log, err := fetchInto(t, source("repo", test.revision))
				if err != nil {
					t.Fatal(err)
				}
				if commit != test.commit {
					t.Errorf("commit: got %s: want %s", commit, test.commit)
				}
				if diff := cmp.Diff(map[string]string{"file": `false "` + test.content + `"`}, listing(t, dir)); diff != "" {
					t.Errorf("files (-want +got):\n%s", diff)
				}
				history := strings.Contains(name, "version 0") && test.revision == second
				if got := strings.Contains(log, "whole history"); got != history {
					t.Errorf("took the whole history: got %t: want %t:\n%s", got, history, log)
				}
				if !history && !strings.Contains(log, "Received 3 objects") && !strings.Contains(log, "Received 4 objects") &&
					!strings.Contains(log, "Received 5 objects") {
					t.Errorf("the fetch got more than one commit:\n%s", log)
				}
			})
		}
	}
}

func TestFetchShortenedHash(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	put(t, repo, "file", "first")
	first := commit(t, repo, "first")
	put(t, repo, "file", "second")
	commit(t, repo, "second")
	for name, source := range servers(t, root) {
		t.Run(name+" cannot", func(t *testing.T) {
			git(t, repo, "", "config", "uploadpack.allowFilter", "false")
			_, _, _, err := fetchInto(t, source("repo", first[:10]))
			wantFailure(t, err, fail.RevisionNotFound, "looks no shortened hash up: want all 40 digits", "git rev-parse "+first[:10])
		})
		t.Run(name+" can", func(t *testing.T) {
			git(t, repo, "", "config", "uploadpack.allowFilter", "true")
			dir, commit, _, err := fetchInto(t, source("repo", first[:10]))
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := os.ReadFile(filepath.Join(dir, "file")); commit != first || string(got) != "first" {
				t.Errorf("got commit %s with %q: want %s", commit, got, first)
			}
			_, _, _, err = fetchInto(t, source("repo", "0123456789"))
			wantFailure(t, err, fail.RevisionNotFound, "no branch, tag or commit has this name; the nearest: branch main", "git ls-remote")
		})
	}
}

func TestFetchRevisionNotFound(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	put(t, repo, "file", "first")
	commit(t, repo, "first")
	git(t, repo, "", "branch", "experiment")
	git(t, repo, "", "tag", "v1.0")
	git(t, repo, "", "tag", "tree", "HEAD^{tree}")
	newRepository(t, root, "empty")
	missing := strings.Repeat("0123456789", 4)
	for name, source := range servers(t, root) {
		for _, test := range []struct {
			repository, revision, text, next string
		}{
			{"repo", "mian", "the nearest: branch main", "git ls-remote --heads --tags"},
			{"repo", "experment", "the nearest: branch experiment", ""},
			{"repo", "v1.1", "the nearest: tag v1.0", ""},
			{"repo", missing, "the repository does not have it: want one that was pushed", "git branch --remotes --contains"},
			{"repo", "tree", "it is a tree: want a commit", ""},
			{"empty", "", "it leads to no commit", ""},
			{"empty", "main", "it has no branch", ""},
		} {
			t.Run(name+"/"+test.repository+"/"+test.revision, func(t *testing.T) {
				_, _, _, err := fetchInto(t, source(test.repository, test.revision))
				wantFailure(t, err, fail.RevisionNotFound, test.text, test.next)
			})
		}
	}
}

// wantFailure checks reason, text and advice.
func wantFailure(t testing.TB, err error, reason fail.Reason, text, next string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error: want %s", reason)
	}
	if got := fail.ReasonOf(err); got != reason {
		t.Errorf("reason: got %s: want %s", got, reason)
	}
	if !strings.Contains(err.Error(), text) {
		t.Errorf("error:\n got %s\nwant %s", err, text)
	}
	if got := fail.NextOf(err); !strings.Contains(got, next) {
		t.Errorf("advice:\n got %s\nwant %s", got, next)
	}
	if shown := err.Error() + fail.NextOf(err); strings.Contains(shown, testToken) {
		t.Errorf("a secret is shown: %s", shown)
	}
}

func TestFetchBranchAndTagOfOneName(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	commit(t, repo, "first")
	git(t, repo, "", "tag", "both")
	second := commit(t, repo, "second")
	git(t, repo, "", "branch", "both")
	server := newWebServer(t, root)
	source := server.source("repo", "both")
	source.Auth = server.goodAuth(t)
	_, got, log, err := fetchInto(t, source)
	if err != nil || got != second {
		t.Errorf("got %s, %v: want the branch's %s", got, err, second)
	}
	if !strings.Contains(log, "is both branch both and tag both; using the first") {
		t.Errorf("log: got no warning:\n%s", log)
	}
}

func TestFetchTree(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	put(t, repo, "plain", "text\r\nas it is\n")
	put(t, repo, "run.sh", "#!/bin/sh\n")
	put(t, repo, "a/deep/er/copy.sh", "#!/bin/sh\n") // the same content, not executable
	put(t, repo, "zero", "")
	put(t, repo, "a/zero", "")
	put(t, repo, "bytes \xff\xfe", "no UTF-8")
	put(t, repo, "new\nline", "odd")
	put(t, repo, "-dash \"quote\" 'tick' \\back*", "odd")
	put(t, repo, "größe/数据", "utf-8")
	put(t, repo, ".gitignore", "nothing\n")
	put(t, repo, ".gitattributes", "* text=auto eol=crlf\n")
	for link, target := range map[string]string{
		"link": "plain", "a/up": "../plain", "a/deep/top": "../..", "dangling": "not/there", "loop": "loop",
		"through": "a/deep/top/plain",
	} {
		if err := os.Symlink(target, filepath.Join(repo, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(repo, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, repo, "", "config", "core.autocrlf", "false")
	commit(t, repo, "all")
	want := listing(t, repo)
	delete(want, ".git")
	for name, source := range servers(t, root) {
		t.Run(name, func(t *testing.T) {
			dir, _, _, err := fetchInto(t, source("repo", ""))
			if err != nil {
				t.Fatal(err)
			}
			// What git's attributes normalised when it was added stays normalised.
			got := listing(t, dir)
			want["plain"] = `false "text\nas it is\n"`
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFetchNeedsAnEmptyFolder(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "precious", "data")
	logger, _ := logged()
	_, err := Fetch(t.Context(), logger, dir, Source{URL: "https://git.example/repo"})
	if err == nil || !strings.Contains(err.Error(), `it has "precious": want an empty folder`) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(map[string]string{"precious": `false "data"`}, listing(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestFetchSHA256: a repository whose hashes have 64 digits. git negotiates no kind of hashes.
func TestFetchSHA256(t *testing.T) {
	root := t.TempDir()
	repo := filepath.Join(root, "repo")
	git(t, root, "", "init", "-q", "--object-format=sha256", repo)
	git(t, repo, "", "config", "uploadpack.allowAnySHA1InWant", "true")
	git(t, repo, "", "config", "uploadpack.allowFilter", "true")
	part := filepath.Join(root, "part")
	git(t, root, "", "init", "-q", "--object-format=sha256", part)
	put(t, part, "lib.py", "part")
	commit(t, part, "part")
	put(t, repo, "file", "first")
	first := commit(t, repo, "first")
	put(t, repo, "file", "second")
	second := commit(t, repo, "second")
	git(t, repo, "", "tag", "-a", "-m", "annotated", "v1", first)
	git(t, repo, "", "checkout", "-q", "-b", "with-part")
	git(t, repo, "", "submodule", "--quiet", "add", "../part", "part")
	third := commit(t, repo, "third")
	git(t, repo, "", "checkout", "-q", "-f", "main")
	usual := newRepository(t, root, "usual")
	put(t, usual, "file", "usual")
	commit(t, usual, "usual")
	for name, source := range servers(t, root) {
		for revision, want := range map[string]string{"": second, "main": second, "v1": first, second: second, strings.ToUpper(first): first,
			first[:40]: first, first[:9]: first} {
			if strings.Contains(name, "version 0") && strings.HasPrefix(first, revision) && revision != "" {
				continue // such a server sends no commit that it does not name
			}
			t.Run(name+"/"+revision, func(t *testing.T) {
				dir, commit, log, err := fetchInto(t, source("repo", revision))
				if err != nil {
					t.Fatalf("%v\n%s", err, log)
				}
				content, _ := os.ReadFile(filepath.Join(dir, "file"))
				if commit != want || string(content) != map[string]string{first: "first", second: "second"}[want] {
					t.Errorf("got commit %s with %q, want %s", commit, content, want)
				}
			})
		}
		t.Run(name+"/submodules", func(t *testing.T) {
			s := source("repo", "with-part")
			s.Submodules = true
			dir, commit, log, err := fetchInto(t, s)
			if err != nil {
				t.Fatalf("%v\n%s", err, log)
			}
			if content, _ := os.ReadFile(filepath.Join(dir, "part", "lib.py")); commit != third || string(content) != "part" {
				t.Errorf("got commit %s with %q, want %s with its part", commit, content, third)
			}
		})
		t.Run(name+"/not found", func(t *testing.T) {
			_, _, _, err := fetchInto(t, source("repo", strings.Repeat("0123456789abcdef", 4)))
			wantFailure(t, err, fail.RevisionNotFound, "the repository does not have it", "git branch --remotes")
			_, _, _, err = fetchInto(t, source("usual", second))
			wantFailure(t, err, fail.RevisionNotFound, "no branch, tag or commit has this name", "git ls-remote")
		})
		t.Run(name+"/look", func(t *testing.T) {
			for _, revision := range []string{"", second} {
				got, err := look(t, source("repo", revision))
				if err != nil || got.Commit != second || got.WhyMissing("file") != "" {
					t.Errorf("%q: got %+v, %v; want %s", revision, got, err, second)
				}
			}
		})
	}
}
