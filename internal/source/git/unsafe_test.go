// SPDX-License-Identifier: Apache-2.0

package git

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// commitTree commits a tree with entries that git itself would not add.
func commitTree(t *testing.T, repo string, entries ...string) {
	t.Helper()
	var raw strings.Builder
	for _, entry := range entries {
		mode, rest, _ := strings.Cut(entry, " ")
		hex, name, _ := strings.Cut(rest, " ")
		var hash []byte
		if _, err := fmt.Sscanf(hex, "%x", &hash); err != nil {
			t.Fatal(err)
		}
		raw.WriteString(mode + " " + name + "\x00" + string(hash))
	}
	root := git(t, repo, raw.String(), "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
	head := git(t, repo, "", "commit-tree", "-m", "odd", root)
	git(t, repo, "", "update-ref", "refs/heads/main", head)
}

func TestFetchUnsafeTree(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	blob := git(t, repo, "content", "hash-object", "-w", "--stdin")
	link := func(target string) string { return git(t, repo, target, "hash-object", "-w", "--stdin") }
	folder := git(t, repo, "100644 blob "+blob+"\tfile\n", "mktree")
	server := newWebServer(t, root)
	source := server.source("repo", "")
	source.Auth = server.goodAuth(t)
	for _, test := range []struct {
		name    string
		entries []string
		want    string
	}{
		{"a file through a link", []string{"120000 " + link("/tmp") + " same", "40000 " + folder + " same"}, "duplicateEntries"},
		{"twice", []string{"100644 " + blob + " same", "100644 " + blob + " same"}, "duplicateEntries"},
		{"git's own", []string{"100644 " + blob + " .GIT"}, "hasDotgit"},
		{"git's short name", []string{"40000 " + folder + " git~1"}, "hasDotgit"},
		{"git's own with an invisible letter", []string{"40000 " + folder + " .g\u200cit"}, "hasDotgit"},
		{"git's own as a stream", []string{"40000 " + folder + " .git::$INDEX_ALLOCATION"}, "hasDotgit"},
		{"a path", []string{"100644 " + blob + " ../up"}, "fullPathname"},
		{"up", []string{"40000 " + folder + " .."}, "hasDotdot"},
		{"itself", []string{"40000 " + folder + " ."}, "hasDot"},
		{"too long", []string{"100644 " + blob + " " + strings.Repeat("x", 256)}, "File name too long"},
		{"link to nothing", []string{"120000 " + link("") + " nowhere"}, "unable to create symlink nowhere"},
	} {
		t.Run(test.name, func(t *testing.T) {
			commitTree(t, repo, test.entries...)
			_, _, _, err := fetchInto(t, source)
			wantFailure(t, err, fail.UnsafeTree, test.want, "remove or rename these")
		})
	}
	// git treats an entry that is neither file, link nor folder as a submodule.
	t.Run("no known mode", func(t *testing.T) {
		commitTree(t, repo, "10644 "+blob+" pipe")
		dir, _, _, err := fetchInto(t, source)
		if got := listing(t, dir)["pipe"]; err != nil || got != "folder" {
			t.Errorf("got %s, %v: want an empty folder", got, err)
		}
	})
	// Fetch writes links as they are. Every caller scans the fetched tree.
	t.Run("links out, all at once", func(t *testing.T) {
		commitTree(t, repo, "120000 "+link("/etc/passwd")+" absolute", "100644 "+blob+" fine", "120000 "+link("..")+" up")
		dir, _, _, err := fetchInto(t, source)
		if err != nil {
			t.Fatal(err)
		}
		_, err = tree.Scan(t.Context(), dir, nil)
		wantFailure(t, err, fail.UnsafeTree, "absolute: leads to /etc/passwd, which is outside of the tree", "")
		wantFailure(t, err, fail.UnsafeTree, "up: leads to .., which is outside of the tree", "")
	})
}
