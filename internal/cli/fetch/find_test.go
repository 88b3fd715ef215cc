// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// claimOf answers like a pod. A value that starts with -> is a link, a name that ends with a slash an empty folder.
func claimOf(files map[string]string, asked *[]string) func([]string) (listing, error) {
	return func(places []string) (found listing, err error) {
		found.Near = map[string]agent.Near{}
		for _, place := range places {
			*asked = append(*asked, place)
			absent := true
			for name, content := range files {
				if trimmed := strings.TrimSuffix(name, "/"); trimmed != place && !strings.HasPrefix(name, place+"/") {
					continue
				}
				absent = false
				e := tree.Entry{Path: strings.TrimSuffix(name, "/"), Kind: tree.File}
				if target, ok := strings.CutPrefix(content, "->"); ok {
					e.Kind, e.Target = tree.Link, target
				} else if strings.HasSuffix(name, "/") {
					e.Kind = tree.Folder
				}
				found.Manifest.Entries = append(found.Manifest.Entries, e)
			}
			if absent {
				found.Absent = append(found.Absent, place)
				found.Near[place] = agent.Near{Folder: "checkpoints", Names: []string{"mine", "yours"}}
			}
		}
		return found, nil
	}
}

func TestFind(t *testing.T) {
	const work = ".mlenv/work/uid/"
	files := map[string]string{work + "out/a": "a", work + "out/b": "b", "out/other": "x", "checkpoints/mine/m": "m",
		"repo": "->.mlenv/trees/1", "empty/": ""}
	for _, tc := range []struct {
		name   string
		given  []string
		want   string
		absent map[string]string
		// asked counts the places: only what is wanted is read.
		asked int
	}{
		{"what the run wrote comes first", []string{"out"}, work + "out/a " + work + "out/b", nil, 1},
		{"then the workspace", []string{"checkpoints/mine"}, "checkpoints/mine/m", nil, 2},
		{"overlapping", []string{"out", "out/a"}, work + "out/a " + work + "out/b", nil, 2},
		{"missing", []string{"nosuch", "out/a"}, work + "out/a",
			map[string]string{"nosuch": "not found; /workspace/checkpoints has mine, yours"}, 3},
		{"a link", []string{"repo"}, "repo",
			map[string]string{"repo": "it is a link to /workspace/.mlenv/trees/1, and only files are copied; name that path"}, 2},
		{"an empty folder", []string{"empty"}, "empty", map[string]string{"empty": "it has no files"}, 2},
	} {
		var paths []Path
		for _, name := range tc.given {
			paths = append(paths, Path{Name: name, Places: []string{work + name, name}})
		}
		var asked, names []string
		found, err := findPaths(paths, claimOf(files, &asked))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range found.manifest.Entries {
			names = append(names, e.Path)
		}
		if got := strings.Join(names, " "); got != tc.want || !slices.IsSorted(names) || len(asked) != tc.asked {
			t.Errorf("%s: got %s from %q; want %s from %d places", tc.name, got, asked, tc.want, tc.asked)
		}
		if tc.absent == nil {
			tc.absent = map[string]string{}
		}
		if diff := cmp.Diff(tc.absent, found.absent); diff != "" {
			t.Errorf("%s: absent (-want +got):\n%s", tc.name, diff)
		}
	}
}
