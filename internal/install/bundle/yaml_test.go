// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
)

// root is the folder of the checkout.
const root = "../../.."

// stepOf returns the name of a Task's step, which is also its name in our Pipelines.
func stepOf(task string) string { return strings.TrimPrefix(task, "mlenv-") }

// decode is strict: it fails the test on an unknown or repeated key.
func decode(t *testing.T, name string, content []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(content, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// tasks returns the bundle's Tasks by name. The folder and the file have the same name.
func tasks(t *testing.T) map[string]*tekton.Task {
	t.Helper()
	all := map[string]*tekton.Task{}
	for folder, content := range files(t, "tasks") {
		task := &tekton.Task{}
		decode(t, folder, content, task)
		if task.Name != folder {
			t.Errorf("task %s lies in tasks/%s: want one name", task.Name, folder)
		}
		all[folder] = task
	}
	return all
}

func pipelines(t *testing.T) map[string]*tekton.Pipeline {
	t.Helper()
	all := map[string]*tekton.Pipeline{}
	for folder, content := range files(t, "pipelines") {
		pipeline := &tekton.Pipeline{}
		decode(t, folder, content, pipeline)
		if pipeline.Name != folder {
			t.Errorf("pipeline %s lies in pipelines/%s: want one name", pipeline.Name, folder)
		}
		all[folder] = pipeline
	}
	return all
}

// files returns the contents of KIND/NAME/NAME.yaml by NAME.
func files(t *testing.T, kind string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	names, err := fs.Glob(mldevenv.Bundle, kind+"/*/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v: want files", kind, err)
	}
	for _, name := range names {
		folder := filepath.Base(filepath.Dir(name))
		if filepath.Base(name) != folder+".yaml" {
			t.Errorf("%s: want %s.yaml alone in its folder", name, folder)
		}
		content, err := fs.ReadFile(mldevenv.Bundle, name)
		if err != nil {
			t.Fatal(err)
		}
		all[folder] = content
	}
	return all
}

func TestTasks(t *testing.T) {
	for name, task := range tasks(t) {
		t.Run(name, func(t *testing.T) {
			metadata(t, task.Labels, task.Annotations, task.Spec.Description)
			tektonAccepts(t, task.DeepCopy())
			declares(t, task.Spec.Params, string(files(t, "tasks")[name]))
			if len(task.Spec.Steps) != 1 {
				t.Fatalf("%d steps, want one", len(task.Spec.Steps))
			}
			step := task.Spec.Steps[0]
			if step.Script != "" {
				t.Error("the step has a script; want command and args")
			}
			if got, want := step.Command, []string{agent.StepsProgram, stepOf(name)}; !slices.Equal(got, want) {
				t.Errorf("command %v, want %v", got, want)
			}
			if step.Image != "$(params.steps-image)" {
				t.Errorf("image %s, want the param steps-image", step.Image)
			}
			results(t, task, step.Args)
			restricted(t, step)
			volumes(t, task, step)
		})
	}
}

// metadata checks the labels and annotations that catalogs require.
func metadata(t *testing.T, labels, annotations map[string]string, description string) {
	t.Helper()
	if version := labels["app.kubernetes.io/version"]; !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(version) {
		t.Errorf("label app.kubernetes.io/version %q, want a semantic version", version)
	}
	for _, name := range []string{"pipelines.minVersion", "categories", "tags", "displayName", "platforms"} {
		if annotations["tekton.dev/"+name] == "" {
			t.Errorf("annotation tekton.dev/%s is missing", name)
		}
	}
	const lengthOfASummary = 120
	summary, rest, _ := strings.Cut(description, "\n")
	if !strings.HasSuffix(summary, ".") || len(summary) > lengthOfASummary || !strings.HasPrefix(rest, "\n") {
		t.Errorf("description begins with %q: want a summary of one sentence and an empty line", summary)
	}
}

// validated is an object that Tekton's webhook validates; E is Tekton's own type of error.
type validated[E any] interface {
	SetDefaults(context.Context)
	Validate(context.Context) E
}

// tektonAccepts checks an object as Tekton's webhook does.
func tektonAccepts[E comparable](t *testing.T, object validated[E]) {
	t.Helper()
	object.SetDefaults(t.Context())
	var none E
	if err := object.Validate(t.Context()); err != none {
		t.Error(err)
	}
}

// declares checks that the params are declared that a text uses.
func declares(t *testing.T, specs tekton.ParamSpecs, text string) {
	t.Helper()
	for _, match := range regexp.MustCompile(`\$\(params\.([a-z-]+)`).FindAllStringSubmatch(text, -1) {
		if spec(specs, match[1]) == nil {
			t.Errorf("param %s is used and not declared", match[1])
		}
	}
}

// results checks that a flag with its name writes each result.
func results(t *testing.T, task *tekton.Task, args []string) {
	t.Helper()
	var want, got []string
	for _, result := range task.Spec.Results {
		want = append(want, "--"+result.Name+"-result=$(results."+result.Name+".path)")
		if result.Description == "" {
			t.Errorf("result %s has no description", result.Name)
		}
	}
	for _, arg := range args {
		if strings.Contains(arg, "$(results.") {
			got = append(got, arg)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("result flags %v, want %v", got, want)
	}
	for _, name := range []string{"reason", "message"} {
		if !slices.ContainsFunc(task.Spec.Results, func(r tekton.TaskResult) bool { return r.Name == name }) {
			t.Errorf("result %s is missing", name)
		}
	}
}

// restricted checks what OpenShift's restricted-v2 and Kubernetes' restricted level require.
func restricted(t *testing.T, step tekton.Step) {
	t.Helper()
	c := step.SecurityContext
	switch {
	case c == nil:
		t.Fatal("no security context")
	case c.RunAsUser != nil:
		t.Error("runAsUser is set: restricted-v2 refuses it")
	case c.RunAsNonRoot == nil || !*c.RunAsNonRoot:
		t.Error("runAsNonRoot is not true")
	case c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation:
		t.Error("allowPrivilegeEscalation is not false")
	case c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem:
		t.Error("readOnlyRootFilesystem is not true")
	case c.Capabilities == nil || len(c.Capabilities.Add) > 0 || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}):
		t.Error("capabilities are not dropped")
	case c.SeccompProfile == nil || c.SeccompProfile.Type != "RuntimeDefault":
		t.Error("seccompProfile is not RuntimeDefault")
	}
	if step.ComputeResources.Requests.Cpu().IsZero() || step.ComputeResources.Limits.Memory().IsZero() {
		t.Error("computeResources: want requests and a limit of memory")
	}
}

// volumes checks that all volumes are mounted, and optional, so that the step reports a missing Secret or ConfigMap.
func volumes(t *testing.T, task *tekton.Task, step tekton.Step) {
	t.Helper()
	mounted := map[string]string{}
	for _, mount := range step.VolumeMounts {
		mounted[mount.Name] = mount.MountPath
	}
	for _, volume := range task.Spec.Volumes {
		path, ok := mounted[volume.Name]
		if !ok {
			t.Errorf("volume %s is not mounted", volume.Name)
		}
		if !slices.ContainsFunc(step.Args, func(arg string) bool { return strings.Contains(arg, "="+path) }) {
			t.Errorf("volume %s: no flag names its folder %s", volume.Name, path)
		}
		if volume.Secret != nil && (volume.Secret.Optional == nil || !*volume.Secret.Optional) ||
			volume.ConfigMap != nil && (volume.ConfigMap.Optional == nil || !*volume.ConfigMap.Optional) {
			t.Errorf("volume %s is not optional", volume.Name)
		}
		// The root is read-only, so this bounds the step's disk. A limit of ephemeral-storage would count against quotas.
		if volume.EmptyDir != nil && volume.EmptyDir.SizeLimit.IsZero() {
			t.Errorf("volume %s: want a sizeLimit", volume.Name)
		}
	}
}

func TestPipelines(t *testing.T) {
	known := tasks(t)
	for name, pipeline := range pipelines(t) {
		t.Run(name, func(t *testing.T) {
			metadata(t, pipeline.Labels, pipeline.Annotations, pipeline.Spec.Description)
			tektonAccepts(t, pipeline.DeepCopy())
			declares(t, pipeline.Spec.Params, string(files(t, "pipelines")[name]))
			if len(pipeline.Spec.Workspaces) > 0 {
				t.Error("a workspace: tkn prompts for workspaces at every start, optional or not, and fails without a terminal")
			}
			for _, task := range slices.Concat(pipeline.Spec.Tasks, pipeline.Spec.Finally) {
				calls(t, task, known)
				if task.TaskSpec != nil {
					t.Errorf("task %s is written into the pipeline; want a reference", task.Name)
				}
			}
			for _, task := range pipeline.Spec.Finally {
				for _, param := range task.Params {
					for _, value := range values(param.Value) {
						if strings.Contains(value, "$(tasks.") {
							t.Errorf("finally task %s: param %s is %s: Tekton skips the task when that is missing", task.Name, param.Name, value)
						}
					}
				}
			}
		})
	}
}

// calls checks that the task exists, that it has the params that it is given, and that it is given all params without a
// default.
func calls(t *testing.T, call tekton.PipelineTask, known map[string]*tekton.Task) {
	t.Helper()
	// The argument --task-name relies on it.
	if call.TaskRef != nil && stepOf(call.TaskRef.Name) != call.Name {
		t.Errorf("task %s calls %s; want mlenv-%s", call.Name, call.TaskRef.Name, call.Name)
	}
	if call.TaskRef == nil || known[call.TaskRef.Name] == nil {
		t.Errorf("task %s: no such Task", call.Name)
		return
	}
	given(t, "task "+call.Name, call.Params, known[call.TaskRef.Name].Spec.Params)
	for _, param := range call.Params {
		for _, value := range values(param.Value) {
			for _, match := range regexp.MustCompile(`\$\(tasks\.([a-z-]+)\.results\.([a-z-]+)\)`).FindAllStringSubmatch(value, -1) {
				if source := known["mlenv-"+match[1]]; source == nil || !slices.ContainsFunc(source.Spec.Results, func(r tekton.TaskResult) bool {
					return r.Name == match[2]
				}) {
					t.Errorf("task %s: %s: no such result", call.Name, value)
				}
			}
		}
	}
}

// given checks arguments against the declared params.
func given(t *testing.T, who string, arguments tekton.Params, declared tekton.ParamSpecs) {
	t.Helper()
	for _, argument := range arguments {
		i := slices.IndexFunc(declared, func(p tekton.ParamSpec) bool { return p.Name == argument.Name })
		if i < 0 {
			t.Errorf("%s: no param %s", who, argument.Name)
			continue
		}
		wantType := declared[i].Type
		if wantType == "" {
			wantType = tekton.ParamTypeString
		}
		if argument.Value.Type != wantType {
			t.Errorf("%s: param %s is a %s, want a %s", who, argument.Name, argument.Value.Type, wantType)
		}
	}
	for _, param := range declared {
		if param.Default == nil && !slices.ContainsFunc(arguments, func(a tekton.Param) bool { return a.Name == param.Name }) {
			t.Errorf("%s: param %s is not given and has no default", who, param.Name)
		}
	}
}

func spec(specs tekton.ParamSpecs, name string) *tekton.ParamSpec {
	for i := range specs {
		if specs[i].Name == name {
			return &specs[i]
		}
	}
	return nil
}

func values(value tekton.ParamValue) []string {
	return slices.Concat([]string{value.StringVal}, value.ArrayVal, slices.Collect(maps.Values(value.ObjectVal)))
}

// TestSamples checks that the samples that users copy would run; the runs of tests/ are among them.
func TestSamples(t *testing.T) {
	for name, task := range tasks(t) {
		for file, content := range samples(t, "tasks", name) {
			run := &tekton.TaskRun{}
			decode(t, file, content, run)
			// The API server generates the name before Tekton validates the object.
			run.Name = run.GenerateName + "x"
			tektonAccepts(t, run.DeepCopy())
			if run.Spec.TaskRef == nil || run.Spec.TaskRef.Name != name {
				t.Errorf("%s: want a run of %s", file, name)
			}
			given(t, file, run.Spec.Params, task.Spec.Params)
		}
	}
	for name, pipeline := range pipelines(t) {
		for file, content := range samples(t, "pipelines", name) {
			run := &tekton.PipelineRun{}
			decode(t, file, content, run)
			// The API server generates the name before Tekton validates the object.
			run.Name = run.GenerateName + "x"
			tektonAccepts(t, run.DeepCopy())
			if run.Spec.PipelineRef == nil || run.Spec.PipelineRef.Name != name {
				t.Errorf("%s: want a run of %s", file, name)
			}
			given(t, file, run.Spec.Params, pipeline.Spec.Params)
		}
	}
}

// TestClusterSamples: each shipped cluster file, except the local cluster's, has a sample for its namespace.
func TestClusterSamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "clusters", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v: want cluster files", files, err)
	}
	all := samples(t, "pipelines", "train-multi-node")
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file, err := cluster.Load(path, content)
		if err != nil {
			t.Fatal(err)
		}
		if file.Cluster.Name == "local" {
			continue
		}
		run := &tekton.PipelineRun{}
		sample := filepath.Join(root, "pipelines", "train-multi-node", "samples", filepath.Base(path))
		decode(t, sample, all[sample], run)
		if run.Namespace != file.Cluster.Namespace || !slices.ContainsFunc(run.Spec.Params, func(p tekton.Param) bool {
			return p.Name == "cluster" && p.Value.StringVal == file.Cluster.Name
		}) {
			t.Errorf("%s: want namespace %s and param cluster %s", sample, file.Cluster.Namespace, file.Cluster.Name)
		}
	}
}

func samples(t *testing.T, kind, name string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, folder := range []string{"samples", "tests"} {
		paths, err := filepath.Glob(filepath.Join(root, kind, name, folder, "*.yaml"))
		if err != nil || len(paths) == 0 {
			t.Errorf("%s/%s/%s: %v: want a run", kind, name, folder, err)
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all[path] = content
		}
	}
	return all
}
