// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"sigs.k8s.io/yaml"
)

// categories lists what Tekton's catalogs have (tektoncd/hub:config.yaml); catlin validate accepts no other one.
func categories() []string {
	return []string{
		"Automation", "Build Tools", "CLI", "Cloud", "Code Quality", "Continuous Integration", "Deployment", "Developer Tools", "Image Build",
		"Integration & Delivery", "Git", "Kubernetes", "Messaging", "Monitoring", "Networking", "Openshift", "Publishing", "Security", "Storage",
		"Testing",
	}
}

// hubCategories lists what Artifact Hub has (artifacthub/hub:internal/hub/pkg.go).
func hubCategories() []string {
	return []string{
		"ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking", "security", "storage",
		"streaming-messaging", "skip-prediction",
	}
}

var minVersion = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// TestCatalog reads all Tasks and Pipelines as Artifact Hub and Tekton's catalogs do
// (artifacthub/hub:internal/tracker/source/tekton). TestTasks and TestPipelines check the rest of each.
func TestCatalog(t *testing.T) {
	// All have one version, which is the tag, and one image runs them.
	versions, images := map[string][]string{}, map[string][]string{}
	script, err := os.ReadFile(filepath.Join(root, "cmd/steps/release/steps-image"))
	if err != nil {
		t.Fatal(err)
	}
	stepsImage := string(script)
	look := func(kind, name string, labels, annotations map[string]string, params tekton.ParamSpecs) {
		t.Run(kind+"/"+name, func(t *testing.T) {
			version := labels["app.kubernetes.io/version"]
			versions[version] = append(versions[version], name)
			image := spec(params, "steps-image").Default.StringVal
			images[image] = append(images[image], name)
			if got := annotations["tekton.dev/platforms"]; !strings.Contains(stepsImage, "platforms=${PLATFORMS:-"+got+"}\n") {
				t.Errorf("platforms %s, want those of cmd/steps/release/steps-image", got)
			}
			for category := range strings.SplitSeq(annotations["tekton.dev/categories"], ",") {
				if !slices.Contains(categories(), strings.TrimSpace(category)) {
					t.Errorf("category %q, want some of %v", category, categories())
				}
			}
			if !minVersion.MatchString(annotations["tekton.dev/pipelines.minVersion"]) || annotations["tekton.dev/displayName"] == "" {
				t.Errorf("annotations %v: want a minimum version of Tekton and a name for display", annotations)
			}
			hubCategory, license := annotations["artifacthub.io/category"], annotations["artifacthub.io/license"]
			if !slices.Contains(hubCategories(), hubCategory) || license != "Apache-2.0" {
				t.Errorf("annotations %v: want a category of Artifact Hub and the licence", annotations)
			}
			if samples, err := filepath.Glob(filepath.Join(root, kind, name, "samples", "*.yaml")); err != nil || len(samples) == 0 {
				t.Errorf("samples: %v, %v", samples, err)
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
			last := 0
			for _, section := range []string{"\n## Install\n", "\n## Params\n", "\n## Results\n"} {
				at := strings.Index(string(readme), section)
				if at <= last {
					t.Errorf("README.md: section %q is missing, or before an earlier one", section)
				}
				last = at
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
