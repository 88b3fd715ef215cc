// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Nearby describes what a tree has instead of a missing path: a file of that name elsewhere, or what is in the folder in
// which it should be. names are the paths of the tree's files, and of its empty folders with a slash at the end.
func Nearby(names []string, missing string) string {
	names = slices.Sorted(slices.Values(names))
	missing = path.Clean(missing)
	folder := ""
	if at := path.Dir(missing); at != "." {
		folder = at + "/"
	}
	var inside []string
	best, common := "", 0
	for _, name := range names {
		if n := commonEnd(name, missing); n > common {
			best, common = name, n
		}
		if rest, ok := strings.CutPrefix(name, folder); ok {
			inside = append(inside, strings.SplitAfter(rest, "/")[0])
		}
	}
	if common > 0 {
		return best
	}
	where := cmp.Or(strings.TrimSuffix(folder, "/"), "its top folder")
	if inside = slices.Compact(inside); len(inside) == 0 {
		if folder == "" {
			return "no file"
		}
		above := Nearby(names, where)
		if !strings.HasPrefix(above, "no folder ") {
			above = fmt.Sprintf("no folder %s, but %s", where, above)
		}
		return above
	}
	if inside[0] == "" {
		return "nothing in " + where
	}
	const most = 12
	if more := len(inside) - most; more > 0 {
		inside = append(inside[:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(inside, ", ") + " in " + where
}

// commonEnd returns how many elements at their ends two paths have in common.
func commonEnd(a, b string) (n int) {
	as, bs := strings.Split(a, "/"), strings.Split(b, "/")
	for n < len(as) && n < len(bs) && as[len(as)-1-n] == bs[len(bs)-1-n] {
		n++
	}
	return n
}

// mostNames bounds Names: a folder may be a whole claim on slow storage.
const mostNames = 20000

// Names returns the paths of a folder's files and empty folders as Nearby takes them, but nothing in the folders of git, mlenv and
// Python's cache. It reads upper folders first, and stops at a bound.
func Names(dir string) (names []string) {
	skipped := []string{".git", ".mlenv", "__pycache__"}
	for folders := []string{""}; len(folders) > 0 && len(names) < mostNames; folders = folders[1:] {
		folder := folders[0]
		entries, err := os.ReadDir(filepath.Join(dir, folder))
		if err == nil && len(entries) == 0 && folder != "" {
			names = append(names, folder+"/")
		}
		for _, entry := range entries {
			name := path.Join(folder, entry.Name())
			switch {
			case !entry.IsDir():
				names = append(names, name)
			case !slices.Contains(skipped, entry.Name()):
				folders = append(folders, name)
			}
		}
	}
	return names
}
