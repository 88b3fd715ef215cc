package install

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/golden"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// kustomizations is the folder that kubectl apply -k takes them from.
const kustomizations = "../../install"

func clusterFiles(t *testing.T) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("../../clusters/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("cluster files %v, %v", paths, err)
	}
	files := map[string][]byte{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimSuffix(filepath.Base(path), ".yaml")] = content
	}
	return files
}

// TestKustomizationsAreCurrent: -update writes them.
func TestKustomizationsAreCurrent(t *testing.T) {
	made, err := Kustomize(mldevenv.Bundle, clusterFiles(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range made {
		path := filepath.Join(kustomizations, name)
		golden.File(t, path, string(want))
	}
	err = filepath.WalkDir(kustomizations, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(kustomizations, path)
		if name == "nightly" {
			return filepath.SkipDir // internal/cli/schedule makes and tests it
		}
		if err == nil && !entry.IsDir() && filepath.Ext(name) == ".yaml" && made[filepath.ToSlash(name)] == nil {
			t.Errorf("%s is not generated any more: delete it", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestKustomizeEqualsInstall builds each overlay with kustomize itself, as kubectl does.
func TestKustomizeEqualsInstall(t *testing.T) {
	made, err := Kustomize(mldevenv.Bundle, clusterFiles(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range clusterFiles(t) {
		file, err := cluster.Load(name, content)
		if err != nil {
			t.Fatal(err)
		}
		for _, namespace := range []string{file.Cluster.Namespace, "elsewhere"} {
			t.Run(name+" in "+namespace, func(t *testing.T) {
				r := Request{Cluster: file, ClusterFile: content, Namespace: namespace, StepsImage: stepsImage, ServiceAccount: DefaultServiceAccount}
				edited := strings.NewReplacer("namespace: "+file.Cluster.Namespace, "namespace: "+namespace,
					"newName: registry.invalid/ml-dev-env/steps", "newName: "+strings.Replace(stepsImage, "@", "\n  digest: ", 1))
				got := build(t, made, "overlays/"+name, edited)
				if diff := cmp.Diff(keyed(render(t, r)), got); diff != "" {
					t.Errorf("(-mlenv install +kustomize):\n%s", diff)
				}
				if namespace != file.Cluster.Namespace {
					return
				}
				r.ClusterRole = true
				all := keyed(render(t, r))
				for key := range got {
					delete(all, key)
				}
				if diff := cmp.Diff(all, build(t, made, "admin/"+name, strings.NewReplacer())); diff != "" {
					t.Errorf("the administrator's part (-mlenv install --admin +kustomize):\n%s", diff)
				}
			})
		}
	}
}

// build runs kustomize on the files, with the folder's own kustomization edited.
func build(t *testing.T, made map[string][]byte, folder string, edit *strings.Replacer) map[string]map[string]any {
	t.Helper()
	disk := filesys.MakeFsInMemory()
	for name, content := range made {
		if name == folder+"/"+kustomization {
			content = []byte(edit.Replace(string(content)))
		}
		if err := disk.WriteFile("/"+name, content); err != nil {
			t.Fatal(err)
		}
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, "/"+folder)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for _, resource := range resources.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &object.Object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	return keyed(objects)
}

// keyed are the objects by their titles, as YAML has them: numbers are of one type then.
func keyed(objects []*unstructured.Unstructured) map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, object := range objects {
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			panic(err)
		}
		fields := map[string]any{}
		if err := yaml.Unmarshal(text, &fields); err != nil {
			panic(err)
		}
		all[Title(object)] = fields
	}
	return all
}

// TestOutputIsStable: GitOps compares what it is given with what it was given.
func TestOutputIsStable(t *testing.T) {
	outputs := make([]string, 3)
	for i := range outputs {
		var out strings.Builder
		if err := step.WriteObjects(&out, render(t, request(t))); err != nil {
			t.Fatal(err)
		}
		outputs[i] = out.String()
	}
	if len(slices.Compact(outputs)) != 1 {
		t.Error("the same request is printed in different ways")
	}
}
