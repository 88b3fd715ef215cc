// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// missingModule matches the message of a ModuleNotFoundError.
var missingModule = regexp.MustCompile(`^No module named '([^']+)'`)

// deepestPackage is how many folders deep a missing module may lie: deeper ones are rarely meant.
const deepestPackage = 2

// inTree returns the folder of the working directory in which the module lies that p misses, "." for the working directory itself,
// "" for none. A module of a package is meant only by a file next to it: to others it has the package before its name, and the module
// that they miss is another one, which is not installed.
func inTree(p *agent.PythonError, dir string) string {
	match := missingModule.FindStringSubmatch(p.Message)
	if p.Type != "ModuleNotFoundError" || match == nil {
		return ""
	}
	module := "/" + strings.ReplaceAll(match[1], ".", "/")
	names := tree.Names(dir)
	for _, name := range names { // upper folders come first
		folder, rest, found := strings.Cut("/"+name, module)
		if !found || !strings.HasSuffix(name, ".py") || rest != ".py" && rest[0] != '/' || strings.Count(folder, "/") > deepestPackage {
			continue
		}
		if folder == "" {
			return "."
		}
		if slices.Contains(names, folder[1:]+"/__init__.py") && !strings.HasSuffix("/"+path.Dir(p.File), folder) {
			continue
		}
		return folder[1:]
	}
	return ""
}
