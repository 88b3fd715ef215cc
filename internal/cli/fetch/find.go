// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// findings are what a claim has of paths.
type findings struct {
	manifest tree.Manifest
	absent   map[string]string
	leftOut  []string
}

// findPaths looks for each path at its places, one after the other, so that only files that are wanted are read for their hashes.
func findPaths(paths []Path, list func(places []string) (listing, error)) (found findings, err error) {
	found.absent = map[string]string{}
	near := map[string]agent.Near{}
	at := map[string]string{}
	for round, open := 0, paths; len(open) > 0; round++ {
		places := humanize.Each(open, func(p Path) string { return p.Places[round] })
		some, err := list(places)
		if err != nil {
			return found, err
		}
		found.manifest.Entries = append(found.manifest.Entries, some.Manifest.Entries...)
		found.leftOut = append(found.leftOut, some.LeftOut...)
		maps.Copy(near, some.Near)
		var next []Path
		for _, p := range open {
			switch place := p.Places[round]; {
			case !slices.Contains(some.Absent, place):
				at[p.Name] = place
			case round+1 < len(p.Places):
				next = append(next, p)
			default:
				found.absent[p.Name] = describe(p, near)
			}
		}
		open = next
	}
	slices.SortFunc(found.manifest.Entries, func(a, b tree.Entry) int { return strings.Compare(a.Path, b.Path) })
	found.manifest.Entries = slices.CompactFunc(found.manifest.Entries, func(a, b tree.Entry) bool { return a.Path == b.Path })
	for name, place := range at {
		if problem := problemAt(found.manifest, place); problem != "" {
			found.absent[name] = problem
		}
	}
	return found, nil
}

// describe returns what exists near the places of a path that does not exist.
func describe(p Path, near map[string]agent.Near) string {
	var seen []string
	for _, place := range p.Places {
		n, known := near[place]
		if !known {
			continue
		}
		names := "no files"
		if len(n.Names) > 0 {
			names = strings.Join(n.Names, ", ")
		}
		if there := fmt.Sprintf("%s has %s", path.Join(agent.Workspace, n.Folder), humanize.OneLine(names, 300)); !slices.Contains(seen, there) {
			seen = append(seen, there)
		}
	}
	return strings.Join(append([]string{"not found"}, seen...), "; ")
}

// problemAt returns why nothing is fetched from a place that exists, "" if something is.
func problemAt(m tree.Manifest, place string) string {
	top := tree.Escape(place)
	for _, e := range m.Entries {
		switch {
		case e.Path == top && e.Kind == tree.Link:
			target, _ := tree.Unescape(e.Target)
			return fmt.Sprintf("it is a link to %s, and only files are copied; name that path", path.Join(agent.Workspace, path.Dir(place), target))
		case place == ".", e.Path == top && e.Kind == tree.File, strings.HasPrefix(e.Path, top+"/"):
			return ""
		}
	}
	return "it has no files"
}
