package git

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// commitTree commits a tree of entries that git itself would not add.
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
	tree := git(t, repo, raw.String(), "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
	head := git(t, repo, "", "commit-tree", "-m", "odd", tree)
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
		want    []string
	}{
		{"links out, all at once", []string{
			"120000 " + link("/etc/passwd") + " absolute", "120000 " + link("..") + " up", "100644 " + blob + " fine",
		}, []string{`"absolute" is a link to "/etc/passwd", an absolute path`, `"up" is a link to "..", which is outside the tree`}},
		{"a file through a link", []string{"120000 " + link("/tmp") + " same", "40000 " + folder + " same"}, []string{`"same" has a name that is there twice`, `"same" is a link to "/tmp"`}},
		{"twice", []string{"100644 " + blob + " same", "100644 " + blob + " same"}, []string{`"same" has a name that is there twice`}},
		{"git's own", []string{"100644 " + blob + " .GIT", "40000 " + folder + " git~1", "40000 " + folder + " .g\u200cit", "40000 " + folder + " .git::$INDEX_ALLOCATION"},
			[]string{`".GIT" has a name that git itself refuses`, `"git~1"`, `".g\u200cit"`, `".git::$INDEX_ALLOCATION"`}},
		{"leads elsewhere", []string{"100644 " + blob + " ../up", "40000 " + folder + " ..", "40000 " + folder + " ."}, []string{`"../up" has a name that leads elsewhere`, `"..`, `"."`}},
		{"too long", []string{"100644 " + blob + " " + strings.Repeat("x", 256)}, []string{"a name of 256 bytes: want at most 255"}},
		{"link that cannot be", []string{"120000 " + link("") + " nowhere", "120000 " + link("a\x00b") + " zero"}, []string{`"nowhere" is a link whose target cannot be stored`, `"zero" is`}},
		{"no known mode", []string{"10644 " + blob + " pipe"}, []string{`"pipe" has mode 10644`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			commitTree(t, repo, test.entries...)
			_, _, _, err := fetchInto(t, source)
			for _, text := range test.want {
				wantFailure(t, err, fail.UnsafeTree, text, "remove or rename these")
			}
		})
	}
}

func TestBadLinks(t *testing.T) {
	for _, test := range []struct {
		name  string
		links map[string]string
		bad   []string
	}{
		{"inside", map[string]string{"a/b": "../c", "a/d": "..", "e": ".", "f": "a//./b", "g": "missing/../h"}, nil},
		{"up and back in", map[string]string{"a": "../tree/b"}, []string{"a"}},
		{"one too many", map[string]string{"a/b": "../../c"}, []string{"a/b"}},
		{"through a link to a higher folder", map[string]string{"a/b/c/s": "../../..", "e": "a/b/c/s/.."}, []string{"e"}},
		{"through a link to a deeper folder", map[string]string{"s": "a/b/c", "e": "s/../.."}, nil},
		{"through an absolute link", map[string]string{"s": "/etc", "e": "s/passwd"}, []string{"e", "s"}},
		{"loop", map[string]string{"a": "b", "b": "a", "c": "c/.."}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, text := range badLinks(test.links) {
				got = append(got, strings.Split(text, `"`)[1])
			}
			if diff := cmp.Diff(test.bad, got); diff != "" {
				t.Errorf("bad links (-want +got):\n%s", diff)
			}
		})
	}
}
