// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// fileOf returns a cluster file of the repository with lines replaced: old, new, and so on.
func fileOf(t *testing.T, name string, replace ...string) cluster.File {
	t.Helper()
	content, err := os.ReadFile("../../../clusters/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(string(content), replace[i]) {
			t.Fatalf("%s has no %q", name, replace[i])
		}
	}
	file, err := cluster.Load(name, []byte(strings.NewReplacer(replace...).Replace(string(content))))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func requestOf(file cluster.File) Request {
	return Request{Cluster: file, ClusterFile: "clusters/" + file.Cluster.Name + ".yaml"}.WithDefaults()
}

// hKim returns the request of a second namespace on Barcelona: it has an account and a constraint of its own, and copies
// of the attachments.
func hKim(t *testing.T) Request {
	r := requestOf(fileOf(t, "barcelona", "ipc_lock: false", "ipc_lock: true\n  scc: nccl-scc", "ml-dev-sa", "h-kim-sa"))
	r.Namespace, r.CopyAttachments = "team", true
	return r
}

// hKimFile returns the request of the shipped file, whose attachments are in the namespace of the environment.
func hKimFile(t *testing.T) Request {
	r := requestOf(fileOf(t, "h-kim"))
	r.Namespace = "team"
	return r
}

// own returns a request for Barcelona in which the pods request IPC_LOCK and the cluster file names no constraint.
func own(t *testing.T) Request {
	r := requestOf(fileOf(t, "barcelona", "ipc_lock: false", "ipc_lock: true"))
	r.Namespace = "team"
	return r
}

// printed returns what mlenv admin prints.
func printed(t *testing.T, r Request) string {
	t.Helper()
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	var copies []*unstructured.Unstructured
	if r.CopyAttachments {
		for _, original := range nics(103, 104, 105, 106) {
			copies = append(copies, copyTo(r.Namespace, original))
		}
	}
	p, err := newPlan(r, copies, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	p.print(&out)
	return out.String()
}

// applied returns kind and name of the objects that oc apply -f - creates.
func applied(t *testing.T, text string) (objects []string) {
	t.Helper()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		var object unstructured.Unstructured
		if err := yaml.UnmarshalStrict(document, &object.Object); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if object.Object != nil {
			objects = append(objects, object.GetKind()+" "+object.GetName())
		}
	}
}

func TestPrint(t *testing.T) {
	rebooting := own(t)
	rebooting.Reboot = true
	account, role, binding := "ServiceAccount ml-dev-sa", "Role mlenv:scc:mlenv-rdma", "RoleBinding mlenv:scc:mlenv-rdma:ml-dev-sa"
	scc := "SecurityContextConstraints mlenv-rdma"
	tests := map[string]struct {
		r    Request
		want []string
	}{
		"barcelona": {requestOf(fileOf(t, "barcelona")), []string{account}},
		"cairo": {requestOf(fileOf(t, "cairo")), []string{account, "Role mlenv:scc:privileged",
			"RoleBinding mlenv:scc:privileged:ml-dev-sa"}},
		"nerc-production": {requestOf(fileOf(t, "nerc-production")), []string{account}},
		"h-kim": {hKim(t), []string{"ServiceAccount h-kim-sa", "Role mlenv:scc:nccl-scc", "RoleBinding mlenv:scc:nccl-scc:h-kim-sa",
			"NetworkAttachmentDefinition eno5np0-network", "NetworkAttachmentDefinition eno6np0-network",
			"NetworkAttachmentDefinition eno7np0-network", "NetworkAttachmentDefinition eno8np0-network"}},
		"h-kim-file": {hKimFile(t), []string{"ServiceAccount h-kim-sa", "Role mlenv:scc:nccl-scc", "RoleBinding mlenv:scc:nccl-scc:h-kim-sa"}},
		// Nodes reboot only if --reboot-pool asks for it: users pipe the output into oc apply.
		"own-scc": {own(t), []string{account, scc, role, binding}},
		"reboot": {rebooting, []string{account, scc, role, binding, "MachineConfig 99-worker-crio-memlock",
			"MachineConfig 99-worker-iommu-passthrough"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text := printed(t, test.r)
			golden.File(t, filepath.Join("testdata", name+".yaml"), text)
			if diff := cmp.Diff(test.want, applied(t, text)); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOthersKeepTheirRight checks that applying a second account's set-up in a namespace changes no binding of the first one.
func TestOthersKeepTheirRight(t *testing.T) {
	first, second := requestOf(fileOf(t, "cairo")), requestOf(fileOf(t, "cairo"))
	second.ServiceAccount = "h-kim-sa"
	for _, object := range applied(t, printed(t, second)) {
		if strings.HasPrefix(object, "RoleBinding ") && slices.Contains(applied(t, printed(t, first)), object) {
			t.Errorf("both accounts have %s; the second one would replace the first one's subject", object)
		}
	}
}

// TestCopies reads the attachments of a cluster. Two have the same range, and an annotation tries to leave its comment.
func TestCopies(t *testing.T) {
	originals := nics(103, 104, 103, 106)
	originals[3].SetAnnotations(map[string]string{
		attachment.ResourceAnnotation: "x\n---\nkind: ClusterRole\u2028kind: ClusterRole\rkind: ClusterRole",
	})
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	for _, object := range originals {
		if err := client.Tracker().Create(attachment.Resource(), object, object.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
	r := hKim(t)
	p, err := withCopies(t.Context(), client, r)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	p.print(&out)
	for _, want := range []string{"default/eno5np0-network (10.0.103.0/24) and default/eno7np0-network (10.0.103.0/24)",
		"WARNING: attachment default/eno8np0-network needs resource"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	for line := range strings.FieldsFuncSeq(out.String(), func(c rune) bool { return strings.ContainsRune("\n\r\u0085\u2028\u2029", c) }) {
		if strings.HasPrefix(line, "kind: ClusterRole") {
			t.Errorf("%q left its comment", line)
		}
	}
	if got := len(applied(t, out.String())); got != 7 {
		t.Errorf("%d objects, want account, role, binding and four attachments:\n%s", got, out.String())
	}
	made := copyTo("team", originals[0])
	if diff := cmp.Diff(originals[0].Object["spec"], made.Object["spec"]); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{attachment.ResourceAnnotation: "openshift.io/eno5np0rdma"}, made.GetAnnotations()); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if made.GetUID() != "" || len(made.GetOwnerReferences()) > 0 {
		t.Errorf("uid %q, owners %v: want none", made.GetUID(), made.GetOwnerReferences())
	}

	if err := client.Tracker().Delete(attachment.Resource(), "default", "eno7np0-network"); err != nil {
		t.Fatal(err)
	}
	_, err = withCopies(t.Context(), client, r)
	if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), "not found: default/eno7np0-network") {
		t.Errorf("got %v, want InvalidInput with the missing attachment", err)
	}
}

// Attachments of the environment's own namespace are copied from namespace default.
func TestCopiesOfNames(t *testing.T) {
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	for _, object := range nics(103, 104, 105, 106) {
		if err := client.Tracker().Create(attachment.Resource(), object, object.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
	r := hKimFile(t)
	r.CopyAttachments = true
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	p, err := withCopies(t.Context(), client, r)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	p.print(&out)
	got := strings.Count(out.String(), "kind: NetworkAttachmentDefinition\nmetadata:\n")
	if got != 4 || strings.Contains(out.String(), "List them") {
		t.Errorf("%d copies, want 4 that the cluster file names already:\n%s", got, out.String())
	}
	r.Namespace = "default"
	if err := r.Validate(); err == nil || !strings.Contains(err.Error(), "is in namespace default already") {
		t.Errorf("in namespace default: %v", err)
	}
}

// nics returns Barcelona's attachments, with these third octets in their ranges.
func nics(octets ...int) []*unstructured.Unstructured {
	var objects []*unstructured.Unstructured
	for i, octet := range octets {
		name := fmt.Sprintf("eno%dnp0", 5+i)
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"spec": map[string]any{"config": fmt.Sprintf(`{"cniVersion":"1.0.0","name":"%s-network","type":"sriov","vlan":0,"spoofchk":"off",`+
				`"trust":"on","link_state":"enable","mtu":9000,"ipam":{"type":"whereabouts","range":"10.0.%d.0/24"}}`, name, octet)},
		}}
		object.SetNamespace("default")
		object.SetName(name + "-network")
		object.SetUID(types.UID("uid-" + name))
		object.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: "sriovnetwork.openshift.io/v1", Kind: "SriovNetwork", Name: name, UID: "owner",
		}})
		object.SetAnnotations(map[string]string{
			attachment.ResourceAnnotation: "openshift.io/" + name + "rdma", "sriovnetwork.openshift.io/owner-ref": "SriovNetwork/" + name,
		})
		objects = append(objects, object)
	}
	return objects
}

func TestValidate(t *testing.T) {
	barcelona, cairo, none := fileOf(t, "barcelona"), fileOf(t, "cairo"), fileOf(t, "nerc-production")
	tests := []struct {
		name string
		r    Request
		want []string
	}{
		{"every mistake at once", Request{Cluster: barcelona, Namespace: "My_Team", ServiceAccount: "me!", SCC: "anyuid", Pool: "a pool"},
			[]string{
				`--namespace "My_Team": a lowercase RFC 1123 label`, `--pod-account "me!"`, `pool "a pool"`,
				`--scc "anyuid": does not allow IPC_LOCK: want mlenv-rdma, privileged, or one of the cluster's own`,
			}},
		{"no RDMA", Request{Cluster: none, SCC: "x", Reboot: true, CopyAttachments: true}, []string{
			`--scc "x": the cluster file of nerc-production has network.rdma.enabled false`, `--reboot-pool "worker": the cluster file`,
			`--attachments "copy": the cluster file of nerc-production has no network.rdma.attachments`,
		}},
		{"our own where privileged pods are made", Request{Cluster: cairo, SCC: OwnSCC}, []string{
			`--scc "mlenv-rdma": the cluster file pins the pods to privileged`, `does not admit privileged pods`,
		}},
		{"our own where more than IPC_LOCK is asked for",
			Request{Cluster: fileOf(t, "barcelona", "ipc_lock: false", "ipc_lock: true\n  capabilities: [SYS_PTRACE]")}, []string{
				`security.scc "mlenv-rdma": does not allow SYS_PTRACE, which security.capabilities requests`,
			}},
		{"copies where the originals are", Request{Cluster: barcelona, Namespace: "default", CopyAttachments: true}, []string{
			"attachment default/eno5np0-network is in namespace default already",
		}},
		{"pinned to what cannot be", Request{Cluster: fileOf(t, "barcelona", "ipc_lock: false", "ipc_lock: true\n  scc: hostaccess")}, []string{
			`security.scc "hostaccess": does not allow IPC_LOCK`,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.r.WithDefaults().Validate()
			if fail.ReasonOf(err) != fail.InvalidInput {
				t.Fatalf("%v: want InvalidInput", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nwant %q", err, want)
				}
			}
		})
	}
}
