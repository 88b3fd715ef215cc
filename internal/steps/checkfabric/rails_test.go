// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"net/netip"
	"slices"
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

// device returns a RoCE device with an interface and an address.
func device(name, netdev, address string, rate rdma.BitsPerSecond) rdma.Device {
	return rdma.Device{Name: name, Uverbs: "uverbs0", Ports: []rdma.Port{{
		Number: 1, State: "ACTIVE", LinkLayer: rdma.Ethernet, Rate: rate, Netdev: netdev, Address: netip.MustParsePrefix(address),
	}}}
}

// The devices of the nodes have other names and another order.
func devices() []rdma.Facts {
	return []rdma.Facts{
		{Devices: []rdma.Device{device("mlx5_6", "net1", "10.0.103.5/24", 400*rdma.Gbps),
			device("mlx5_7", "net2", "10.0.104.5/24", 400*rdma.Gbps), device("mlx5_9", "net3", "10.0.105.5/24", 400*rdma.Gbps)}},
		{Devices: []rdma.Device{device("mlx5_2", "net2", "10.0.104.6/24", 100*rdma.Gbps),
			device("mlx5_3", "net1", "10.0.103.6/24", 400*rdma.Gbps)}},
	}
}

func TestRails(t *testing.T) {
	check := &Check{Nodes: make(nodes.Set, 2), facts: []agent.Facts{{GPUs: make([]agent.GPU, 4)}, {GPUs: make([]agent.GPU, 4)}},
		devices: devices()}
	check.devices[1].PodInterface = "eth0"
	rails := check.rails()
	check.report.Backend, check.report.RanksPerNode = fabric.NCCL, 4
	for _, r := range rails {
		check.report.Rails = append(check.report.Rails, r.report)
	}
	check.expect(rails)
	// Node 1 does not have the third rail. It has the slower port of the second rail.
	want := []fabric.Rail{
		{Name: "net1", Network: "10.0.103.0/24", Expected: 48_500_000_000},
		{Name: "net2", Network: "10.0.104.0/24", Expected: 12_125_000_000},
	}
	if diff := cmp.Diff(want, check.report.Rails); diff != "" {
		t.Fatalf("rails (-want +got):\n%s", diff)
	}
	for node := range 2 {
		if diff := cmp.Diff([]string{"net1", "net2"}, interfaces(rails, node)); diff != "" {
			t.Errorf("interfaces of node %d (-want +got):\n%s", node, diff)
		}
	}
	for _, test := range []struct {
		backend fabric.Backend
		node    int
		want    map[string]string
	}{
		{fabric.NCCL, 0, map[string]string{"NCCL_IB_HCA": "=mlx5_7"}},
		{fabric.NCCL, 1, map[string]string{"NCCL_IB_HCA": "=mlx5_2", "NCCL_SOCKET_IFNAME": "=eth0"}},
		{fabric.Gloo, 1, map[string]string{"GLOO_SOCKET_IFNAME": "net2"}},
	} {
		env := map[string]string{}
		check.limitToRail(rails[1], test.node, &fabric.Input{Backend: test.backend}, env)
		if diff := cmp.Diff(test.want, env); diff != "" {
			t.Errorf("%s on node %d (-want +got):\n%s", test.backend, test.node, diff)
		}
	}
}

// The nearest GPU of a node drives each rail. Rails with the same nearest GPU take turns.
func TestRailsAreDrivenByTheNearestGPU(t *testing.T) {
	gpus := func(addresses ...string) (list []agent.GPU) {
		for _, address := range addresses {
			list = append(list, agent.GPU{PCI: address})
		}
		return list
	}
	// near puts device on the switch of GPU pix, behind the host bridge of GPU phb, and far from all others.
	near := func(device rdma.Device, pix, phb string, others ...string) rdma.Device {
		device.GPUs = map[string]rdma.Distance{pix: rdma.PIX, phb: rdma.PHB}
		for _, other := range others {
			device.GPUs[other] = rdma.SYS
		}
		return device
	}
	one, two, three := device("mlx5_6", "net1", "10.0.103.5/24", 400*rdma.Gbps), device("mlx5_7", "net2", "10.0.104.5/24",
		400*rdma.Gbps), device("mlx5_8", "net3", "10.0.105.5/24", 400*rdma.Gbps)
	link := rdma.Link{Speed: 32, Width: 16}
	links := map[string]rdma.Link{"a": link, "b": link, "c": link, "d": link}
	four := rdma.Facts{GPULinks: links, Devices: []rdma.Device{near(one, "b", "a", "c", "d"), near(two, "a", "b", "c", "d"),
		near(three, "c", "d", "a", "b")}}
	for _, test := range []struct {
		name  string
		facts []agent.Facts
		ranks int
		gpus  [][]int // of each rail, by node
		turns [][]int
		far   []bool
	}{
		{"a GPU for each rail", []agent.Facts{{GPUs: gpus("a", "b", "c", "d")}, {GPUs: gpus("d", "c", "b", "a")}}, 4,
			[][]int{{1, 2}, {0, 3}, {2, 1}}, [][]int{{0, 1, 2}}, []bool{false, false, false}},
		{"one GPU a node", []agent.Facts{{GPUs: gpus("a")}, {GPUs: gpus("a")}}, 1, [][]int{{0, 0}, {0, 0}, {0, 0}}, [][]int{{0}, {1}, {2}},
			[]bool{false, false, true}},
		{"two on one node", []agent.Facts{{GPUs: gpus("a", "c")}, {GPUs: gpus("b", "d")}}, 2, [][]int{{0, 0}, {0, 0}, {1, 1}},
			[][]int{{0, 2}, {1}}, []bool{false, false, false}},
		{"addresses that are not known", []agent.Facts{{GPUs: gpus("", "")}, {GPUs: gpus("", "")}}, 2, [][]int{{0, 0}, {1, 1}, {0, 0}},
			[][]int{{0, 1}, {2}}, []bool{false, false, false}},
	} {
		t.Run(test.name, func(t *testing.T) {
			check := &Check{Nodes: make(nodes.Set, 2), facts: test.facts, devices: []rdma.Facts{four, four}}
			rails := check.rails()
			check.report.Backend, check.report.RanksPerNode = fabric.NCCL, test.ranks
			for _, r := range rails {
				check.report.Rails = append(check.report.Rails, r.report)
			}
			check.expect(rails)
			for k, r := range rails {
				if diff := cmp.Diff(test.gpus[k], r.gpus); diff != "" {
					t.Errorf("GPUs of rail %d (-want +got):\n%s", k, diff)
				}
				if got := check.report.Rails[k]; got.Far != test.far[k] || (got.Expected == 0) != test.far[k] {
					t.Errorf("rail %d: far %t, expected %s; want far %t", k, got.Far, got.Expected, test.far[k])
				}
			}
			if diff := cmp.Diff(test.turns, turns(rails)); diff != "" {
				t.Errorf("turns (-want +got):\n%s", diff)
			}
		})
	}
}

// Such jobs and rails should reach the cluster file's figure for one GPU.
func TestFigures(t *testing.T) {
	const one = 14_600_000_000
	for ranks, want := range map[int]rdma.BytesPerSecond{1: one, 4: 60_625_000_000} {
		for mode, set := range map[agent.Mode]bool{agent.RDMA: true, agent.TCP: false} {
			check := &Check{Nodes: make(nodes.Set, 2), facts: make([]agent.Facts, 2), devices: devices(),
				settings: network.Settings{Mode: mode, Expected: rdma.Expected{Figures: rdma.Figures{OneGPU: one, Inside: 261 * rdma.GBps}}}}
			check.report.Backend, check.report.RanksPerNode = fabric.NCCL, ranks
			rails := check.rails()
			for _, r := range rails {
				check.report.Rails = append(check.report.Rails, r.report)
			}
			check.expect(rails)
			r := check.report
			if got := []rdma.BytesPerSecond{r.Expected, r.Rails[0].Expected, r.Figures.Inside}; set &&
				!slices.Equal(got, []rdma.BytesPerSecond{want, one, 261 * rdma.GBps}) ||
				!set && !slices.Equal(got, []rdma.BytesPerSecond{0, 48_500_000_000, 0}) {
				t.Errorf("%d ranks, mode %s: the ring, a rail and the nodes inside should reach %v", ranks, mode, got)
			}
		}
	}
}

func TestWrongTransport(t *testing.T) {
	sockets := &nccl.Summary{Transport: nccl.Sockets, Ranks: []nccl.Rank{{Transport: nccl.Sockets}, {Rank: 1, Transport: nccl.RDMAGPU}}}
	for _, test := range []struct {
		name   string
		mode   agent.Mode
		report fabric.Report
		want   fail.Reason
		words  string
	}{
		{"sockets where RDMA is", agent.RDMA,
			fabric.Report{Backend: fabric.NCCL, Network: sockets, Findings: []nccl.Finding{
				{Cause: "GPUs of the node do not reach each other", Finding: fail.Finding{Reason: nccl.GPUPeerAccessOff, Next: "ACS"}},
				{Host: "env-1", Cause: "NCCL chose sockets: NCCL_IB_DISABLE=1 is set",
					Finding: fail.Finding{Reason: nccl.SocketsInsteadOfRDMA, Next: "unset it"}}}},
			fail.TransportWrong, "1 of 2 ranks use TCP sockets, want RDMA: first on env-1: NCCL chose sockets: NCCL_IB_DISABLE=1 is set"},
		{"sockets without a known cause", agent.RDMA, fabric.Report{Backend: fabric.NCCL, Network: sockets}, fail.TransportWrong, "want RDMA"},
		{"sockets as asked for", agent.TCP, fabric.Report{Backend: fabric.NCCL, Network: sockets}, "", ""},
		{"RDMA", agent.RDMA, fabric.Report{Backend: fabric.NCCL, Network: &nccl.Summary{Transport: nccl.RDMAHost}}, "", ""},
		{"gloo", agent.RDMA, fabric.Report{Backend: fabric.Gloo}, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			check := &Check{Nodes: make(nodes.Set, 2), settings: network.Settings{Mode: test.mode}, report: test.report}
			err := check.wrongTransport()
			if test.want == "" && err != nil || test.want != "" && (fail.ReasonOf(err) != test.want || fail.NextOf(err) == "" ||
				!strings.Contains(err.Error(), test.words)) {
				t.Errorf("got %v, want %q with %q and advice", err, test.want, test.words)
			}
		})
	}
}
