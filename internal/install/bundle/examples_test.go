// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// The kinds of Triggers v1beta1 that the example has, with only the fields that it uses: Triggers' own package requires an
// older knative.dev/pkg than Tekton's.
type (
	eventListener struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			ServiceAccountName string `json:"serviceAccountName"`
			Triggers           []struct {
				Name         string `json:"name"`
				Interceptors []struct {
					Ref    tekton.TaskRef `json:"ref"`
					Params []named        `json:"params"`
				} `json:"interceptors"`
				Bindings []struct {
					Ref string `json:"ref"`
				} `json:"bindings"`
				Template struct {
					Ref string `json:"ref"`
				} `json:"template"`
			} `json:"triggers"`
			Resources struct {
				KubernetesResource struct {
					Spec struct {
						Template corev1.PodTemplateSpec `json:"template"`
					} `json:"spec"`
				} `json:"kubernetesResource"`
			} `json:"resources"`
		} `json:"spec"`
	}
	triggerBinding struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Params []named `json:"params"`
		} `json:"spec"`
	}
	triggerTemplate struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Params            []named                `json:"params"`
			ResourceTemplates []runtime.RawExtension `json:"resourcetemplates"`
		} `json:"spec"`
	}
	named struct {
		Name        string `json:"name"`
		Description string `json:"description,omitempty"`
		Value       any    `json:"value,omitempty"`
	}
)

// TestTriggersExample finds mistakes that Triggers would report only when an event comes.
func TestTriggersExample(t *testing.T) {
	const folder = root + "/docs/examples/triggers/"
	objects := documents(t, folder+"github.yaml", 3)
	var listener eventListener
	var binding triggerBinding
	var template triggerTemplate
	decode(t, "the EventListener", objects[0], &listener)
	decode(t, "the TriggerBinding", objects[1], &binding)
	decode(t, "the TriggerTemplate", objects[2], &template)

	trigger := listener.Spec.Triggers[0]
	if trigger.Bindings[0].Ref != binding.Name || trigger.Template.Ref != template.Name {
		t.Errorf("the trigger refers to %+v and %+v, want %s and %s", trigger.Bindings, trigger.Template, binding.Name, template.Name)
	}
	if first := trigger.Interceptors[0]; first.Ref.Name != "github" || first.Params[0].Name != "secretRef" {
		t.Errorf("the first interceptor is %+v, want the one that checks the signature", first)
	}
	// Whoever knows the secret can sign an event that names another repository, which the run would clone.
	filter := trigger.Interceptors[1].Params[0]
	if text, _ := filter.Value.(string); filter.Name != "filter" || !strings.HasPrefix(text, "body.repository.clone_url in ['https://") ||
		fmt.Sprint(binding.Spec.Params[0].Value) != "$(body.repository.clone_url)" {
		t.Errorf("filter %+v, binding %+v: want the repositories named that the run may clone", filter, binding.Spec.Params[0])
	}
	names := func(all []named) (names []string) {
		for _, one := range all {
			names = append(names, one.Name)
		}
		return names
	}
	if bound, declared := names(binding.Spec.Params), names(template.Spec.Params); !slices.Equal(bound, declared) {
		t.Errorf("the binding gives %v, the template has %v", bound, declared)
	}
	made := template.Spec.ResourceTemplates[0].Raw
	var used []string
	for _, found := range regexp.MustCompile(`\$\(tt\.params\.([a-z]+)\)`).FindAllSubmatch(made, -1) {
		used = append(used, string(found[1]))
	}
	if declared := names(template.Spec.Params); !slices.Equal(used, declared) {
		t.Errorf("the template uses %v, and has %v", used, declared)
	}
	runExample(t, "the TriggerTemplate's run", made)

	rights := documents(t, folder+"rights.yaml", 3)
	var account corev1.ServiceAccount
	var role rbacv1.Role
	var given rbacv1.RoleBinding
	decode(t, "the ServiceAccount", rights[0], &account)
	decode(t, "the Role", rights[1], &role)
	decode(t, "the RoleBinding", rights[2], &given)
	if account.Name != listener.Spec.ServiceAccountName || given.RoleRef.Name != role.Name || given.Subjects[0].Name != account.Name {
		t.Errorf("role %s is bound as %+v; want it for the EventListener's %s", role.Name, given, listener.Spec.ServiceAccountName)
	}
	var clusterRole rbacv1.ClusterRole
	decode(t, "the ClusterRole", documents(t, folder+"cluster-rights.yaml", 1)[0], &clusterRole)
	for _, rule := range slices.Concat(role.Rules, clusterRole.Rules) {
		if slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Resources, "*") || slices.Contains(rule.Verbs, "*") {
			t.Errorf("the EventListener may %v, which is more than it needs", rule)
		}
	}
}

// TestPipelinesAsCodeExample checks the run, and the annotations by which Pipelines as Code finds it.
func TestPipelinesAsCodeExample(t *testing.T) {
	const file = root + "/docs/examples/pipelines-as-code/.tekton/train.yaml"
	found := runExample(t, file, documents(t, file, 1)[0])
	for annotation, want := range map[string]string{"on-event": "[push, pull_request]", "on-target-branch": "[main]",
		"target-namespace": "ml", "cancel-in-progress": "true"} {
		if got := found.Annotations["pipelinesascode.tekton.dev/"+annotation]; got != want {
			t.Errorf("annotation %s is %q, want %q", annotation, got, want)
		}
	}
	// Pipelines as Code cancels no run of a Repository with a limit (cancelInProgressMatchingPipelineRun).
	var repository struct {
		Spec map[string]any `json:"spec"`
	}
	content := documents(t, root+"/docs/examples/pipelines-as-code/repository.yaml", 1)[0]
	if err := yaml.Unmarshal(content, &repository); err != nil || repository.Spec["concurrency_limit"] != nil {
		t.Errorf("the Repository: %v, %v: want no concurrency_limit", repository.Spec, err)
	}
}

// runExample checks that the pipeline accepts the run, and that the run's timeouts are long enough for its work.
func runExample(t *testing.T, name string, content []byte) *tekton.PipelineRun {
	t.Helper()
	found := &tekton.PipelineRun{}
	decode(t, name, content, found)
	checked := found.DeepCopy()
	checked.Name = found.Name + "x" // the API server generates it from generateName
	tektonAccepts(t, checked)
	reference := found.Spec.PipelineRef.Name
	for _, param := range found.Spec.PipelineRef.Params {
		if param.Name == "name" {
			reference = param.Value.StringVal
		}
	}
	pipeline := pipelines(t)[reference]
	if pipeline == nil {
		t.Fatalf("%s: no pipeline %q", name, reference)
	}
	given(t, name, found.Spec.Params, pipeline.Spec.Params)
	if account := found.Spec.TaskRunTemplate.ServiceAccountName; account != launch.ServiceAccount {
		t.Errorf("%s: the service account is %q, want %s", name, account, launch.ServiceAccount)
	}
	if got := launch.Values(found)["require-rendezvous"]; !slices.Equal(got, []string{"fail"}) {
		t.Errorf("%s: require-rendezvous is %q, want fail: nobody reads the warnings of a run that succeeds", name, got)
	}
	duration := func(param string) time.Duration {
		d, err := time.ParseDuration(launch.ParamValue(pipeline, launch.Values(found), param))
		if err != nil {
			t.Errorf("%s: param %s: %v", name, param, err)
		}
		return d
	}
	want := run.TimeoutsFor(run.Needs{Build: duration("build-timeout"), Start: duration("start-timeout"), Training: duration("timeout"),
		Teardown: run.TeardownTime})
	timeouts := found.Spec.Timeouts
	if timeouts.Tasks.Duration < want.Tasks || timeouts.Finally.Duration < want.Finally ||
		timeouts.Pipeline.Duration < timeouts.Tasks.Duration+timeouts.Finally.Duration {
		t.Errorf("%s: timeouts %+v: want %+v at least", name, timeouts, want)
	}
	return found
}

// documents returns the documents of a YAML file.
func documents(t *testing.T, path string, count int) [][]byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := bytes.Split(content, []byte("\n---\n"))
	if len(found) != count {
		t.Fatalf("%s holds %d objects, want %d", path, len(found), count)
	}
	return found
}
