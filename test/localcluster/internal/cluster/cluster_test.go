package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/openshift/scc"
)

func TestValidateNamesEveryMistake(t *testing.T) {
	err := Options{Nodes: 2, GPUs: 9, Faults: []gpu.NodeFault{{Node: "node-3", Index: 0}}}.Validate()
	if err == nil || !strings.Contains(err.Error(), "--gpus is 9") || !strings.Contains(err.Error(), "node-3") {
		t.Errorf("Validate = %v", err)
	}
	if err := DefaultOptions.Validate(); err != nil {
		t.Errorf("the default options: %v", err)
	}
}

func TestKnownCauses(t *testing.T) {
	tests := map[string]string{
		"failed: listen tcp 10.223.0.2:6443: bind: address already in use": "10.223.0.2:6443 is taken",
		"write /x: no space left on device":                                "the disk is full",
		"all is well":                                                      "",
	}
	for log, want := range tests {
		got := knownCause(log)
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("knownCause(%q) = %q, want %q", log, got, want)
		}
	}
}

func TestADeadComponentIsNamedWithItsLog(t *testing.T) {
	s := newStarter(t.Context())
	dead := deadComponent{name: "etcd", cause: "the disk is full", tail: "the last line", err: errors.New("etcd exited: exit status 1")}
	s.cancel(dead)
	err := s.explain(s.ctx.Err())
	for _, want := range []string{"etcd exited: exit status 1", "cause: the disk is full", "etcd.log", "the last line"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}

func TestNodeMissing(t *testing.T) {
	started := time.Now()
	node := func(ready corev1.ConditionStatus, heartbeat time.Time, gpus string) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Message: "because", LastHeartbeatTime: metav1.NewTime(heartbeat)}},
			Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)},
		}}
	}
	tests := []struct {
		name string
		node *corev1.Node
		want string
	}{
		{"ready", node(corev1.ConditionTrue, started, "4"), ""},
		{"not ready", node(corev1.ConditionFalse, started, "4"), "because"},
		{"a GPU short", node(corev1.ConditionTrue, started, "3"), "3 of 4 GPUs"},
		{"old news", node(corev1.ConditionTrue, started.Add(-time.Minute), "4"), "has not reported"},
		{"new", &corev1.Node{}, "no Ready condition"},
	}
	for _, test := range tests {
		if got := nodeMissing(test.node, 4, started); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestRenderTekton(t *testing.T) {
	config := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(config, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("controller.yaml", "image: ko://github.com/tektoncd/pipeline/cmd/controller\nversion: \"devel\"\n")
	write("100-namespace/100-namespace.yaml", "first: true\n")
	write("webhook-hpa.yaml", "needs: metrics\n")
	write("resolvers/deployment.yaml", "last: true\n")
	got, err := renderTekton(map[string]string{"tekton/controller": "registry/controller@sha256:1"}, config)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"first: true\n", "image: registry/controller@sha256:1\nversion: \"v1.15.0\"\n", "last: true\n"}
	if strings.Join(got, "---\n") != strings.Join(want, "---\n") {
		t.Errorf("rendered\n%q\nwant\n%q", got, want)
	}
	if _, err := renderTekton(nil, config); err == nil || !strings.Contains(err.Error(), "cmd/controller, which is not built") {
		t.Errorf("without the image: %v", err)
	}
}

func TestOpenShiftsDefinitions(t *testing.T) {
	dir, err := moduleDir(t.Context(), "../..", openshiftModule)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"name: securitycontextconstraints.security.openshift.io", "name: routes.route.openshift.io"} {
		content, err := os.ReadFile(filepath.Join(dir, openshiftCRDs()[i]))
		if err != nil || !strings.Contains(string(content), "kind: CustomResourceDefinition") || !strings.Contains(string(content), want) {
			t.Errorf("%s does not define it: %s (%v)", openshiftCRDs()[i], want, err)
		}
	}
}

func TestEveryStockConstraintHasItsRole(t *testing.T) {
	manifest, err := ownManifests.ReadFile("manifests/scc.yaml")
	if err != nil {
		t.Fatal(err)
	}
	stock, err := scc.Stock()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range stock {
		if want := "resourceNames: [" + c.Name + "], verbs: [use]"; !strings.Contains(string(manifest), want) {
			t.Errorf("no role has %s", want)
		}
	}
}

func TestProblemsInLeavesOutSuccess(t *testing.T) {
	if got := problemsIn("namespace/x serverside-applied\nError: no\n"); got != "Error: no" {
		t.Errorf("problemsIn = %q", got)
	}
}
