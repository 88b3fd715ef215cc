package git

import (
	"context"
	"fmt"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// maxDepth is how deep submodules may lie in each other.
const maxDepth = 20

// maxModules is how many repositories a tree may be made of.
const maxModules = 1000

// loadSubmodules fetches a module's submodules, each at the commit that the tree names.
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

// submoduleURLs reads the URLs by path from .gitmodules, if it is a file.
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
