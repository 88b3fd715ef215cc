package git

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// badLinks describes the symbolic links, path to target, that lead out of the
// tree or cannot be stored.
func badLinks(links map[string]string) []string {
	var bad []string
	for _, link := range slices.Sorted(maps.Keys(links)) {
		target := links[link]
		switch {
		case target == "" || strings.Contains(target, "\x00") || len(target) > maxPath:
			bad = append(bad, fmt.Sprintf("%q is a link whose target cannot be stored", link))
		case strings.HasPrefix(target, "/"):
			bad = append(bad, fmt.Sprintf("%q is a link to %q, an absolute path", link, target))
		case leaves(links, link):
			bad = append(bad, fmt.Sprintf("%q is a link to %q, which is outside the tree", link, target))
		}
	}
	return bad
}

// leaves follows a link as the kernel would, through the tree's other links. A
// target that does not exist is as harmless as a loop: it leads nowhere.
func leaves(links map[string]string, link string) bool {
	var at []string
	if dir := path.Dir(link); dir != "." {
		at = strings.Split(dir, "/")
	}
	todo := strings.Split(links[link], "/")
	const maxFollowed = 40 // as in Linux
	for followed := 0; len(todo) > 0 && followed < maxFollowed; {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return true
			}
			at = at[:len(at)-1]
			continue
		}
		target, isLink := links[strings.Join(append(slices.Clone(at), part), "/")]
		if !isLink {
			at = append(at, part)
			continue
		}
		if strings.HasPrefix(target, "/") {
			return true
		}
		todo = append(strings.Split(target, "/"), todo...)
		followed++
	}
	return false
}
