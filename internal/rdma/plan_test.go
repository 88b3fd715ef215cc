// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pair returns the facts of two nodes.
func pair(a, b *host) []Facts { return []Facts{a.detect(Expected{}), b.detect(Expected{})} }

func TestPlan(t *testing.T) {
	other := []string{"mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"}
	isolated := pair(barcelona(0, names4...), barcelona(1, other...))
	infiniBand := func() *host {
		h := newHost()
		for i := range 4 {
			n := nic{name: fmt.Sprintf("mlx5_%d", i+2), uverbs: fmt.Sprintf("uverbs%d", i), address: fmt.Sprintf("0000:%d3:00.0", i+1),
				physical: true, infiniBand: true}
			h.add(n)
		}
		return h
	}
	changed := func(node int, change func(i int, n *nic)) *host {
		h := newHost()
		for i, n := range rails4(node, names4...) {
			change(i, &n)
			h.add(n)
			h.allot(fmt.Sprintf("openshift.io/eno%dnp0rdma", 5+i), n.address, rdmaInfo(n.name, n.uverbs))
		}
		return h
	}
	routed := func(node int) *host {
		h := changed(node, func(int, *nic) {})
		for i := range 4 {
			h.route(fmt.Sprintf("net%d", i+1), "10.0.0.0/16")
		}
		return h
	}
	// In each table another address precedes the pod's address.
	shifted := func(indexes ...int) *host {
		return changed(0, func(i int, n *nic) {
			n.gids = map[int][3]string{1: {mapped("192.168.0.9"), RoCEv2, "eno5np0"}, indexes[i]: {mapped(fmt.Sprintf("10.0.%d.7", 103+i)), RoCEv2,
				n.netdev}}
		})
	}
	unlike := changed(0, func(i int, n *nic) {
		n.gids = map[int][3]string{3 + i%2: {mapped(fmt.Sprintf("10.0.%d.7", 103+i)), RoCEv2, n.netdev}}
	})
	elsewhere := changed(1, func(i int, n *nic) { n.ip = fmt.Sprintf("10.0.%d.8/24", 113+i) })
	for i := range 4 {
		elsewhere.route(fmt.Sprintf("net%d", i+1), "10.0.0.0/16")
	}
	reversed := func(node int) *host {
		h := changed(node, func(int, *nic) {})
		for i := range h.interfaces[1:] {
			h.interfaces[i+1].Index = 9 - i
		}
		return h
	}
	down := changed(1, func(i int, n *nic) {
		if i == 2 {
			n.state = "1: DOWN"
		}
	})
	far := newHost()
	far.add(nic{name: "mlx5_6", uverbs: "uverbs6", address: "0000:03:00.2", netdev: "net1", ip: "10.0.103.7/24"})
	far.gpu("pci0000:40/0000:40:01.0", "0000:41:00.0", 0)
	with := func(node Facts, nvLink Answer) Facts {
		node.NVLink = nvLink
		return node
	}
	peermem := barcelona(0, names4...)
	peermem.write("sys/kernel/mm/memory_peers/nv_mem/version", "1.1")
	const hca, iface, gloo, gid = "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_GID_INDEX"
	const level, dmabuf, cross = "NCCL_NET_GDR_LEVEL", "NCCL_DMABUF_ENABLE", "NCCL_CROSS_NIC"
	for _, tc := range []struct {
		name      string
		nodes     []Facts
		node      int
		expected  Expected
		overrides map[string]string
		want      map[string]string // "" if the variable must not be set
		findings  []string
	}{
		{name: "isolated rails", nodes: isolated, want: map[string]string{
			"NCCL_IB_DISABLE": "0", hca: "=mlx5_6,mlx5_7,mlx5_10,mlx5_11", iface: "=net1,net2,net3,net4", gloo: "net1", gid: "3", level: "",
			dmabuf: "1", cross: "0"}},
		{name: "the other node's own names", nodes: isolated, node: 1, want: map[string]string{hca: "=mlx5_2,mlx5_3,mlx5_4,mlx5_5",
			iface: "=net1,net2,net3,net4"}},
		{name: "a node by itself", nodes: isolated[:1], want: map[string]string{hca: "=mlx5_6,mlx5_7,mlx5_10,mlx5_11", cross: "0"}},
		{name: "the cluster file goes with it", nodes: []Facts{with(isolated[0], Yes), with(isolated[1], Yes)},
			expected: Expected{GIDIndex: "3", GDRLevel: "5", CrossNIC: "0", IBTimeout: "22", MinNChannels: "4", TrafficClass: "106",
				ServiceLevel: "3"},
			want: map[string]string{"NCCL_IB_TC": "106", "NCCL_IB_SL": "3", gid: "3", level: "SYS", cross: "0", "NCCL_IB_TIMEOUT": "22",
				"NCCL_MIN_NCHANNELS": "4"}},
		{name: "the cluster file does not go with it", nodes: isolated, expected: Expected{GIDIndex: "5", CrossNIC: "1"},
			want: map[string]string{gid: "3", cross: "0"}, findings: []string{"note SettingDiffers", "note SettingDiffers"}},
		{name: "overrides are forced", nodes: isolated, overrides: map[string]string{hca: "=mlx5_0", "NCCL_ALGO": "Ring", gid: "3"},
			want: map[string]string{hca: "=mlx5_0", "NCCL_ALGO": "Ring", gid: "3"}},
		{name: "rails with routes to each other", nodes: pair(routed(0), routed(1)), want: map[string]string{cross: ""}},
		{name: "rails with routes, as the file says", nodes: pair(routed(0), routed(1)), expected: Expected{CrossNIC: "1"},
			want: map[string]string{cross: "1"}},
		{name: "routes on one node alone", nodes: pair(routed(0), changed(1, func(int, *nic) {})), want: map[string]string{cross: "0"}},
		{name: "InfiniBand with host devices", nodes: pair(infiniBand(), infiniBand()), expected: Expected{GIDIndex: "3", CrossNIC: "1"},
			want: map[string]string{hca: "=mlx5_2,mlx5_3,mlx5_4,mlx5_5", iface: "=eth0", gloo: "eth0", gid: "", cross: "1", dmabuf: "", level: ""}},
		{name: "a rail that the other node lacks", nodes: pair(barcelona(0, names4...), down),
			want: map[string]string{hca: "=mlx5_6,mlx5_7,mlx5_11", iface: "=net1,net2,net4"}},
		{name: "no rail in common", nodes: pair(barcelona(0, names4...), infiniBand()), want: map[string]string{}},
		{name: "interfaces in another order", nodes: pair(barcelona(0, names4...), reversed(1)),
			want: map[string]string{iface: "=net1", gloo: "net1"}},
		{name: "interfaces in another order, there", nodes: pair(barcelona(0, names4...), reversed(1)), node: 1,
			want: map[string]string{iface: "=net1", gloo: "net1"}},
		{name: "another GID is first", nodes: []Facts{shifted(5, 5, 5, 5).detect(Expected{})}, want: map[string]string{gid: "5"}},
		{name: "each device has another index, which NCCL finds", nodes: []Facts{unlike.detect(Expected{})}, want: map[string]string{gid: ""}},
		{name: "host devices of RoCE", nodes: pair(ofHost(0), ofHost(1)), want: map[string]string{hca: "=mlx5_0,mlx5_1", iface: "=eth0", gid: "1",
			cross: "0"}},
		{name: "rails in other subnets of each node", nodes: pair(routed(0), elsewhere),
			want: map[string]string{hca: "=mlx5_6,mlx5_7,mlx5_10,mlx5_11", iface: "=net1,net2,net3,net4", cross: ""}},
		{name: "other GIDs are first, differently", nodes: []Facts{shifted(5, 5, 5, 7).detect(Expected{})}, want: map[string]string{gid: ""},
			findings: []string{"broken GIDChoice"}},
		{name: "GPUs behind another host bridge", nodes: []Facts{far.detect(Expected{})}, expected: Expected{GDRLevel: "2"},
			want: map[string]string{level: "PHB"}, findings: []string{"note SettingDiffers"}},
		{name: "the file's level, without NVLink", nodes: []Facts{with(isolated[0], No)}, expected: Expected{GDRLevel: "5"},
			want: map[string]string{level: ""}, findings: []string{"note SettingDiffers"}},
		{name: "the file's level, the topology is not known", nodes: []Facts{with(isolated[0], "")}, expected: Expected{GDRLevel: "5"},
			want: map[string]string{level: ""}, findings: []string{"note SettingDiffers"}},
		{name: "no GPU known, the file's level", nodes: pair(infiniBand(), infiniBand()), expected: Expected{GDRLevel: "5"},
			want: map[string]string{level: "SYS"}},
		{name: "peermem", nodes: []Facts{peermem.detect(Expected{})}, want: map[string]string{dmabuf: ""}},
		{name: "no device", nodes: []Facts{newHost().detect(Expected{})}, overrides: map[string]string{"NCCL_DEBUG": "INFO"},
			want: map[string]string{"NCCL_DEBUG": "INFO", hca: "none"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plan := NewPlan(tc.nodes, tc.node, tc.expected, tc.overrides)
			environment, unset := plan.Environment(), plan.Unset()
			for name, want := range tc.want {
				value, set := environment[name]
				switch {
				case want == "none" && (set || slices.Contains(unset, name)):
					t.Errorf("%s is in the plan", name)
				case want == "none":
				case want == "" && (set || !slices.Contains(unset, name)):
					t.Errorf("%s=%q, want it to be left to NCCL", name, value)
				case value != want:
					t.Errorf("%s=%q, want %q", name, value, want)
				}
			}
			if len(tc.want) == 0 && len(plan.Variables) > 0 {
				t.Errorf("variables %v, want none", plan.Variables)
			}
			if diff := cmp.Diff(tc.findings, kinds(plan.Findings)); diff != "" {
				t.Errorf("findings (-want +got):\n%s%v", diff, plan.Findings)
			}
		})
	}
}

// The plan names a device with two ports by the usable port.
func TestPlanOfTwoPorts(t *testing.T) {
	h := newHost()
	h.add(nic{name: "mlx4_0", uverbs: "uverbs0", address: "0000:03:00.0", physical: true, infiniBand: true})
	for _, name := range []string{"state", "link_layer", "rate"} {
		h.write("sys/devices/pci0000:03/0000:00:01.0/0000:03:00.0/infiniband/mlx4_0/ports/2/"+name, "1: DOWN")
	}
	if got := NewPlan([]Facts{h.detect(Expected{})}, 0, Expected{}, nil).Environment()["NCCL_IB_HCA"]; got != "=mlx4_0:1" {
		t.Errorf("NCCL_IB_HCA=%s, want =mlx4_0:1", got)
	}
}

func TestForcedIsShown(t *testing.T) {
	plan := NewPlan([]Facts{barcelona(0, names4...).detect(Expected{})}, 0, Expected{}, map[string]string{"NCCL_CROSS_NIC": "2"})
	i := slices.IndexFunc(plan.Variables, func(v Variable) bool { return v.Name == "NCCL_CROSS_NIC" })
	want := Variable{Name: "NCCL_CROSS_NIC", Value: "2", Source: Forced, Reason: "the cluster file's nccl block has it; derived was 0"}
	if diff := cmp.Diff(want, plan.Variables[i]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
