// SPDX-License-Identifier: Apache-2.0

package git

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

func (c *checkout) fetchObjects(ctx context.Context, m *module, pointers []pointerFile) error {
	if err := requireProgram("git-lfs"); err != nil {
		return err
	}
	paths := map[pointer][]string{}
	var total int64
	for _, p := range pointers {
		if paths[p.pointer] == nil {
			total += p.size
		}
		paths[p.pointer] = append(paths[p.pointer], p.path)
	}
	endpoint, host, err := m.lfsServer(ctx)
	if err != nil {
		return err
	}
	c.log.Info(fmt.Sprintf("Fetching %s, %s, from %s.", humanize.Count(len(paths), "LFS object"), humanize.Bytes(total), host))
	// The empty patterns override the patterns in .lfsconfig.
	if _, err := m.remote(ctx, "-c", "lfs.url="+endpoint, "lfs", "fetch", "--include=", "--exclude=", "origin", m.commit); err != nil {
		return err
	}
	for p, files := range paths {
		object := filepath.Join(m.dir, "lfs", "objects", p.id[:2], p.id[2:4], p.id)
		if info, err := os.Lstat(object); err != nil || info.Size() != p.size {
			return fail.Becausef(fail.LFSPointers, "object %s of %q, %s: git-lfs did not fetch it: want one pointer to it in the form of Git "+
				"LFS's specification",
				p.id, files[0], humanize.Bytes(p.size))
		}
		if err := c.placeFiles(object, files); err != nil {
			return fmt.Errorf("object %s: %w", p.id, err)
		}
	}
	return nil
}

// lfsServer returns the URL of the LFS server and its host: the server in .lfsconfig, the one that the ssh server
// names, or the usual place next to the repository.
func (m *module) lfsServer(ctx context.Context) (endpoint, host string, err error) {
	settings, err := m.config(ctx, ".lfsconfig")
	if err != nil {
		return "", "", err
	}
	server := m.address
	if configured := cmp.Or(settings["lfs.url"], settings["remote.origin.lfsurl"]); configured != "" {
		if server, err = parseAddress(configured); err != nil {
			return "", "", fmt.Errorf("reading .lfsconfig: %w", err)
		}
	} else if server.scheme != "ssh" {
		return lfsEndpoint(server).String(), server.url().Host, nil
	}
	return server.forGit(), server.url().Host, nil
}

func copyFile(to, from string) error {
	in, err := claimfile.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := claimfile.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}

// MaxPointer is the size in bytes up to which a file can be an LFS pointer.
const MaxPointer = 1024

type pointer struct {
	// id is the SHA-256 of the object in lower-case hex.
	id string
	// size of the object in bytes.
	size int64
}

type pointerFile struct {
	pointer
	path string
}

// Lines of a pointer.
var (
	pointerVersion = regexp.MustCompile(`^version https://(git-lfs\.github|hawser\.github)\.com/spec/v1\s*\n`)
	pointerID      = regexp.MustCompile(`(?m)^\s*oid sha256:([0-9a-fA-F]{64})\s*$`)
	pointerSize    = regexp.MustCompile(`(?m)^\s*size (\d{1,18})\s*$`)
)

// parsePointer reads a pointer in the form of Git LFS's specification, version 1. An empty file is its own pointer and
// needs nothing.
func parsePointer(content []byte) (pointer, bool) {
	id, size := pointerID.FindSubmatch(content), pointerSize.FindSubmatch(content)
	if len(content) > MaxPointer || !pointerVersion.Match(content) || id == nil || size == nil {
		return pointer{}, false
	}
	bytes, err := strconv.ParseInt(string(size[1]), 10, 64)
	return pointer{strings.ToLower(string(id[1])), bytes}, err == nil
}

// CheckFolder refuses Git LFS pointers in place of files of a folder, as those of a repository are refused. Errors: LFSPointers.
func CheckFolder(dir string, names []string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var found []pointerFile
	for _, name := range names {
		content, err := claimfile.ReadIn(root, name, MaxPointer)
		if p, ok := parsePointer(content); err == nil && ok {
			found = append(found, pointerFile{p, name})
		}
	}
	if len(found) == 0 {
		return nil
	}
	return fail.Advise(refusePointers("the folder", "files", found),
		"git lfs pull in the folder fetches them; or lines in .mlenvignore leave them out")
}

func refusePointers(where, want string, found []pointerFile) error {
	var names []string
	var bytes int64
	for _, p := range found {
		names = append(names, strconv.Quote(p.path))
		bytes += p.size
	}
	slices.Sort(names)
	return fail.Advise(
		fail.Becausef(fail.LFSPointers, "checking %s: %s in place of files, for %s: %s: want %s",
			where, humanize.Count(len(names), "Git LFS pointer"), humanize.Bytes(bytes), humanize.First(names, 5), want),
		"pass the param lfs=true to fetch them, or take them out of the repository with git lfs migrate export")
}

// lfsEndpoint returns the usual URL of a repository's LFS server.
func lfsEndpoint(a address) *url.URL {
	a.path = strings.TrimSuffix(a.path, ".git") + ".git/info/lfs"
	return a.url()
}
