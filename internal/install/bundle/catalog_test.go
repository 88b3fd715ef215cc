package bundle_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
)

// TestCatalog reads all Tasks and Pipelines as Artifact Hub and Tekton's catalogs do
// (artifacthub/hub:internal/tracker/source/tekton). TestTasks and TestPipelines check the rest of each.
func TestCatalog(t *testing.T) {
	// All have one version, which is the tag, and one image runs them.
	versions, images := map[string][]string{}, map[string][]string{}
	look := func(kind, name string, labels, annotations map[string]string, params tekton.ParamSpecs) {
		t.Run(kind+"/"+name, func(t *testing.T) {
			version := labels["app.kubernetes.io/version"]
			versions[version] = append(versions[version], name)
			image := spec(params, "steps-image").Default.StringVal
			images[image] = append(images[image], name)
			var platforms []string
			for _, platform := range bundle.Platforms() {
				platforms = append(platforms, platform.String())
			}
			if got, want := annotations["tekton.dev/platforms"], strings.Join(platforms, ","); got != want {
				t.Errorf("platforms %s, want those of the steps image: %s", got, want)
			}
			for tag := range strings.SplitSeq(annotations["tekton.dev/tags"], ",") {
				if tag = strings.TrimSpace(tag); tag == "" || strings.ToLower(tag) != tag || strings.Contains(tag, " ") {
					t.Errorf("tag %q, want a word of small letters", tag)
				}
			}
			readme, err := os.ReadFile(filepath.Join(root, kind, name, "README.md"))
			if err != nil || !strings.HasPrefix(string(readme), "# "+name+"\n") {
				t.Errorf("README.md: %v: want its heading to be the name", err)
			}
		})
	}
	for name, task := range tasks(t) {
		look("tasks", name, task.Labels, task.Annotations, task.Spec.Params)
	}
	for name, pipeline := range pipelines(t) {
		look("pipelines", name, pipeline.Labels, pipeline.Annotations, pipeline.Spec.Params)
	}
	if len(versions) != 1 || len(images) != 1 {
		t.Errorf("versions %v, images %v: want one of each", versions, images)
	}
	for _, kind := range []string{"tasks", "pipelines"} {
		content, err := os.ReadFile(filepath.Join(root, kind, "artifacthub-repo.yml"))
		if err != nil {
			t.Fatal(err)
		}
		var metadata struct {
			RepositoryID string `json:"repositoryID"`
			Owners       []any  `json:"owners"`
			Ignore       []any  `json:"ignore"`
		}
		if err := yaml.UnmarshalStrict(content, &metadata); err != nil {
			t.Errorf("%s/artifacthub-repo.yml: %v", kind, err)
		}
	}
}
