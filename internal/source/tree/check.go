// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"fmt"
	"path"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

const (
	// Linux's limits for the name of a file and the target of a link, in bytes, and for links followed in one path.
	longestName   = 255
	longestTarget = 4095
	mostHops      = 40
	// longestPath in a tree leaves room for the tree's own folder in Linux's limit of 4096 bytes.
	longestPath = 3072
)

// Check refuses, with UnsafeTree and all problems in one error, a manifest that does not describe a folder or would
// write outside of the tree:
//
//   - paths that are absolute, lead up, repeat, or are not sorted;
//   - an entry beneath a file or a link, or beneath a folder listed as empty;
//   - links that lead out of the tree, by themselves or through other links;
//   - fields that an entry of its kind does not have, invalid digests, and two sizes of one content.
func (m Manifest) Check() error {
	return m.problems().err("checking a tree")
}

func (m Manifest) problems() problems {
	c := checker{
		kinds: make(map[string]Kind, len(m.Entries)),
		links: make(map[string]string),
		sizes: make(map[Digest]int64, len(m.Entries)),
	}
	last := ""
	for i, e := range m.Entries {
		if i > 0 && e.Path <= last {
			c.add(e.Path, "comes after %s: want entries sorted by path, each path once", last)
		}
		last = e.Path
		c.entry(e)
	}
	for _, e := range m.Entries {
		c.place(e)
	}
	return c.problems
}

// checker collects what is wrong. Its maps' paths are unescaped.
type checker struct {
	problems
	kinds map[string]Kind
	links map[string]string
	sizes map[Digest]int64
}

func (c *checker) entry(e Entry) {
	name, err := Unescape(e.Path)
	if err != nil {
		c.add(e.Path, "%v", err)
		return
	}
	if problem := pathProblem(name); problem != "" {
		c.add(e.Path, "%s", problem)
		return
	}
	c.kinds[name] = e.Kind
	switch e.Kind {
	case File:
		c.file(e)
	case Link:
		c.link(e, name)
	case Folder:
		if e.Executable || e.Size != 0 || e.Content != "" || e.Target != "" {
			c.add(e.Path, "is a folder with fields of a file or link")
		}
	default:
		c.add(e.Path, "is of unknown kind %q: want %s, %s or %s", e.Kind, File, Link, Folder)
	}
}

func (c *checker) file(e Entry) {
	if e.Target != "" {
		c.add(e.Path, "is a file with the target of a link")
	}
	if e.Size < 0 {
		c.add(e.Path, "has a size of %d bytes", e.Size)
	}
	if !e.Content.Valid() {
		c.add(e.Path, "has content %q: want 64 lower-case hex digits", e.Content)
	}
	if size, ok := c.sizes[e.Content]; ok && size != e.Size {
		c.add(e.Path, "has %d bytes, and another file of the same content %d", e.Size, size)
	}
	c.sizes[e.Content] = e.Size
}

func (c *checker) link(e Entry, name string) {
	if e.Executable || e.Size != 0 || e.Content != "" {
		c.add(e.Path, "is a link with fields of a file")
	}
	target, err := Unescape(e.Target)
	switch {
	case err != nil:
		c.add(e.Path, "%v", err)
	case target == "" || len(target) > longestTarget || strings.ContainsRune(target, 0):
		c.add(e.Path, "is a link with a target of %d bytes: want 1 to %d, none of them 0", len(target), longestTarget)
	default:
		c.links[name] = target
	}
}

// pathProblem returns "" for a path that stays in the tree and that Linux can store.
func pathProblem(name string) string {
	if len(name) > longestPath {
		return "is too long a path"
	}
	if strings.ContainsRune(name, 0) {
		return "holds a zero byte"
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return "is not a path in a tree: want names separated by single slashes, none of them . or .."
		case len(part) > longestName:
			return "has a name that is too long to be a file's"
		}
	}
	return ""
}

func (c *checker) place(e Entry) {
	name, err := Unescape(e.Path)
	if err != nil || pathProblem(name) != "" {
		return // entry has reported it
	}
	for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
		switch kind, ok := c.kinds[name[:i]]; {
		case !ok:
		case kind == Folder:
			c.add(e.Path, "lies in %s, which is listed as an empty folder", Escape(name[:i]))
		default:
			c.add(e.Path, "lies beneath %s, which is a %s", Escape(name[:i]), kind)
		}
	}
	if target, ok := c.links[name]; ok && c.leadsOut(name, target) {
		c.add(e.Path, "leads to %s, which is outside of the tree: want a relative link that stays in it", Escape(target))
	}
}

// leadsOut follows a link as the kernel would, through other links too. A path that is not in the tree counts as a
// folder, because a program may create one.
func (c *checker) leadsOut(name, target string) bool {
	if strings.HasPrefix(target, "/") {
		return true
	}
	at, rest := parent(name), target
	for hops := 0; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		switch part {
		case "", ".":
			continue
		case "..":
			if at == "" {
				return true
			}
			at = parent(at)
			continue
		}
		at = path.Join(at, part)
		through, ok := c.links[at]
		if !ok {
			continue
		}
		if strings.HasPrefix(through, "/") {
			return true
		}
		if hops++; hops > mostHops {
			return false // a circle: nothing can be opened through it
		}
		at, rest = parent(at), through+"/"+rest
	}
	return false
}

func parent(name string) string {
	return name[:max(0, strings.LastIndexByte(name, '/'))]
}

type problems []string

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, path+": "+fmt.Sprintf(format, args...))
}

func (p problems) err(doing string) error {
	if len(p) == 0 {
		return nil
	}
	const most = 20
	shown, rest := p, ""
	if len(p) > most {
		shown, rest = p[:most], fmt.Sprintf("\nand %d more", len(p)-most)
	}
	return fail.Becausef(fail.UnsafeTree, "%s: %d of its entries cannot be stored safely:\n%s%s", doing, len(p), strings.Join(shown, "\n"),
		rest)
}
