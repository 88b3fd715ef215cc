// SPDX-License-Identifier: Apache-2.0

package git

import (
	"os"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// look looks into a new folder, which must be empty afterwards.
func look(t testing.TB, s Source) (Listing, error) {
	t.Helper()
	dir := t.TempDir()
	logger, _ := logged()
	listing, err := ListFiles(t.Context(), logger, dir, s)
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("the folder has %v: want nothing", left)
	}
	return listing, err
}

func TestLook(t *testing.T) {
	root := t.TempDir()
	part := newRepository(t, root, "part")
	put(t, part, "lib.py", "")
	commit(t, part, "part")
	repo := newRepository(t, root, "repo")
	put(t, repo, "train.py", "first")
	first := commit(t, repo, "first")
	git(t, repo, "", "submodule", "--quiet", "add", part, "part")
	put(t, repo, "src/model/train.sh", "")
	put(t, repo, "größe.py", "")
	if err := os.Symlink("src", repo+"/linked"); err != nil {
		t.Fatal(err)
	}
	second := commit(t, repo, "second")
	git(t, repo, "", "tag", "-a", "-m", "annotated", "v1")
	missing := strings.Repeat("0123456789", 4)
	for name, source := range servers(t, root) {
		t.Run(name, func(t *testing.T) {
			git(t, repo, "", "config", "uploadpack.allowFilter", "true")
			old := strings.Contains(name, "version 0")
			for revision, want := range map[string]string{"": second, "main": second, "v1": second, second: second, first[:9]: first} {
				listing, err := look(t, source("repo", revision))
				if old && revision == first[:9] {
					continue // such a server resolves only names, and does not send the commit
				}
				if err != nil || listing.Commit != want || listing.Unproven != "" {
					t.Errorf("%s: got %q, %q, %v; want %s", revision, listing.Commit, listing.Unproven, err, want)
				}
			}
			listing, err := look(t, source("repo", ""))
			if err != nil {
				t.Fatal(err)
			}
			for file, want := range map[string]string{
				"train.py": "", "./train.py": "", "größe.py": "", "src/model/train.sh": "", "linked/model/train.sh": "", "part/lib.py": "",
				"src":              "it is a folder in commit " + second,
				"model/train.py":   "it is not in commit " + second + ", which has train.py",
				"src/other.py":     "which has model/ in src",
				"nowhere.py":       "which has .gitmodules, größe.py, linked, part, src/, train.py in its top folder",
				"nowhere/other.py": "which has no folder nowhere",
			} {
				if got := listing.WhyMissing(file); !strings.Contains(got, want) || (got == "") != (want == "") {
					t.Errorf("%s: got %q, want %q", file, got, want)
				}
			}
			for name, want := range map[string]bool{"train.py": true, "src": true, "src/model": true, "linked/x": true, "part/any": true,
				"nowhere": false, "src/mod": false} {
				if got := listing.Has(name); got != want {
					t.Errorf("has %s: %t, want %t", name, got, want)
				}
			}
			if listing.Submodule("part/lib.py") != "part" || listing.Submodule("linked/model/train.sh") != "" ||
				listing.Submodule("src/x.py") != "" {
				t.Error("only part is a submodule")
			}
			_, err = look(t, source("repo", "mian"))
			wantFailure(t, err, fail.RevisionNotFound, "the nearest: branch main", "git ls-remote")
			_, err = look(t, source("gone", ""))
			wantFailure(t, err, fail.RepositoryUnavailable, "", "")
			if listing, err := look(t, source("repo", missing)); !old || err != nil {
				wantFailure(t, err, fail.RevisionNotFound, "the repository does not have it", "")
			} else if listing.Unproven == "" {
				t.Error("a server that sends no single commits proves nothing about one")
			}

			git(t, repo, "", "config", "uploadpack.allowFilter", "false")
			listing, err = look(t, source("repo", "main"))
			if err != nil || !strings.Contains(listing.Unproven, "lists no files without their contents") || listing.WhyMissing("nowhere.py") != "" {
				t.Errorf("without partial clones: got %q, %v; want nothing proven", listing.Unproven, err)
			}
			_, err = look(t, source("repo", "mian"))
			wantFailure(t, err, fail.RevisionNotFound, "the nearest: branch main", "")
		})
	}
}

// TestLookIsBounded: if a repository is too large, look leaves the question unproven and reports no failure.
func TestLookIsBounded(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	for _, name := range []string{"a", "b", "c"} {
		put(t, repo, name, "")
	}
	commit(t, repo, "first")
	git(t, repo, "", "config", "uploadpack.allowFilter", "true")
	server := newWebServer(t, root)
	source := server.source("repo", "")
	source.Auth, source.limits = server.goodAuth(t), lookLimits
	source.limits.output = 150
	if listing, err := look(t, source); err != nil || !strings.Contains(listing.Unproven, "more files") {
		t.Errorf("got %q, %v; want nothing proven", listing.Unproven, err)
	}
}

func TestSecretWithoutKeys(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "pasword", "x")
	put(t, dir, "username", "me")
	_, err := AuthFromDir(dir)
	wantFailure(t, err, fail.InvalidInput, "its keys are pasword, username: want username and password", "")
}
