// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
)

// reference matches a line of a README by which a run uses a Task or Pipeline without installing it.
var reference = regexp.MustCompile(`(?m)^    (task|pipeline)Ref: (\{.*\})$`)

// Each README has one line for each resolver, which leads to its own Task or Pipeline at its own version. The params belong to
// Tekton's resolvers (tektoncd/pipeline:docs/git-resolver.md and docs/bundle-resolver.md).
func TestReadmesNameResolvers(t *testing.T) {
	versions := map[string]string{}
	for name, task := range tasks(t) {
		versions["tasks/"+name] = task.Labels["app.kubernetes.io/version"]
	}
	for name, pipeline := range pipelines(t) {
		versions["pipelines/"+name] = pipeline.Labels["app.kubernetes.io/version"]
	}
	for at, version := range versions {
		t.Run(at, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(root, at, "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]map[string]string{}
			for _, line := range reference.FindAllStringSubmatch(string(text), -1) {
				ref := tekton.ResolverRef{}
				decode(t, line[0], []byte(line[2]), &ref)
				values := map[string]string{}
				for _, param := range ref.Params {
					values[param.Name] = param.Value.StringVal
				}
				found[string(ref.Resolver)] = values
				kind, _, _ := strings.Cut(at, "s/")
				if line[1] != kind {
					t.Errorf("%s: want a %sRef", line[0], kind)
				}
			}
			if len(found) != 2 {
				t.Fatalf("resolvers %v, want git and bundles", found)
			}
			git, bundles := found["git"], found["bundles"]
			if fmt.Sprint(len(git), git["url"], git["revision"]) != fmt.Sprint(3, "https://github.com/ml-dev-env/ml-dev-env", "v"+version) {
				t.Errorf("git resolver: %v, want version v%s", git, version)
			}
			kind, own, _ := strings.Cut(at, "s/")
			content, err := fs.ReadFile(mldevenv.Bundle, git["pathInRepo"])
			if err != nil || !strings.Contains(string(content), "\n  name: "+own+"\n") {
				t.Errorf("git resolver: %s: %v, want the file of %s", git["pathInRepo"], err, own)
			}
			if fmt.Sprint(len(bundles), bundles["name"], bundles["kind"]) != fmt.Sprint(3, own, kind) {
				t.Errorf("bundles resolver: %v, want %s %s", bundles, kind, own)
			}
			tag, err := name.NewTag(bundles["bundle"], name.StrictValidation)
			if err != nil || tag.TagStr() != "v"+version || tag.RepositoryStr() != "ml-dev-env/ml-dev-env/tasks" {
				t.Errorf("bundles resolver: %s: %v, want the release's bundle at v%s", bundles["bundle"], err, version)
			}
		})
	}
}
