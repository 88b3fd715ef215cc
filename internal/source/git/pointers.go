package git

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// maxPointer is the size in bytes up to which a file can be an LFS pointer.
const maxPointer = 1024

// pointer is what a Git LFS pointer says.
type pointer struct {
	// id is the SHA-256 of the object in lower-case hex.
	id string
	// size is the object's, in bytes.
	size int64
}

// pointerFile is a file that has a pointer in place of its content.
type pointerFile struct {
	pointer
	path string
}

// parsePointer reads a pointer in the form of Git LFS's specification,
// version 1. A file of no bytes is its own pointer and needs nothing.
func parsePointer(content []byte) (pointer, bool) {
	lines := strings.Split(string(content), "\n")
	if len(lines) < 3 || len(content) > maxPointer {
		return pointer{}, false
	}
	switch strings.TrimSpace(lines[0]) {
	case "version https://git-lfs.github.com/spec/v1", "version https://hawser.github.com/spec/v1":
	default:
		return pointer{}, false
	}
	p := pointer{size: -1}
	for _, line := range lines[1:] {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "oid":
			id, ok := strings.CutPrefix(value, "sha256:")
			if decoded, err := hex.DecodeString(id); !ok || err != nil || len(decoded) != 32 {
				return pointer{}, false
			}
			p.id = strings.ToLower(id)
		case "size":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return pointer{}, false
			}
			p.size = n
		}
	}
	return p, p.id != "" && p.size >= 0
}

// refusePointers lists the pointers, which nobody asked to replace.
func refusePointers(a address, found []pointerFile) error {
	var names []string
	var bytes int64
	for _, p := range found {
		names = append(names, strconv.Quote(p.path))
		bytes += p.size
	}
	slices.Sort(names)
	const shown = 5
	text := strings.Join(names[:min(len(names), shown)], ", ")
	if len(names) > shown {
		text += fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return fail.Advise(
		fail.Becausef(fail.LFSPointers, "checking the tree of %s: %s in place of files, for %s: %s: want files, or to be told to fetch them",
			a, humanize.Count(len(names), "Git LFS pointer"), humanize.Bytes(bytes), text),
		"pass the param lfs=true to fetch them, or take them out of the repository with git lfs migrate export")
}

// lfsEndpoint is where a repository's LFS server is expected.
func lfsEndpoint(a address) *url.URL {
	if a.scheme == "ssh" {
		a.scheme, a.port = "https", ""
	}
	p := strings.TrimSuffix(path.Clean("/"+a.path), ".git")
	a.path = p + ".git/info/lfs"
	return a.url()
}
