// SPDX-License-Identifier: Apache-2.0

package git

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// addSubmodule adds a submodule from a repository in the same folder, with the URL to record.
func addSubmodule(t *testing.T, repo, other, path, url string) {
	t.Helper()
	git(t, repo, "", "submodule", "--quiet", "add", "--name", "the "+path, other, path)
	git(t, repo, "", "config", "-f", ".gitmodules", "submodule.the "+path+".url", url)
}

func TestFetchSubmodules(t *testing.T) {
	root := t.TempDir()
	inner := newRepository(t, root, "team/inner")
	put(t, inner, "inner.txt", "inner")
	commit(t, inner, "first")
	middle := newRepository(t, root, "team/middle")
	put(t, middle, "middle.txt", "middle")
	addSubmodule(t, middle, inner, "libs/inner", "../inner")
	commit(t, middle, "first")
	outer := newRepository(t, root, "team/group/outer")
	put(t, outer, "outer.txt", "outer")
	addSubmodule(t, outer, middle, "middle", "../../middle")
	if err := os.Symlink("middle/libs/inner/inner.txt", outer+"/into"); err != nil {
		t.Fatal(err)
	}
	commit(t, outer, "first")
	// The submodule gets a new commit; the outer repository still names its first one.
	put(t, inner, "inner.txt", "later")
	commit(t, inner, "second")

	modules := `false "[submodule \"the middle\"]\n\tpath = middle\n\turl = ../../middle\n"`
	inside := `false "[submodule \"the libs/inner\"]\n\tpath = libs/inner\n\turl = ../inner\n"`
	for name, source := range servers(t, root) {
		t.Run(name, func(t *testing.T) {
			s := source("team/group/outer", "")
			dir, _, _, err := fetchInto(t, s)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{".gitmodules": modules, "outer.txt": `false "outer"`, "into": "link to middle/libs/inner/inner.txt",
				"middle": "folder"}
			if diff := cmp.Diff(want, listing(t, dir)); diff != "" {
				t.Errorf("without submodules (-want +got):\n%s", diff)
			}
			s.Submodules = true
			if dir, _, _, err = fetchInto(t, s); err != nil {
				t.Fatal(err)
			}
			for path, text := range map[string]string{
				"middle/.gitmodules": inside, "middle/middle.txt": `false "middle"`,
				"middle/libs": "folder", "middle/libs/inner": "folder", "middle/libs/inner/inner.txt": `false "inner"`,
			} {
				want[path] = text
			}
			if diff := cmp.Diff(want, listing(t, dir)); diff != "" {
				t.Errorf("with submodules (-want +got):\n%s", diff)
			}
		})
	}
}

// Credentials go to the repository's own host, not to a submodule's.
func TestFetchSubmoduleElsewhere(t *testing.T) {
	root := t.TempDir()
	inner := newRepository(t, root, "inner")
	put(t, inner, "inner.txt", "inner")
	commit(t, inner, "first")
	home, other := newWebServer(t, root), newWebServer(t, root)
	other.open = true
	outer := newRepository(t, root, "outer")
	addSubmodule(t, outer, inner, "inner", other.URL+"/inner")
	commit(t, outer, "first")
	source := home.source("outer", "")
	source.Auth, source.Submodules = home.goodAuth(t), true
	if _, _, _, err := fetchInto(t, source); err != nil {
		t.Fatal(err)
	}
	if len(home.seen) == 0 || len(other.seen) > 0 {
		t.Errorf("credentials: home got %d, the other host %q: want some and none", len(home.seen), other.seen)
	}
	other.open = false
	_, _, _, err := fetchInto(t, source)
	wantFailure(t, err, fail.RepositoryUnavailable, `fetching submodule "inner": fetching `+other.URL+"/inner: the server answers 401", "")
	if len(other.seen) > 0 {
		t.Errorf("the other host got credentials: %q", other.seen)
	}
}

func TestFetchSubmoduleBroken(t *testing.T) {
	root := t.TempDir()
	inner := newRepository(t, root, "inner")
	commit(t, inner, "first")
	server := newWebServer(t, root)
	for _, test := range []struct {
		name, url string
		reason    fail.Reason
		text      string
	}{
		{"a path of the machine", "/etc/repo", fail.InvalidInput, "it is a path on this machine"},
		{"a file URL", "file:///etc/repo", fail.InvalidInput, "its scheme is file"},
		{"a command", "ext::sh -c evil", fail.InvalidInput, "it names a helper program"},
		{"a command in a path that is cleaned", "ext::/../sh -c evil", fail.InvalidInput, "it names a helper program"},
		{"above the host", "../../../inner", fail.InvalidInput, "it leaves the host"},
		{"an ssh host without a key", "git@127.0.0.1:inner", fail.HostKeyUnknown, "no known_hosts"},
	} {
		t.Run(test.name, func(t *testing.T) {
			outer := newRepository(t, root, strings.ReplaceAll(test.name, " ", "-"))
			addSubmodule(t, outer, inner, "inner", test.url)
			commit(t, outer, "first")
			source := server.source(strings.ReplaceAll(test.name, " ", "-"), "")
			source.Auth, source.Submodules = server.goodAuth(t), true
			_, _, _, err := fetchInto(t, source)
			wantFailure(t, err, test.reason, test.text, "")
			wantFailure(t, err, test.reason, `submodule "inner"`, "")
		})
	}
	t.Run("no URL", func(t *testing.T) {
		outer := newRepository(t, root, "none")
		addSubmodule(t, outer, inner, "inner", "../inner")
		git(t, outer, "", "rm", "-q", "-f", ".gitmodules")
		commit(t, outer, "first")
		source := server.source("none", "")
		source.Auth, source.Submodules = server.goodAuth(t), true
		_, _, _, err := fetchInto(t, source)
		wantFailure(t, err, fail.RepositoryUnavailable, ".gitmodules has no URL for it", "git rm --cached")
	})
}
