package admin

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
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

// own returns a request for Barcelona in which the pods request IPC_LOCK and the cluster file names no constraint.
func own(t *testing.T) Request {
	r := requestOf(fileOf(t, "barcelona", "ipc_lock: false", "ipc_lock: true"))
	r.Namespace = "team"
	return r
}

func TestPlan(t *testing.T) {
	rebooting := own(t)
	rebooting.Reboot = true
	tests := map[string]Request{
		"barcelona": requestOf(fileOf(t, "barcelona")), "cairo": requestOf(fileOf(t, "cairo")),
		"nerc-production": requestOf(fileOf(t, "nerc-production")),
		"h-kim":           hKim(t), "own-scc": own(t), "reboot": rebooting,
	}
	for name, r := range tests {
		t.Run(name, func(t *testing.T) {
			if err := r.Validate(); err != nil {
				t.Fatal(err)
			}
			var copies []*unstructured.Unstructured
			if r.CopyAttachments {
				for _, original := range nics(103, 104, 105, 106) {
					copies = append(copies, copyTo(r.Namespace, original))
				}
			}
			plan := NewPlan(r, copies)
			var text, yaml strings.Builder
			if err := plan.Print(&text); err != nil {
				t.Fatal(err)
			}
			if err := plan.printYAML(&yaml); err != nil {
				t.Fatal(err)
			}
			golden.File(t, filepath.Join("testdata", name+".txt"), text.String())
			golden.File(t, filepath.Join("testdata", name+".yaml"), yaml.String())
		})
	}
}

// TestNothingRebootsUnasked: users pipe the output of --output=yaml into oc apply.
func TestNothingRebootsUnasked(t *testing.T) {
	plan := NewPlan(own(t), nil)
	var text strings.Builder
	if err := plan.printYAML(&text); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if strings.Contains(line, "MachineConfig") && !strings.HasPrefix(line, "#") {
			t.Errorf("%q is not commented out", line)
		}
	}
	for _, object := range plan.objects() {
		if object.GetKind() == "MachineConfig" {
			t.Errorf("%s would be applied", object.GetName())
		}
	}
}

// TestJSON: programs see what is applied, and what reboots nodes.
func TestJSON(t *testing.T) {
	plan := NewPlan(own(t), nil)
	var text strings.Builder
	if err := step.WriteJSON(&text, plan); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Form  string
		Items []struct {
			Name, Reboots string
			Applied       bool
			Objects       []struct{ Kind string }
		}
	}
	if err := json.Unmarshal([]byte(text.String()), &got); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, item := range got.Items {
		row := fmt.Sprintf("%s applied=%t reboots=%s", item.Name, item.Applied, item.Reboots)
		for _, object := range item.Objects {
			row += " " + object.Kind
		}
		rows = append(rows, row)
	}
	want := []string{
		"service-account applied=true reboots= ServiceAccount", "scc applied=true reboots= SecurityContextConstraints",
		"scc-use applied=true reboots= ClusterRole RoleBinding", "attachments applied=false reboots=",
		"memlock applied=false reboots=worker MachineConfig", "iommu applied=false reboots=worker MachineConfig", "observer applied=false reboots=",
	}
	if diff := cmp.Diff(want, rows); diff != "" || got.Form != "SR-IOV" {
		t.Errorf("form %s; (-want +got):\n%s", got.Form, diff)
	}
}

func TestValidate(t *testing.T) {
	barcelona, cairo, none := fileOf(t, "barcelona"), fileOf(t, "cairo"), fileOf(t, "nerc-production")
	tests := []struct {
		name string
		r    Request
		want []string
	}{
		{"every mistake at once", Request{Cluster: barcelona, Namespace: "My_Team", ServiceAccount: "me!", SCC: "anyuid", Pool: "a pool"}, []string{
			`--namespace "My_Team": a lowercase RFC 1123 label`, `--service-account "me!"`, `pool "a pool"`,
			`--scc "anyuid": does not allow IPC_LOCK: want mlenv-rdma, privileged, or one of the cluster's own`,
		}},
		{"no RDMA", Request{Cluster: none, SCC: "x", Reboot: true, CopyAttachments: true}, []string{
			`--scc "x": the cluster file of nerc-production has network.rdma.enabled false`, `--reboot-pool "worker": the cluster file`,
			`--attachments "copy": the cluster file of nerc-production has no network.rdma.attachments`,
		}},
		{"our own where privileged pods are made", Request{Cluster: cairo, SCC: OwnSCC}, []string{
			`--scc "mlenv-rdma": the cluster file pins the pods to privileged`, `does not admit privileged pods`,
		}},
		{"our own where more than IPC_LOCK is asked for", Request{Cluster: fileOf(t, "barcelona", "ipc_lock: false", "ipc_lock: true\n  capabilities: [SYS_PTRACE]")}, []string{
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
