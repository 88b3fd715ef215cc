// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/pypi"
)

// packagesTime bounds the questions about a folder's requirements.
const packagesTime = 4 * time.Second

// warnPackages warns about requirements of a folder that the package index lacks. preflight cannot read the folder, and this machine may
// use another index than the nodes, so pip has the last word.
func warnPackages(ctx context.Context, warnings io.Writer, client *http.Client, dir, requirements string) {
	all, settings := readRequirements(dir, requirements)
	if settings.Elsewhere || len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, packagesTime)
	defer cancel()
	for _, problem := range pypi.Ask(ctx, client, settings, all).Problems {
		fmt.Fprintf(warnings, "warning: %s: %q: %s\n", requirements, problem.Requirement.Text, humanize.PlainLine(problem.Seen))
	}
}

// readRequirements reads a file of the folder and those that it includes. What cannot be read is reported elsewhere.
func readRequirements(dir, name string) (all []pypi.Requirement, settings pypi.Settings) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, settings
	}
	defer root.Close()
	const mostFiles, longest = 20, 1 << 20
	seen := map[string]bool{}
	for names := []string{path.Clean(name)}; len(names) > 0 && len(seen) < mostFiles; names = names[1:] {
		if seen[names[0]] {
			continue
		}
		seen[names[0]] = true
		content, err := claimfile.ReadIn(root, names[0], longest)
		if err != nil {
			continue
		}
		found, own, includes := pypi.Parse(string(content))
		all, settings = append(all, found...), settings.With(own)
		for _, include := range includes {
			if !strings.Contains(include, "://") && !path.IsAbs(include) {
				names = append(names, path.Join(path.Dir(names[0]), include))
			}
		}
	}
	return all, settings.FromEnvironment(os.Environ())
}
