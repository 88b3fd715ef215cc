package git

import (
	"context"
	"fmt"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git/pack"
)

// maxDepth is how deep submodules may lie in each other.
const maxDepth = 20

// loadSubmodules fetches a module's submodules, each at the commit that the tree names.
func (c *checkout) loadSubmodules(ctx context.Context, m *module, submodules []submodule, depth int) error {
	if depth == maxDepth {
		return fail.Becausef(fail.UnsafeTree, "fetching submodules of %s: they lie more than %d deep in each other", m.address, maxDepth)
	}
	urls, err := submoduleURLs(m)
	if err != nil {
		return err
	}
	for _, sub := range submodules {
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
		if err := c.load(ctx, a, sub.commit.String(), m.prefix+sub.path+"/", depth+1); err != nil {
			return fmt.Errorf("fetching submodule %q: %w", m.prefix+sub.path, err)
		}
	}
	return nil
}

// submoduleURLs reads the URLs by path from .gitmodules, if it is a file.
func submoduleURLs(m *module) (map[string]string, error) {
	urls := map[string]string{}
	for _, f := range m.files {
		if f.path != m.prefix+".gitmodules" {
			continue
		}
		content, err := m.pack.Read(f.content, pack.Blob)
		if err != nil {
			return nil, err
		}
		paths := map[string]string{}
		byName := map[string]string{}
		for _, s := range parseConfig(string(content)) {
			switch {
			case s.section == "submodule" && s.key == "path":
				paths[s.name] = strings.TrimSuffix(s.value, "/")
			case s.section == "submodule" && s.key == "url":
				byName[s.name] = s.value
			}
		}
		for name, path := range paths {
			if url, ok := byName[name]; ok {
				urls[path] = url
			}
		}
	}
	return urls, nil
}
