// SPDX-License-Identifier: Apache-2.0

package install

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

const stepsImage = "registry.example.com/steps@sha256:1111111111111111111111111111111111111111111111111111111111111111"

const clusterFile = `cluster: {name: small, api: api.small.example.com, namespace: team}
storage: {class_rwo: disks}
gpus: {per_node: 8, default_nodes: 3}
image: {name: registry.example.com/training:v1}
`

// request returns a request for a cluster with values that are not the defaults.
func request(t *testing.T) Request {
	t.Helper()
	file, err := cluster.Load("small.yaml", []byte(clusterFile))
	if err != nil {
		t.Fatal(err)
	}
	return Request{
		Cluster: file, ClusterFile: []byte(clusterFile), Namespace: "team", StepsImage: stepsImage, ServiceAccount: "mlenv-pipeline",
	}
}

func render(t *testing.T, request Request) []*unstructured.Unstructured {
	t.Helper()
	rendered, err := Render(request, mldevenv.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	return rendered
}

// TestRenderBesideBundle shows every object that is not a Task or Pipeline in golden files: above all the rights, so that
// a review sees every wider right.
func TestRenderBesideBundle(t *testing.T) {
	admin := request(t)
	admin.ClusterRole, admin.ServiceAccount = true, "pipeline"
	for name, request := range map[string]Request{"namespace.yaml": request(t), "admin.yaml": admin} {
		t.Run(name, func(t *testing.T) {
			var beside []*unstructured.Unstructured
			for _, object := range render(t, request) {
				if object.GroupVersionKind().Group != "tekton.dev" {
					beside = append(beside, object)
				}
			}
			var got strings.Builder
			if err := command.WriteObjects(&got, beside); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name)
			golden.File(t, path, got.String())
		})
	}
}

// TestRightsForMonitoring: only a cluster file with PodMonitors grants them.
func TestRightsForMonitoring(t *testing.T) {
	r := request(t)
	for _, monitored := range []bool{false, true} {
		r.Cluster.Monitoring.PodMonitor = monitored
		var verbs []string
		for _, rule := range r.role().Rules {
			if slices.Contains(rule.Resources, "podmonitors") || slices.Contains(rule.APIGroups, "monitoring.coreos.com") {
				verbs = append(verbs, rule.Verbs...)
			}
		}
		if got := strings.Join(verbs, " "); monitored != (got == "get create patch delete") || !monitored && got != "" {
			t.Errorf("monitored %v: the steps may %q", monitored, got)
		}
	}
}

// TestFilesBesideEachOther: an installation keeps what the runs of another cluster file in the namespace need.
func TestFilesBesideEachOther(t *testing.T) {
	r := request(t)
	other := r.Cluster
	other.Monitoring.PodMonitor, other.Nodes.Queue, other.Nodes.StopGrace = true, "team-queue", cluster.Duration(5*time.Minute)
	r.Beside = []cluster.File{other}
	alone := r
	alone.Cluster, alone.Beside = other, nil
	if diff := cmp.Diff(alone.role(), r.role()); diff != "" {
		t.Errorf("the Role of both differs from that of the file with a queue and PodMonitors:\n%s", diff)
	}
	if got := r.defaults()["stop-grace"]; got != "5m0s" && got != "5m" {
		t.Errorf("stop-grace is %s, want the longest", got)
	}
}

// TestRenderFillsDefaults: a run that names another installed cluster must not get the values of this one. Values that are
// empty or 0 come from the run's own cluster file.
func TestRenderFillsDefaults(t *testing.T) {
	want := map[string]map[string]string{
		"Task/mlenv-build-image": {"cluster": "small", "image": "", "flavour": "", "pull-secret": "none"},
		"Task/mlenv-provision": {"cluster": "small", "steps-image": stepsImage, "image": "", "nodes": "0", "gpus-per-node": "",
			"storage": ""},
		"Task/mlenv-train":    {"steps-image": stepsImage, "ranks-per-node": "0", "notify": "slack"},
		"Task/mlenv-teardown": {"notify": "slack"},
		"Pipeline/train-multi-node": {"cluster": "small", "steps-image": stepsImage, "image": "", "flavour": "", "nodes": "0",
			"gpus-per-node": "", "notify": "slack"},
		"Pipeline/dev-environment": {"nodes": "1", "gpus-per-node": ""},
	}
	r := request(t)
	r.Cluster.Notify.Secret = "slack"
	for _, object := range render(t, r) {
		if object.GetNamespace() != "team" {
			t.Errorf("%s %s is for namespace %q", object.GetKind(), object.GetName(), object.GetNamespace())
		}
		key := object.GetKind() + "/" + object.GetName()
		params, _, _ := unstructured.NestedSlice(object.Object, "spec", "params")
		got := map[string]string{}
		for _, param := range params {
			name := param.(map[string]any)["name"].(string)
			if _, ok := want[key][name]; ok {
				got[name] = param.(map[string]any)["default"].(string)
			}
		}
		if diff := cmp.Diff(want[key], got); diff != "" && want[key] != nil {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
		delete(want, key)
	}
	for key := range want {
		t.Errorf("%s is missing", key)
	}
}

// TestTaskLabelsStayOffEnvironments: Tekton copies the labels of a Task to its pods, which must not look like nodes of an
// environment.
func TestTaskLabelsStayOffEnvironments(t *testing.T) {
	for _, object := range render(t, request(t)) {
		for name := range objects.Labels("ml-dev-env") {
			if value, has := object.GetLabels()[name]; has {
				t.Errorf("%s %s has the label %s=%s", object.GetKind(), object.GetName(), name, value)
			}
		}
	}
}

// TestForeignServiceAccountIsNotMarked: mlenv must not delete OpenShift's own account as if it were ours.
func TestForeignServiceAccountIsNotMarked(t *testing.T) {
	foreign := request(t)
	foreign.ServiceAccount = "pipeline"
	for _, object := range render(t, foreign) {
		if _, marked := object.GetLabels()[PartLabel]; marked == (object.GetKind() == "ServiceAccount" && object.GetName() == "pipeline") {
			t.Errorf("%s is marked: %v", ObjectName(object), marked)
		}
	}
}

// TestPullSecretOfSteps: the steps read the base's registry if they build the image.
func TestPullSecretOfSteps(t *testing.T) {
	for _, test := range []struct {
		image cluster.Image
		want  string
	}{
		{cluster.Image{Flavour: "cpu"}, "none"},
		{cluster.Image{Flavour: "cpu", PullSecret: "pods"}, "pods"},
		{cluster.Image{Flavour: "cpu", PullSecret: "pods", BasePullSecret: "base"}, "base"},
		{cluster.Image{Flavour: "cpu", PullSecret: "pods", BasePullSecret: "-"}, "none"},
		{cluster.Image{Name: "registry.example.com/training:1", PullSecret: "pods", BasePullSecret: "base"}, "pods"},
	} {
		r := request(t)
		r.Cluster.Image = test.image
		if got := r.defaults()["pull-secret"]; got != test.want {
			t.Errorf("%+v: %s, want %s", test.image, got, test.want)
		}
	}
}

// Runs find the account by the Pipeline.
func TestRenderNamesTheAccount(t *testing.T) {
	for account, want := range map[string]string{"mlenv-pipeline": "", "pipeline": "pipeline"} {
		r := request(t)
		r.ServiceAccount = account
		found := 0
		for _, object := range render(t, r) {
			if object.GetKind() != "Pipeline" || object.GetName() != "train-multi-node" {
				continue
			}
			found++
			if got := object.GetAnnotations()["ml-dev-env.github.io/service-account"]; got != want || len(object.GetAnnotations()) < 2 {
				t.Errorf("%s: annotations %v, want those of the file, and %q", account, object.GetAnnotations(), want)
			}
		}
		if found != 1 {
			t.Errorf("%s: %d pipelines", account, found)
		}
	}
}
