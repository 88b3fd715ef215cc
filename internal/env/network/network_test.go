// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube/kueue"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// detected returns the facts of a node with one rail for each device, as detection reports them: rail i is network
// 10.0.(103+i).0/24, net1 and so on.
func detected(node int, devices ...string) rdma.Facts {
	var facts rdma.Facts
	for i, name := range devices {
		address := netip.MustParsePrefix(fmt.Sprintf("10.0.%d.%d/24", 103+i, node+1))
		netdev := fmt.Sprintf("net%d", i+1)
		facts.Devices = append(facts.Devices, rdma.Device{Name: name, Uverbs: "uverbs0", Ports: []rdma.Port{{
			Number: 1, State: "ACTIVE", LinkLayer: rdma.Ethernet, Rate: 400 * rdma.Gbps, Netdev: netdev, MTU: 9000, Address: address,
			GIDs: []rdma.GID{{Index: 3, GID: netip.MustParseAddr("::ffff:" + address.Addr().String()), Type: rdma.RoCEv2}}, GIDIndex: 3,
		}}})
		facts.Interfaces = append(facts.Interfaces, rdma.Interface{Name: netdev, Index: i + 3, MTU: 9000, Addresses: []netip.Prefix{address}})
	}
	return facts
}

// environment starts agents that answer with these facts when they are asked for devices.
func environment(t *testing.T, facts ...rdma.Facts) ([]*agenttest.Node, nodes.Set) {
	t.Helper()
	agents := agenttest.Start(t, len(facts))
	var set nodes.Set
	for i, node := range agents {
		node.Wrap(func(real http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v1/rdma" {
					real.ServeHTTP(w, r)
				} else if err := json.NewEncoder(w).Encode(facts[i]); err != nil {
					t.Error(err)
				}
			})
		})
		set = append(set, node.Client)
	}
	return agents, set
}

func TestEachNodeGetsItsOwn(t *testing.T) {
	agents, set := environment(t, detected(0, "mlx5_6", "mlx5_7"), detected(1, "mlx5_2", "mlx5_3"))
	settings := FromFile(cluster.File{
		Network: cluster.Network{RDMA: cluster.RDMA{Enabled: true, IBTimeout: "22"}},
		NCCL:    cluster.NCCL{Env: map[string]string{"NCCL_IB_TC": "106"}},
	}, agent.RDMA)
	settings.Racks = []string{"02", "04"}
	prepared, err := Prepare(t.Context(), set, settings)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := prepared.Bandwidth().String(), "97.0 GB/s"; got != want {
		t.Errorf("two rails of 400 Gb/s should reach %s, want %s", got, want)
	}
	for i, want := range []map[string]string{
		{"NCCL_IB_HCA": "=mlx5_6,mlx5_7", "NCCL_SOCKET_IFNAME": "=net1,net2", "GLOO_SOCKET_IFNAME": "net1", "NCCL_IB_TC": "106",
			"NCCL_IB_TIMEOUT": "22", "NCCL_CROSS_NIC": "0", "NCCL_IB_GID_INDEX": "3"},
		{"NCCL_IB_HCA": "=mlx5_2,mlx5_3", "NCCL_SOCKET_IFNAME": "=net1,net2", "GLOO_SOCKET_IFNAME": "net1", "NCCL_IB_TC": "106",
			"NCCL_IB_TIMEOUT": "22", "NCCL_CROSS_NIC": "0"},
	} {
		agents[i].End()
		agents[i].Restart() // a recreated container still has the settings
		facts, err := set[i].Facts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if facts.Network == nil || facts.Network.Mode != agent.RDMA || facts.Network.Rack != settings.Racks[i] {
			t.Errorf("node %d got %+v", i, facts.Network)
		}
		for name, value := range want {
			if got := facts.Environment[name]; got != value {
				t.Errorf("node %d gives its processes %s=%q, want %q", i, name, got, value)
			}
		}
	}
	facts := make([]agent.Facts, 2)
	for i := range facts {
		if facts[i], err = set[i].Facts(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(settings, SettingsOf(facts)); diff != "" {
		t.Errorf("the nodes lost their settings (-want +got):\n%s", diff)
	}
}

func TestWhatIsInTheWay(t *testing.T) {
	memory := detected(0, "mlx5_6")
	memory.Findings = []fail.Finding{{Level: fail.Broken, Reason: rdma.MemoryLimited, Seen: "locking memory: 8 MiB",
		Next: "give the pod an SCC"}}
	tests := []struct {
		name  string
		facts []rdma.Facts
		want  []string
	}{
		{"a node that cannot lock memory", []rdma.Facts{memory, detected(1, "mlx5_6")}, []string{"using RDMA on node 0: locking memory: 8 MiB"}},
		{"nodes that cannot lock memory", []rdma.Facts{memory, memory}, []string{"using RDMA on nodes 0 and 1: locking memory: 8 MiB"}},
		{"no network of both",
			[]rdma.Facts{detected(0, "mlx5_6"), {Devices: detected(1, "a", "b").Devices[1:], Interfaces: detected(1, "a", "b").Interfaces[1:]}},
			[]string{"using RDMA between the nodes: matching the rails of 2 nodes"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, set := environment(t, test.facts...)
			_, err := Prepare(t.Context(), set, Settings{Mode: agent.RDMA})
			if fail.ReasonOf(err) != fail.RDMAUnavailable || fail.NextOf(err) == "" && len(test.want) == 1 {
				t.Errorf("got reason %s and advice %q", fail.ReasonOf(err), fail.NextOf(err))
			}
			for _, want := range test.want {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
			if facts, err := set[0].Facts(t.Context()); err != nil || facts.Network != nil {
				t.Errorf("a node got %+v, %v, although not all nodes can", facts.Network, err)
			}
		})
	}
}

func TestTCPAsksForNoDevices(t *testing.T) {
	_, set := environment(t, rdma.Facts{}, rdma.Facts{})
	prepared, err := Prepare(t.Context(), set, Settings{Mode: agent.TCP, Racks: []string{"a", "b"}})
	if err != nil || prepared.Facts != nil {
		t.Fatalf("got %+v, %v", prepared, err)
	}
	facts, err := set[1].Facts(t.Context())
	if err != nil || facts.Network == nil || facts.Network.Mode != agent.TCP || facts.Network.Rack != "b" {
		t.Errorf("node 1 got %+v, %v", facts.Network, err)
	}
}

func TestRacks(t *testing.T) {
	labelled := []corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "moc-r4pcc02u17", Labels: map[string]string{
			"rack": "seven", corev1.LabelTopologyRegion: "north", corev1.LabelTopologyZone: "east", "block": "b1", "block-rack": "r1"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "moc-r4pcc04u25"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "gpu-3", Labels: map[string]string{corev1.LabelTopologyZone: "west", "block": "b1",
			"block-rack": "r2"}}},
	}
	const flavor = `{"name": "h100", "topology": {"name": "racks", "levels": ["block", "block-rack", "kubernetes.io/hostname"]}}`
	client := apiServer(t, labelled, map[string]string{
		"team":  `{"status": {"flavors": [` + flavor + `, ` + flavor + `]}}`,
		"plain": `{"status": {"flavors": [{"name": "h100"}]}}`,
		"mixed": `{"status": {"flavors": [` + flavor + `, {"name": "a100"}]}}`,
	})
	for _, test := range []struct {
		file  cluster.Nodes
		queue string
		want  []string
	}{
		{cluster.Nodes{}, "", []string{"north/east", "", "west", ""}},
		{cluster.Nodes{RackPattern: `r4pcc(\d+)u`}, "team", []string{"02", "04", "", ""}},
		{cluster.Nodes{RackLabel: "rack", RackPattern: `r4pcc(\d+)u`}, "", []string{"seven", "04", "", ""}},
		{cluster.Nodes{}, "team", []string{"b1/r1", "", "b1/r2", ""}},
		{cluster.Nodes{}, "plain", []string{"north/east", "", "west", ""}},
		{cluster.Nodes{}, "mixed", []string{"north/east", "", "west", ""}},
		{cluster.Nodes{}, "nowhere", []string{"north/east", "", "west", ""}},
	} {
		names := []string{"moc-r4pcc02u17", "moc-r4pcc04u25", "gpu-3", "other"}
		got := Racks(t.Context(), client, test.file, kueue.Queue{Namespace: "ml", Name: test.queue}, names)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%+v, queue %q (-want +got):\n%s", test.file, test.queue, diff)
		}
	}
}

// apiServer answers requests for nodes and for Kueue's queues of namespace ml, because the fake client supports no raw
// requests. Its label selector knows only the name of a label.
func apiServer(t *testing.T, all []corev1.Node, queues map[string]string) kubernetes.Interface {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
		for _, node := range all {
			if _, ok := node.Labels[r.FormValue("labelSelector")]; ok {
				list.Items = append(list.Items, node)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(list); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("GET /apis/kueue.x-k8s.io/v1beta1/namespaces/ml/localqueues/{name}", func(w http.ResponseWriter, r *http.Request) {
		queue, ok := queues[r.PathValue("name")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, queue)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}
