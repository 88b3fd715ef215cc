// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// The expected figures are nccl-tests' factors, worked out by hand.
func TestBandwidth(t *testing.T) {
	for _, test := range []struct {
		operation Operation
		ranks     int
		want      rdma.BytesPerSecond
	}{
		{AllReduce, 2, 1e9},
		{AllReduce, 8, 1.75e9},
		{AllGather, 4, 0.75e9},
		{ReduceScatter, 8, 0.875e9},
		{Broadcast, 8, 1e9},
		{SendRecv, 2, 1e9},
		{SendRecv, 8, 4e9},
		{AllReduce, 1, 0},
	} {
		m := Measurement{Operation: test.operation, Ranks: test.ranks, Bytes: 1e6, Time: time.Millisecond}
		if got := m.Bandwidth(); got != test.want {
			t.Errorf("%s of %d ranks: %d, want %d", test.operation, test.ranks, got, test.want)
		}
	}
	if got := (Measurement{Operation: AllReduce, Ranks: 2}).Bandwidth(); got != 0 {
		t.Errorf("without a time: %d, want 0", got)
	}
}

// all returns measurements with these bandwidths in GB/s.
func all(gbps float64) Measurement {
	return Measurement{Operation: AllReduce, Scope: World, Ranks: 2, Bytes: 1e9, Time: time.Duration(float64(time.Second) / gbps)}
}

func pair(a, b int, gbps float64) Measurement {
	return Measurement{Operation: SendRecv, Scope: InPair, Pair: Pair{a, b}, Ranks: 2, Bytes: 1e9,
		Time: time.Duration(float64(time.Second) / gbps)}
}

func inside(node int, gbps float64) Measurement {
	m := all(gbps)
	m.Scope, m.Node = InNode, node
	return m
}

func copies(node int, gbps float64) Measurement {
	m := inside(node, gbps)
	m.Operation = HostCopy
	return m
}

func rail(i int, gbps float64) Measurement {
	m := all(gbps)
	m.Scope, m.Rail = ByRail, i
	return m
}

func hosts(a, b, i int, gbps float64) Measurement {
	m := rail(i, gbps)
	m.Operation, m.Pair = HostRDMA, Pair{a, b}
	return m
}

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		name    string
		report  Report
		verdict Result
		nodes   []int
		rails   []string
		message string
	}{
		{"as expected", Report{Nodes: 2, Expected: 194 * rdma.GBps, Measurements: []Measurement{all(20), all(193)}}, Pass, nil, nil, ""},
		{"below", Report{Nodes: 2, Expected: 194 * rdma.GBps, Measurements: []Measurement{all(54)}}, Slow, nil, nil,
			"54.0 GB/s, expected 194.0 GB/s: 28%"},
		{"nothing is expected", Report{Nodes: 2, Measurements: []Measurement{all(0.5), pair(0, 1, 0.4)}}, Pass, nil, nil, ""},
		{"one node of three", Report{Nodes: 3, Measurements: []Measurement{all(0.1), pair(0, 1, 0.1), pair(0, 2, 1), pair(1, 2, 0.1)}}, Slow,
			[]int{1}, nil, "node 1: pairs with it exchange down to 0.1 GB/s"},
		{"the master of three", Report{Nodes: 3, Measurements: []Measurement{all(0.1), pair(0, 1, 0.1), pair(0, 2, 0.1), pair(1, 2, 1)}}, Slow,
			[]int{0}, nil, "node 0:"},
		{"one rail of two", Report{Nodes: 2, Rails: []Rail{{Name: "net1"}, {Name: "net2", Network: "10.0.104.0/24"}},
			Measurements: []Measurement{all(1), rail(0, 1), rail(1, 0.2)}},
			Slow, nil, []string{"net2 (10.0.104.0/24)"}, "rail net2 (10.0.104.0/24): 0.2 GB/s"},
		{"a rail below its rate", Report{Nodes: 2, Rails: []Rail{{Name: "mlx5_6", Expected: 48 * rdma.GBps}},
			Measurements: []Measurement{all(12), rail(0, 12)}}, Slow, nil, []string{"mlx5_6"}, "expected 48.0 GB/s"},
		{"two nodes, of which nothing more is known",
			Report{Nodes: 2, Expected: 50 * rdma.GBps, Measurements: []Measurement{all(10), pair(0, 1, 10)}}, Slow, nil, nil, "20% of it"},
		{"pairs are slower than a ring",
			Report{Nodes: 3, Expected: 194 * rdma.GBps, Measurements: []Measurement{all(190), pair(0, 1, 52), pair(0, 2, 50), pair(1, 2, 51)}}, Pass,
			nil, nil, ""},
		{"what was measured on nodes with PCIe 4.0",
			Report{Nodes: 2, Expected: 103_918_769_230, Measurements: []Measurement{all(83.33 * 1.073741824)}}, Pass, nil, nil, ""},
		{"inside one node of three", Report{Nodes: 3, Measurements: []Measurement{all(1), inside(0, 260), inside(1, 20), inside(2, 261)}}, Slow,
			[]int{1}, nil, "node 1: its ranks exchange 20.0 GB/s"},
		{"a GPU of one node", Report{Nodes: 2, Measurements: []Measurement{all(1), copies(0, 12), copies(1, 51)}}, Slow, []int{0}, nil,
			"node 0: its slowest GPU takes 12.0 GB/s"},
		{"inside nodes without GPUs", Report{Nodes: 2, Backend: Gloo, Measurements: []Measurement{all(1), inside(0, 2), inside(1, 0.5)}}, Pass,
			nil, nil, ""},
		{"inside nodes alike", Report{Nodes: 2, Measurements: []Measurement{all(1), inside(0, 260), inside(1, 200)}}, Pass, nil, nil, ""},
		{"rails without a near GPU",
			Report{Nodes: 2, Rails: []Rail{{Name: "net1", Expected: 48 * rdma.GBps}, {Name: "net2", Far: true}, {Name: "net3", Far: true}},
				Measurements: []Measurement{all(48), rail(0, 47), rail(1, 14), rail(2, 15)}},
			Pass, nil, nil, ""},
		{"one of the rails without a near GPU",
			Report{Nodes: 2, Rails: []Rail{{Name: "net1", Expected: 48 * rdma.GBps}, {Name: "net2", Far: true}, {Name: "net3", Far: true}},
				Measurements: []Measurement{all(48), rail(0, 47), rail(1, 4), rail(2, 15)}},
			Slow, nil, []string{"net2"}, "rail net2: 4.0 GB/s, another has 15.0 GB/s"},
		{"RDMA between hosts, slow on one rail", Report{Nodes: 4, Rails: []Rail{{Name: "net1"}, {Name: "net2"}},
			Measurements: []Measurement{all(1), hosts(0, 1, 0, 28), hosts(2, 3, 0, 27), hosts(0, 1, 1, 28.3), hosts(2, 3, 1, 9)}},
			Slow, nil, []string{"net2"}, "rail net2: RDMA between the memories of nodes 2 and 3 reaches 9.0 GB/s, elsewhere 28.3 GB/s"},
		{"RDMA between hosts alike", Report{Nodes: 2, Rails: []Rail{{Name: "net1"}, {Name: "net2"}},
			Measurements: []Measurement{all(1), hosts(0, 1, 0, 28), hosts(0, 1, 1, 20)}}, Pass, nil, nil, ""},
		{"below the cluster's own figures",
			Report{Nodes: 2, Rails: []Rail{{Name: "net1"}}, Figures: rdma.Figures{Inside: 261 * rdma.GBps, Pair: 14 * rdma.GBps,
				HostCopy: 28 * rdma.GBps, HostRDMA: 28 * rdma.GBps},
				Measurements: []Measurement{all(1), pair(0, 1, 7), hosts(0, 1, 0, 20), inside(0, 1), inside(0, 150), inside(1, 151), copies(0, 20),
					copies(1, 21)}}, Slow, nil, nil,
			"send_recv between nodes 0 and 1: 7.0 GB/s, expected 14.0 GB/s; host_rdma between nodes 0 and 1, on net1: " +
				"20.0 GB/s, expected 28.0 GB/s; " +
				"all_reduce between ranks of node 0: 150.0 GB/s, expected 261.0 GB/s; all_reduce between ranks of node " +
				"1: 151.0 GB/s, expected 261.0 GB/s; " +
				"host_copy between ranks of node 0: 20.0 GB/s, expected 28.0 GB/s; host_copy between ranks of node 1: 21.0 " +
				"GB/s, expected 28.0 GB/s"},
		{"what the earlier benchmarks measured",
			Report{Nodes: 2, Expected: 14_600_000_000, Rails: []Rail{{Name: "net1", Expected: 14_600_000_000}},
				Figures: rdma.Figures{OneGPU: 14_600_000_000, Inside: 261 * rdma.GBps, Pair: 14_600_000_000, HostCopy: 28_700_000_000,
					HostRDMA: 28_300_000_000},
				Measurements: []Measurement{all(14.6), rail(0, 14.5), pair(0, 1, 14.6), hosts(0, 1, 0, 28.3), inside(0, 261), copies(0, 28.7)}}, Pass,
			nil, nil, ""},
		{"figures of GPUs on nodes without", Report{Nodes: 2, Backend: Gloo, Rails: []Rail{{Name: "net1"}},
			Figures:      rdma.Figures{Inside: 261 * rdma.GBps, Pair: 14 * rdma.GBps, HostRDMA: 28 * rdma.GBps},
			Measurements: []Measurement{all(1), pair(0, 1, 1), hosts(0, 1, 0, 28), inside(0, 1)}}, Pass, nil, nil, ""},
		{"all slow alike are the network's",
			Report{Nodes: 3, Expected: 50 * rdma.GBps, Measurements: []Measurement{all(10), pair(0, 1, 10), pair(0, 2, 10), pair(1, 2, 10)}}, Slow,
			nil, nil, "20% of it"},
		{"decided already", Report{Verdict: WrongTransport, Nodes: 2, Expected: 194 * rdma.GBps, Measurements: []Measurement{all(5)}},
			WrongTransport, nil, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := test.report
			r.Judge()
			if r.Verdict != test.verdict || !strings.Contains(r.Message, test.message) || test.message == "" && r.Message != "" {
				t.Errorf("%s: %q; want %s with %q", r.Verdict, r.Message, test.verdict, test.message)
			}
			if diff := cmp.Diff(test.nodes, r.FaultyNodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.rails, r.FaultyRails); diff != "" {
				t.Errorf("rails (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseLine(t *testing.T) {
	line, ok := ParseLine(
		[]byte(`{"fabric": 1, "operation": "send_recv", "scope": "pair", "pair": [0, 2], "bytes": 4096, "ranks": 4, "time": 1500, ` +
			`"iterations": 9}`))
	want := Measurement{Operation: SendRecv, Scope: InPair, Pair: Pair{0, 2}, Bytes: agent.Bytes(4096), Ranks: 4, Time: 1500, Iterations: 9}
	if diff := cmp.Diff(want, line.Measurement); !ok || diff != "" {
		t.Errorf("ok %t (-want +got):\n%s", ok, diff)
	}
	if line, ok := ParseLine([]byte(`{"fabric": 1, "event": "ready"}`)); !ok || line.Event != Ready {
		t.Errorf("got %+v, %t; want ready", line, ok)
	}
	for _, other := range []string{
		"", "{}", `{"fabric": 1, "time": "soon"}`, "[W socket.cpp] The client socket has failed", `{"fabric": 1, "event": "won"}`,
		`{"fabric": 1, "operation": "all_reduce", "scope": "world", "bytes": 8, "ranks": 2, "time": -1}`,
		`{"fabric": 1, "operation": "all_reduce", "scope": "rail", "rail": -1, "bytes": 8, "ranks": 2, "time": 1}`,
		`{"fabric": 1, "event": "device"}`, `{"fabric": 1, "event": "device", "device": {"kind": "a", "rank": -1}}`,
		`{"fabric": 1, "event": "device", "device": {"kind": "a", "flopsPerSecond": -1}}`,
		`{"fabric": 1, "event": "device", "device": {"kind": "a\u001b[2J", "flopsPerSecond": 1}}`,
	} {
		if _, ok := ParseLine([]byte(other)); ok {
			t.Errorf("%q was accepted", other)
		}
	}
}

func TestPrint(t *testing.T) {
	r := Report{Nodes: 2, RanksPerNode: 4, Transport: "RDMA with GPUDirect", Expected: 194 * rdma.GBps,
		Rails:        []Rail{{Name: "mlx5_6"}},
		Measurements: []Measurement{rail(0, 48), hosts(0, 1, 0, 28.3), pair(0, 1, 190), all(190)}}
	SortMeasurements(r.Measurements)
	r.Judge()
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := `operation   between        size    time      bus bandwidth
all_reduce  all ranks      1.0 GB  5.2632ms  190.0 GB/s
send_recv   nodes 0 and 1  1.0 GB  5.2632ms  190.0 GB/s
all_reduce  all, on mlx5_6  1.0 GB  20.8333ms  48.0 GB/s
host_rdma   nodes 0 and 1, on mlx5_6  1.0 GB  35.3357ms  28.3 GB/s
`
	if diff := cmp.Diff(strings.Fields(want), strings.Fields(out.String())); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	if got, want := r.Summary(), "pass: 2 nodes of 4 ranks each, RDMA with GPUDirect, bus bandwidth 190.0 GB/s of 194.0 GB/s "+
		"expected, latency 5.2632ms"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
}

// FuzzParseLine: ranks may print anything. An accepted line has values that can be judged and printed.
func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"fabric": 1, "operation": "send_recv", "scope": "pair", "pair": [0, 2], "bytes": 4096, "ranks": 4, "time": 1500, ` +
		`"iterations": 9}`))
	f.Add([]byte(`{"fabric": 1, "operation": "all_reduce", "scope": "rail", "rail": 9223372036854775807, "bytes": 9223372036854775807, ` +
		`"ranks": 2, "time": 1}`))
	f.Add([]byte(`{"fabric": 1, "operation": "send_recv", "scope": "pair", "pair": [-5, 99], "bytes": 8, "ranks": 9223372036854775807, ` +
		`"time": 1}`))
	f.Add([]byte(`{"fabric": 1, "operation": "all_reduce", "scope": "node", "node": -1, "bytes": 1, "ranks": 1, "time": -1}`))
	f.Add([]byte(`{"fabric": 1, "event": "rail", "rail": -99}`))
	f.Add([]byte(`{"fabric": 1, "event": "device", "device": {"rank": 1, "node": 1, "kind": "NVIDIA H100", "flopsPerSecond": 1, ` +
		`"copyBytesPerSecond": 1, "notMeasured": "\u001b"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		line, ok := ParseLine(text)
		if !ok {
			return
		}
		if line.Event == "" && (line.Bandwidth() < 0 || line.Node < 0 || line.Rail < 0 || line.Ranks < 1) {
			t.Errorf("%s was accepted with bandwidth %d", text, line.Bandwidth())
		}
		checkReport(t, Report{Nodes: 2, Rails: []Rail{{Name: "net1"}}, KubernetesNodes: []string{"a", "b"},
			Measurements: []Measurement{line.Measurement, pair(0, 1, 1)}, Devices: append(gpus(h100, 5, 640), line.Device)})
	})
}

// FuzzReport reads a report from a file on the claim, to which ranks can write.
func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"nodes": 2, "rails": [{"name": "net1"}], "measurements": [{"operation": "send_recv", "scope": "pair", "pair": [-5, 99], ` +
		`"ranks": 1, "time": 1}]}`))
	f.Add([]byte(`{"nodes": -1, "ranksPerNode": -4, "faultyNodes": [-1, 99], "measurements": [{"scope": "rail", "rail": -1}, {"scope": ` +
		`"rail", "rail": 7}]}`))
	f.Add([]byte(`{"verdict": "slow", "expectedBytesPerSecond": -1, "network": {"rails": ` +
		`[{"channels": -1}]}, "findings": [{"name": "PortDown"}]}`))
	f.Add([]byte(`{"nodes": 1, "devices": [{"rank": -1, "node": 7, "kind": "a", "flopsPerSecond": -1}, {"node": 0, "kind": "a", ` +
		`"flopsPerSecond": 9223372036854775807}], "slowDevices": [{"node": 99}], "deviceKinds": [{"devices": -1}]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		var r Report
		if json.Unmarshal(content, &r) != nil {
			return
		}
		checkReport(t, r)
	})
}

// checkReport judges and prints a report, and fails if a value is out of range.
func checkReport(t *testing.T, r Report) {
	t.Helper()
	r.Verdict, r.FaultyNodes = "", nil
	SortMeasurements(r.Measurements)
	r.Judge()
	if r.Bandwidth < 0 || r.Latency < 0 || r.Verdict != Pass && r.Verdict != Slow {
		t.Errorf("bandwidth %d, latency %d, verdict %q", r.Bandwidth, r.Latency, r.Verdict)
	}
	for _, node := range r.FaultyNodes {
		if node < 0 || node >= r.Nodes {
			t.Errorf("node %d of %d is at fault", node, r.Nodes)
		}
	}
	if err := r.Print(io.Discard); err != nil {
		t.Error(err)
	}
	if NodesAt(r.FaultyNodes, r.KubernetesNodes) == "" || NodesAt([]int{-1, 99}, r.KubernetesNodes) == "" || r.Summary() == "" {
		t.Error("no text")
	}
}
