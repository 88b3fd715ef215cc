// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

type checkout struct {
	*programs
	root   *os.Root
	source Source

	modules []*module
	// files and bytes add up the files of all modules.
	files int
	bytes int64
}

type module struct {
	*repository
	// prefix is its folder, empty or with a slash at its end.
	prefix string
	commit string
	// small are the paths of files that may be LFS pointers, by their size.
	small      []string
	submodules []submodule
}

type submodule struct {
	// path is relative to the module's own root.
	path   string
	commit string
}

func (c *checkout) load(ctx context.Context, a address, revision, prefix string, depth int) error {
	r, err := c.open(ctx, a, fmt.Sprintf("repository-%d", len(c.modules)), filepath.Join(c.root.Name(), prefix))
	if err != nil {
		return r.explain(ctx, err)
	}
	commit, err := r.fetch(ctx, revision)
	if err != nil {
		return err
	}
	m := &module{repository: r, prefix: prefix, commit: commit}
	c.modules = append(c.modules, m)
	if err := c.list(ctx, m); err != nil {
		return r.explain(ctx, err)
	}
	// Pack and files need room at the same time.
	if c.bytes > c.limits.disk-folderSize(c.scratch) {
		return r.explain(ctx, c.tooLarge())
	}
	if _, err := m.runGit(ctx, "checkout", "--progress", "--force", "--detach", commit); err != nil {
		return r.explain(ctx, err)
	}
	if !c.source.Submodules || len(m.submodules) == 0 {
		return nil
	}
	return c.loadSubmodules(ctx, m, depth)
}

// list reads what is in a module's commit. A few kilobytes of folders in each other can name billions of files.
func (c *checkout) list(ctx context.Context, m *module) error {
	text, err := m.runGit(ctx, "ls-tree", "-r", "-z", "--long", "--full-tree", m.commit)
	if errors.Is(err, errOutput) {
		return c.tooManyFiles()
	}
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\x00"), "\x00") {
		// MODE KIND HASH SIZE, a tab, and the path.
		about, path, _ := strings.Cut(line, "\t")
		fields := strings.Fields(about)
		if len(fields) != 4 {
			continue // an empty tree
		}
		if fields[1] == "commit" {
			m.submodules = append(m.submodules, submodule{path: path, commit: fields[2]})
			continue
		}
		size, err := strconv.ParseInt(fields[3], 10, 64)
		if err != nil {
			return fmt.Errorf("listing files: %q: %w", line, err)
		}
		c.files++
		c.bytes += size
		if size <= MaxPointer && fields[0] != "120000" {
			m.small = append(m.small, path)
		}
	}
	if c.files > c.limits.files {
		return c.tooManyFiles()
	}
	return nil
}

// config reads a file of the commit in git's configuration format, nil if the commit does not have the file. The last
// of several values counts.
func (m *module) config(ctx context.Context, name string) (map[string]string, error) {
	kind, err := m.runGit(ctx, "ls-tree", "--full-tree", m.commit, "--", name)
	if err != nil || !strings.HasPrefix(kind, "100") {
		return nil, err
	}
	text, err := m.runGit(ctx, "config", "--blob", m.commit+":"+name, "--no-includes", "--null", "--list")
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", m.prefix+name, err)
	}
	settings := map[string]string{}
	for entry := range strings.SplitSeq(text, "\x00") {
		key, value, _ := strings.Cut(entry, "\n")
		settings[key] = value
	}
	return settings, nil
}

func (c *checkout) fetchPointers(ctx context.Context) error {
	var found []pointerFile
	for _, m := range c.modules {
		var own []pointerFile
		for _, path := range m.small {
			content, err := claimfile.ReadIn(c.root, m.prefix+path, MaxPointer)
			if err != nil {
				return err
			}
			if p, ok := parsePointer(content); ok {
				own = append(own, pointerFile{p, m.prefix + path})
				// The sum could overflow: a pointer can state any size.
				if p.size > c.limits.disk-c.bytes {
					return m.explain(ctx, c.tooLarge())
				}
				c.bytes += p.size
			}
		}
		if c.source.LFS && len(own) > 0 {
			if err := c.fetchObjects(ctx, m, own); err != nil {
				return m.explainLFS(ctx, err)
			}
		}
		found = append(found, own...)
	}
	c.log.Info(fmt.Sprintf("Wrote %s.", humanize.Count(c.files, "file")))
	if c.source.LFS || len(found) == 0 {
		return nil
	}
	return refusePointers(fmt.Sprintf("the tree of %s", c.modules[0].address), "files, or lfs=true", found)
}

func (c *checkout) placeFiles(object string, paths []string) error {
	for i, path := range paths {
		pointer, err := c.root.Lstat(path)
		if err != nil {
			return err
		}
		if err := c.root.Remove(path); err != nil {
			return err
		}
		file := filepath.Join(c.root.Name(), filepath.FromSlash(path))
		if i < len(paths)-1 {
			err = copyFile(file, object)
		} else {
			err = os.Rename(object, file)
		}
		if err := errors.Join(err, c.root.Chmod(path, pointer.Mode().Perm())); err != nil {
			return err
		}
	}
	return nil
}

// Limits of submodules in each other, and of the repositories of a tree.
const maxDepth, maxModules = 20, 1000

func (c *checkout) loadSubmodules(ctx context.Context, m *module, depth int) error {
	if depth == maxDepth {
		return fail.Becausef(fail.UnsafeTree, "fetching submodules of %s: they lie more than %d deep in each other", m.address, maxDepth)
	}
	if len(c.modules)+len(m.submodules) > maxModules {
		return fail.Becausef(fail.UnsafeTree, "fetching submodules of %s: the tree has more than %d repositories", m.address, maxModules)
	}
	urls, err := m.submoduleURLs(ctx)
	if err != nil {
		return err
	}
	for _, sub := range m.submodules {
		text, ok := urls[sub.path]
		if !ok {
			return fail.Advise(
				fail.Becausef(fail.RepositoryUnavailable, "fetching submodule %q of %s: .gitmodules has no URL for it", sub.path, m.address),
				"add it with git submodule add, remove it with git rm --cached, or fetch without submodules")
		}
		a, err := m.address.submodule(text)
		if err != nil {
			return fmt.Errorf("fetching submodule %q of %s: %w", sub.path, m.address, err)
		}
		if err := c.load(ctx, a, sub.commit, m.prefix+sub.path+"/", depth+1); err != nil {
			return fmt.Errorf("fetching submodule %q: %w", m.prefix+sub.path, err)
		}
	}
	return nil
}

func (m *module) submoduleURLs(ctx context.Context) (map[string]string, error) {
	settings, err := m.config(ctx, ".gitmodules")
	if err != nil {
		return nil, err
	}
	urls := map[string]string{}
	for key, path := range settings {
		name, ok := strings.CutSuffix(key, ".path")
		url, hasURL := settings[name+".url"]
		if ok && hasURL && strings.HasPrefix(name, "submodule.") {
			urls[strings.TrimSuffix(path, "/")] = url
		}
	}
	return urls, nil
}
