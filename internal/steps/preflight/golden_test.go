// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

// TestGolden shows whole reports: of the shipped clusters when they are healthy, and with problems that occurred on them.
func TestGolden(t *testing.T) {
	for name, make := range map[string]func(*testing.T) (*world, cluster.File){
		"barcelona": barcelona, "cairo": usedCairo, "barcelona-wrong": wrongBarcelona, "cairo-wrong": wrongCairo,
	} {
		t.Run(name, func(t *testing.T) {
			w, file := make(t)
			golden.File(t, filepath.Join("testdata", name+".txt"), print(w.examine(file, agent.Auto)))
		})
	}
}

// A healthy run does not need the table. A run that a user must look at keeps it.
func TestBrief(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(*testing.T) (*world, cluster.File)
		// nodes is the number of nodes in the request, 0 for the cluster file's.
		nodes int
		want  string
	}{
		"rdma":                 {barcelona, 0, "preflight: rdma, 5 nodes free, 24 checks ok, the rest in docs/project/unproven.md\n"},
		"one node has no peer": {barcelona, 1, "preflight: tcp, 5 nodes free, 17 checks ok\n"},
		"a node of five is cordoned": {func(t *testing.T) (*world, cluster.File) {
			w, file := barcelona(t)
			w.each(func(n *corev1.Node) { n.Spec.Unschedulable = n.Name == "moc-r4pcc02u16-yunshi" })
			return w, file
		}, 0, "preflight: rdma, 4 nodes free, 23 checks ok, the rest in docs/project/unproven.md\n"},
		"RDMA is blocked": {wrongBarcelona, 0, "CHECK "},
		"blocked":         {wrongCairo, 0, "CHECK "},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			w, file := tc.make(t)
			d, o := w.deps(file), optionsOf(file, agent.Auto)
			d.Out, o.Request.Nodes = &out, tc.nodes
			_, _ = Run(t.Context(), d, o) // the report shows the error
			if !strings.HasPrefix(out.String(), tc.want) || strings.HasPrefix(tc.want, "preflight") && out.String() != tc.want {
				t.Errorf("got %q, want %q", out.String(), tc.want)
			}
		})
	}
}

// TestPlans shows which objects provision would create on the same clusters, and where.
func TestPlans(t *testing.T) {
	last := receipt.Receipt{Run: "train-1", Fabric: &fabric.Report{Expected: 194 * rdma.GBps, Bandwidth: 187 * rdma.GBps}}
	for name, test := range map[string]struct {
		make func(*testing.T) (*world, cluster.File)
		// expected is the cluster file's bandwidth, 0 for none.
		expected cluster.Bandwidth
		ran      bool
	}{
		"barcelona-plan": {make: barcelona}, "barcelona-plan-ran": {make: barcelona, ran: true},
		"cairo-plan": {make: cairo, expected: 200_000_000_000, ran: true}, "cairo-wrong-plan": {make: wrongCairo},
	} {
		t.Run(name, func(t *testing.T) {
			w, file := test.make(t)
			file.Network.RDMA.ExpectedBandwidth = test.expected
			var client kubernetes.Interface
			report := w.examine(file, agent.Auto, func(d *Deps, o *Options) {
				client = d.Clients.Kube
				last.Namespace, last.Environment = o.Request.Namespace, o.Request.Name
				if !test.ran {
					return
				}
				if err := receipt.Write(t.Context(), client, last); err != nil {
					t.Fatal(err)
				}
			})
			var text strings.Builder
			PlanOf(t.Context(), client, report).Print(&text)
			golden.File(t, filepath.Join("testdata", name+".txt"), text.String())
		})
	}
}

func TestPlannedOrder(t *testing.T) {
	for _, test := range []struct {
		racks []string
		want  string
	}{
		{[]string{"02", "04", "02", "04"}, "by rack: 02 (gpu-0, gpu-2), 04 (gpu-1, gpu-3); a ring of all free nodes crosses between racks 2 " +
			"times, 4 without this order"},
		{[]string{"02", "", "02", "04"}, "by rack: 02 (gpu-0, gpu-2), 04 (gpu-3), unknown (gpu-1); a ring of all free nodes crosses between " +
			"racks 3 times, 4 without this order"},
		{[]string{"", "", "", ""}, "in the order of the pods: the rack of all free nodes is unknown"},
	} {
		if got := (Plan{FreeNodes: []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"}, Racks: test.racks}).order(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// Only a check of the network between nodes proves RDMA with host devices.
func TestProven(t *testing.T) {
	passed := func(mode agent.Mode, verdict fabric.Result, transport nccl.Transport) *receipt.Receipt {
		return &receipt.Receipt{Run: "train-1", Mode: mode,
			Fabric: &fabric.Report{Verdict: verdict, Network: &nccl.Summary{Transport: transport}}}
	}
	const unproven = "; unproven over Ethernet until check-fabric passes: docs/project/unproven.md"
	for name, test := range map[string]struct {
		last *receipt.Receipt
		host bool
		want string
	}{
		"no run": {nil, false, unproven},
		"RDMA":   {passed("rdma", fabric.Pass, nccl.RDMAGPU), false, "; proven by check-fabric of run train-1"},
		"host network": {passed("rdma", fabric.Pass, nccl.RDMAHost), true, " on their host's network (network.rdma.host_network); proven by " +
			"check-fabric of run train-1"},
		"sockets":         {passed("rdma", fabric.WrongTransport, nccl.Sockets), false, unproven},
		"tcp":             {passed("tcp", fabric.Pass, nccl.Sockets), false, unproven},
		"without a check": {&receipt.Receipt{Run: "train-1", Mode: "rdma"}, false, unproven},
		"by gloo":         {&receipt.Receipt{Run: "train-1", Mode: "rdma", Fabric: &fabric.Report{Verdict: fabric.Pass}}, false, unproven},
	} {
		t.Run(name, func(t *testing.T) {
			w, file := cairo(t)
			file.Network.RDMA.HostNetwork = test.host
			report := w.examine(file, agent.Auto, func(d *Deps, o *Options) {
				if test.last == nil {
					return
				}
				test.last.Namespace, test.last.Environment = o.Request.Namespace, o.Request.Name
				if err := receipt.Write(t.Context(), d.Clients.Kube, *test.last); err != nil {
					t.Fatal(err)
				}
			})
			i := slices.IndexFunc(report.Checks, func(c Check) bool { return c.Object == choiceCheck })
			if want := "by the host's own devices, in privileged pods" + test.want; i < 0 || report.Checks[i].Seen != want {
				t.Errorf("got %+v, want %q", report.Checks, want)
			}
		})
	}
}

// wrongBarcelona has four attachments with the same range (once, they were copied that way), a wrong resource name, a
// missing attachment, GPUs that others hold, a taint, and no ClusterRole to see other pods.
func wrongBarcelona(t *testing.T) (*world, cluster.File) {
	w, file := barcelona(t)
	w.attach("eno6np0", "openshift.io/eno6np0rdma", "10.0.103.0/24")
	w.attach("eno7np0", "openshift.io/mlx7", "10.0.105.0/24")
	w.detach("eno8np0")
	w.objects = append(w.objects, holder("notebook-0", "moc-r4pcc02u18-nairr", "3"))
	w.each(func(n *corev1.Node) {
		switch n.Name {
		case "moc-r4pcc02u15-yunshi":
			n.Spec.Taints = []corev1.Taint{{Key: "nerc.mghpcc.org/project", Value: "yunshi", Effect: corev1.TaintEffectNoSchedule}}
		case "moc-r4pcc02u16-yunshi":
			n.Spec.Unschedulable = true
		case "moc-r4pcc02u25-nairr":
			n.Status.Allocatable["openshift.io/eno8np0rdma"] = resource.MustParse("0")
			n.Status.Capacity["openshift.io/eno8np0rdma"] = resource.MustParse("0")
		}
	})
	w.configure("quiet")
	return w, file
}

// wrongCairo: the service account may not use privileged, and the NFS server's own claim has no storage class.
// usedCairo is Cairo with the two claims that it had.
func usedCairo(t *testing.T) (*world, cluster.File) {
	w, file := cairo(t)
	w.objects = append(w.objects, existing("ml-dev-workspace", "100Gi"), existing("ml-datasets", "500Gi"))
	return w, file
}

func wrongCairo(t *testing.T) (*world, cluster.File) {
	w, file := cairo(t)
	w.uses = nil
	w.without("nfs-server-root")
	w.objects = append(w.objects, serverClaim(nil, corev1.ClaimPending))
	w.forbidden = []string{"list everywhere pods", "get machineconfigs"}
	return w, file
}
