package tree

import (
	"path"
	"slices"
	"strings"
)

// Only leaves out everything but what lies at the paths, which are relative, with
// slashes, and taken as they are, not as patterns. No paths, or "." among them, leave out nothing
// but what is always left out.
func Only(paths []string) *Ignore {
	var clean []string
	for _, p := range paths {
		if p = path.Clean(p); p == "." {
			return nil
		}
		clean = append(clean, p)
	}
	slices.Sort(clean)
	clean = slices.Compact(clean)
	// What lies in another one is there already.
	clean = slices.DeleteFunc(clean, func(p string) bool {
		return slices.ContainsFunc(clean, func(q string) bool { return strings.HasPrefix(p, q+"/") })
	})
	var ignore Ignore
	// Of each depth first what is left out and then what is not: the last rule that matches decides.
	if len(clean) == 0 {
		return nil
	}
	for depth, more := 1, true; more; depth++ {
		more = false
		var kept []rule
		for _, p := range clean {
			parts := strings.Split(quoted(p), "/")
			if len(parts) < depth {
				continue
			}
			more = more || len(parts) > depth
			ignore.rules = append(ignore.rules, rule{parts: append(slices.Clone(parts[:depth-1]), "*")})
			kept = append(kept, rule{parts: parts[:depth], include: true})
		}
		ignore.rules = append(ignore.rules, kept...)
	}
	return &ignore
}

// quoted stands for itself in a pattern.
func quoted(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}
