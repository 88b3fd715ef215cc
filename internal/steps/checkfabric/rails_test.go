package checkfabric

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// device is one of RoCE with an interface and an address.
func device(name, netdev, address string, rate rdma.BitsPerSecond) rdma.Device {
	return rdma.Device{Name: name, Uverbs: "uverbs0", Ports: []rdma.Port{{
		Number: 1, State: "ACTIVE", LinkLayer: rdma.Ethernet, Rate: rate, Netdev: netdev, Address: netip.MustParsePrefix(address),
	}}}
}

// Nodes whose devices have other names, and lie in another order.
func devices() []rdma.Facts {
	return []rdma.Facts{
		{Devices: []rdma.Device{device("mlx5_6", "net1", "10.0.103.5/24", 400*rdma.Gbps), device("mlx5_7", "net2", "10.0.104.5/24", 400*rdma.Gbps), device("mlx5_9", "net3", "10.0.105.5/24", 400*rdma.Gbps)}},
		{Devices: []rdma.Device{device("mlx5_2", "net2", "10.0.104.6/24", 100*rdma.Gbps), device("mlx5_3", "net1", "10.0.103.6/24", 400*rdma.Gbps)}},
	}
}

func TestRails(t *testing.T) {
	check := &Check{facts: []agent.Facts{{GPUs: make([]agent.GPU, 4)}, {GPUs: make([]agent.GPU, 4)}}, devices: devices()}
	rails := check.rails()
	report := fabric.Report{Backend: fabric.NCCL}
	for _, r := range rails {
		report.Rails = append(report.Rails, r.report)
	}
	check.expect(&report, rails)
	// The third is not node 1's; of the second node 1 has the slower port.
	want := []fabric.Rail{
		{Name: "net1", Network: "10.0.103.0/24", Expected: 48_500_000_000},
		{Name: "net2", Network: "10.0.104.0/24", Expected: 12_125_000_000},
	}
	if diff := cmp.Diff(want, report.Rails); diff != "" {
		t.Fatalf("rails (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[int][]string{0: {"net1", "net2"}, 1: {"net1", "net2"}}, railNames(rails)); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
	for _, test := range []struct {
		backend fabric.Backend
		node    int
		want    map[string]string
	}{
		{fabric.NCCL, 0, map[string]string{"NCCL_IB_HCA": "=mlx5_7"}},
		{fabric.NCCL, 1, map[string]string{"NCCL_IB_HCA": "=mlx5_2"}},
		{fabric.Gloo, 1, map[string]string{"GLOO_SOCKET_IFNAME": "net2"}},
	} {
		env := map[string]string{}
		rails[1].only(test.node, &fabric.Input{Backend: test.backend}, env)
		if diff := cmp.Diff(test.want, env); diff != "" {
			t.Errorf("%s on node %d (-want +got):\n%s", test.backend, test.node, diff)
		}
	}
}

func TestWrongTransport(t *testing.T) {
	sockets := &nccl.Summary{Transport: nccl.Sockets, Ranks: []nccl.Rank{{Transport: nccl.Sockets}, {Rank: 1, Transport: nccl.RDMAGPU}}}
	for _, test := range []struct {
		name   string
		mode   string
		report fabric.Report
		want   fail.Reason
		words  string
	}{
		{"sockets where RDMA is", agent.RDMA, fabric.Report{Backend: fabric.NCCL, Network: sockets, Findings: []nccl.Finding{{Cause: "a consequence", Consequence: true}, {Cause: "NCCL chose sockets: NCCL_IB_DISABLE=1 is set", Finding: fail.Finding{Next: "unset it"}}}},
			fail.TransportWrong, "1 of 2 ranks talk over TCP sockets, want RDMA: NCCL chose sockets: NCCL_IB_DISABLE=1 is set"},
		{"sockets without a known cause", agent.RDMA, fabric.Report{Backend: fabric.NCCL, Network: sockets}, fail.TransportWrong, "want RDMA"},
		{"sockets as asked for", agent.TCP, fabric.Report{Backend: fabric.NCCL, Network: sockets}, "", ""},
		{"RDMA", agent.RDMA, fabric.Report{Backend: fabric.NCCL, Network: &nccl.Summary{Transport: nccl.RDMAHost}}, "", ""},
		{"gloo", agent.RDMA, fabric.Report{Backend: fabric.Gloo}, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			check := &Check{Nodes: make(nodes.Set, 2), settings: network.Settings{Mode: test.mode}}
			err := check.wrongTransport(&test.report)
			if test.want == "" && err != nil || test.want != "" && (fail.ReasonOf(err) != test.want || fail.NextOf(err) == "" || !strings.Contains(err.Error(), test.words)) {
				t.Errorf("got %v, want %q with %q and advice", err, test.want, test.words)
			}
		})
	}
}
