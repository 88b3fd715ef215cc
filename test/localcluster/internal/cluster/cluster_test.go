// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/build"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/openshift/scc"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/profile"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

func TestValidateNamesEveryMistake(t *testing.T) {
	err := Options{
		Nodes: 2, GPUs: 9, Faults: []gpu.NodeFault{{Node: "node-3", Index: 0}},
		RDMAFaults: []rdma.NodeFault{{Node: "node-4", NIC: "eno5np0", Fault: rdma.Down}},
	}.Validate()
	for _, want := range []string{"--gpus is 9", "--gpu-fault names node-3", "--rdma-fault names node-4"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want %q in it", err, want)
		}
	}
	if err := (Options{Nodes: 2, Triggers: true, NoTekton: true}).Validate(); err == nil ||
		!strings.Contains(err.Error(), "--triggers needs Tekton") {
		t.Errorf("Triggers without Tekton: %v", err)
	}
	err = Options{Nodes: 2, Kueue: "v0.1.0"}.Validate()
	if err == nil || !strings.Contains(err.Error(), "--kueue is v0.1.0; it must be one of v0.14.8") {
		t.Errorf("an unknown Kueue: %v", err)
	}
	if err := DefaultOptions.Validate(); err != nil {
		t.Errorf("the default options: %v", err)
	}
}

func TestNodeNamed(t *testing.T) {
	if node, err := nodeNamed(topology.Nodes(2), "node-2"); err != nil || node.Name != "node-2" {
		t.Errorf("got %+v, %v", node, err)
	}
	if _, err := nodeNamed(topology.Nodes(2), "node-3"); err == nil ||
		err.Error() != `no node is named "node-3"; the cluster has node-1 to node-2` {
		t.Errorf("got %v", err)
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

// allocatable returns all functions of the NICs, and the given quantity.
func allocatable(name corev1.ResourceName, quantity string) corev1.ResourceList {
	list := corev1.ResourceList{name: resource.MustParse(quantity)}
	for _, nic := range rdma.NICs {
		if n := corev1.ResourceName(nic.Resource()); n != name {
			list[n] = *resource.NewQuantity(rdma.FunctionsEach, resource.DecimalSI)
		}
	}
	return list
}

func TestNodeMissing(t *testing.T) {
	started := time.Now()
	node := func(ready corev1.ConditionStatus, heartbeat time.Time, gpus string) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Message: "because",
				LastHeartbeatTime: metav1.NewTime(heartbeat)}},
			Allocatable: allocatable("nvidia.com/gpu", gpus),
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
		{"no functions of a NIC", withAllocatable(node(corev1.ConditionTrue, started, "4"), "openshift.io/eno7np0rdma", "0"),
			"0 of 4 openshift.io/eno7np0rdma"},
		{"new", &corev1.Node{}, "no Ready condition"},
	}
	want := wanted{gpus: 4, nics: rdma.Layout{Form: rdma.SRIOV}.Offers()}
	for _, test := range tests {
		if got := nodeMissing(test.node, want, started); !strings.Contains(got, test.want) ||
			test.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func withAllocatable(node *corev1.Node, name corev1.ResourceName, quantity string) *corev1.Node {
	node.Status.Allocatable[name] = resource.MustParse(quantity)
	return node
}

// namesOf returns the objects' kinds and names.
func namesOf(objects []document) []string {
	var names []string
	for _, o := range objects {
		names = append(names, fmt.Sprint(o["kind"], " ", o["metadata"].(document)["name"]))
	}
	return names
}

func TestProfiled(t *testing.T) {
	tests := map[string]struct{ has, lacks int }{
		"": {1 + 4 + 4, 0}, "barcelona": {1 + 1 + 4, 3}, "h-kim": {1 + 1 + 4, 3}, "cairo": {1 + 2, 2 + 4}, "nerc-production": {1 + 2, 2 + 4},
		"shared-devices": {1 + 1 + 4, 3},
	}
	for _, name := range append(profile.Names(), "") {
		has, lacks := Options{Nodes: 1, GPUs: 4, Profile: name}.profiled()
		if got := (Options{Profile: name}).memlock(); got != 8<<20 {
			t.Errorf("in profile %q containers may lock %d bytes, want 8 MiB", name, got)
		}
		if want := tests[name]; len(has) != want.has || len(lacks) != want.lacks {
			t.Errorf("profile %q has %v, lacks %v", name, namesOf(has), namesOf(lacks))
		}
	}
	has, _ := DefaultOptions.profiled()
	const config = `{"cniVersion":"0.3.1","name":"eno8np0-network","type":"sriov","vlan":0,"spoofchk":"off","trust":"on","vlanQoS":0,` +
		`"link_state":"enable","ipam":{"type":"whereabouts","range":"10.0.106.0/24"}}`
	want := document{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": document{
			"name": "eno8np0-network", "namespace": "default",
			"annotations": document{"k8s.v1.cni.cncf.io/resourceName": "openshift.io/eno8np0rdma"},
		},
		"spec": document{"config": config},
	}
	if diff := cmp.Diff(want, has[len(has)-1]); diff != "" {
		t.Errorf("the last attachment (-want +got):\n%s", diff)
	}
	// The resource of shared devices belongs to no attachment.
	has, _ = Options{Profile: "shared-devices"}.profiled()
	want["metadata"].(document)["annotations"] = document{}
	want["spec"] = document{"config": `{"cniVersion":"0.3.1","name":"eno8np0-network","type":"macvlan","master":"eno8np0","mode":"bridge",` +
		`"mtu":9000,"ipam":{"type":"whereabouts","range":"10.0.106.0/24"}}`}
	if diff := cmp.Diff(want, has[len(has)-1]); diff != "" {
		t.Errorf("the last attachment of shared devices (-want +got):\n%s", diff)
	}
}

func TestNodesOfProfiles(t *testing.T) {
	o := Options{Nodes: 2, GPUs: 4, Profile: "cairo"}
	got := map[string]string{}
	for _, n := range o.nodes() {
		got[n.Name] = fmt.Sprint(n.Node, " ", o.gpusOf(n), " ", o.layoutOf(n).Form)
	}
	want := map[string]string{
		"node-1": "node-1 0 none", "node-2": "node-2 0 none", "node-3": "moc-r4pcc02u15 4 host", "node-4": "moc-r4pcc02u16 4 host",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := o.withoutConstraints(); !slices.Equal(got, []string{"nccl-scc"}) {
		t.Errorf("without %v", got)
	}
}

func TestDefinitionsAreThoseOfKinds(t *testing.T) {
	manifests := strings.Join([]string{
		"# first\nkind: CustomResourceDefinition\nname: a", "kind: Role\nverbs: [CustomResourceDefinition]",
		"---\napiVersion: v1\nkind: CustomResourceDefinition\nname: b",
	}, separator)
	got := definitions(manifests)
	if !strings.Contains(got, "name: a") || !strings.Contains(got, "name: b") || strings.Contains(got, "Role") {
		t.Errorf("definitions = %q", got)
	}
}

func TestRenderTekton(t *testing.T) {
	module := filepath.Join(t.TempDir(), "pipeline@v1.9.2")
	write := func(name, content string) {
		path := filepath.Join(module, "config", name)
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
	got, err := pipelines.render(map[string]string{"tekton/controller": "registry/controller@sha256:1"}, module)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"first: true\n", "image: registry/controller@sha256:1\nversion: \"v1.9.2\"\n", "last: true\n"}
	if strings.Join(got, "---\n") != strings.Join(want, "---\n") {
		t.Errorf("rendered\n%q\nwant\n%q", got, want)
	}
	if _, err := pipelines.render(nil, module); err == nil || !strings.Contains(err.Error(), "cmd/controller, which is not built") {
		t.Errorf("without the image: %v", err)
	}
}

func TestRenderTriggers(t *testing.T) {
	modules, err := manifestModules(t.Context(), "../..", Options{Triggers: true})
	if err != nil {
		t.Fatal(err)
	}
	images := map[string]string{}
	for _, p := range build.TriggersPrograms {
		images["triggers/"+p] = "registry/" + p + "@sha256:1"
	}
	got, err := triggers.render(images, modules[triggers.module])
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(got, separator)
	for i, text := range triggers.oldNew {
		if has, want := strings.Contains(all, text), i%2 == 1; has != want {
			t.Errorf("%q is in Triggers' manifests: %t, want %t", text, has, want)
		}
	}
	if strings.Contains(all, "ko://") || strings.Contains(all, `"devel"`) || !strings.Contains(all, "registry/eventlistenersink@sha256:1") {
		t.Error("Triggers' manifests lack our images or the version")
	}
}

// TestRenderKueue requires that each version's module has the version of its name, manages StatefulSets and runs our image.
func TestRenderKueue(t *testing.T) {
	for _, version := range build.KueueVersions {
		modules, err := manifestModules(t.Context(), "../..", Options{NoTekton: true, NoNetworks: true, Kueue: version})
		if err != nil {
			t.Fatal(err)
		}
		if folder := modules[kueueModule]; !strings.HasSuffix(folder, "@"+version) {
			t.Errorf("Kueue %s is rendered from %s", version, folder)
		}
		got, err := renderKueue(modules[kueueModule], map[string]string{"kueue/kueue": "registry/kueue@sha256:1"})
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		for _, want := range []string{
			"\n      - \"batch/job\"\n", "\n      - \"pod\"\n", "\n      - \"statefulset\"\n", "image: registry/kueue@sha256:1\n",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: the manifests lack %q", version, want)
			}
		}
	}
}

func TestRenderWithoutTekton(t *testing.T) {
	modules, err := manifestModules(t.Context(), "../..", Options{NoTekton: true})
	if err != nil {
		t.Fatal(err)
	}
	got, err := render(map[string]string{}, nil, "", modules)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(got, "namespace: tekton-pipelines") || !strings.Contains(got, "name: coredns") {
		t.Error("without Tekton, the manifests have objects of Tekton's namespaces, or lack CoreDNS")
	}
}

func TestModulesDefineTheirKinds(t *testing.T) {
	modules, err := manifestModules(t.Context(), "../..", Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range moduleKinds {
		content, err := os.ReadFile(filepath.Join(modules[k.module], k.file))
		if err != nil {
			t.Fatal(err)
		}
		// Test it as one document of several, as up applies it.
		definition := definitions(separator + string(content) + separator)
		for line := range strings.Lines(definition) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "name: "); ok {
				got = append(got, name)
				break
			}
		}
	}
	want := []string{
		"securitycontextconstraints.security.openshift.io", "infrastructures.config.openshift.io", "routes.route.openshift.io",
		"network-attachment-definitions.k8s.cni.cncf.io",
		"ippools.whereabouts.cni.cncf.io", "overlappingrangeipreservations.whereabouts.cni.cncf.io",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
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
