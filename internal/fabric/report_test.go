package fabric

import (
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

// all makes measurements by their bandwidths in GB/s.
func all(gbps float64) Measurement {
	return Measurement{Operation: AllReduce, Scope: World, Ranks: 2, Bytes: 1e9, Time: time.Duration(float64(time.Second) / gbps)}
}

func pair(a, b int, gbps float64) Measurement {
	return Measurement{Operation: SendRecv, Scope: InPair, Pair: Pair{a, b}, Ranks: 2, Bytes: 1e9, Time: time.Duration(float64(time.Second) / gbps)}
}

func rail(i int, gbps float64) Measurement {
	m := all(gbps)
	m.Scope, m.Rail = ByRail, i
	return m
}

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		name    string
		report  Report
		verdict Verdict
		nodes   []int
		rails   []string
		message string
	}{
		{"as expected", Report{Nodes: 2, Expected: 194 * rdma.GBps, Measurements: []Measurement{all(20), all(193)}}, Pass, nil, nil, ""},
		{"below", Report{Nodes: 2, Expected: 194 * rdma.GBps, Measurements: []Measurement{all(54)}}, Slow, nil, nil, "54.0 GB/s (50.3 GiB/s), expected 194.0 GB/s (180.7 GiB/s): 28%"},
		{"nothing is expected", Report{Nodes: 2, Measurements: []Measurement{all(0.5), pair(0, 1, 0.4)}}, Pass, nil, nil, ""},
		{"one node of three", Report{Nodes: 3, Measurements: []Measurement{all(0.1), pair(0, 1, 0.1), pair(0, 2, 1), pair(1, 2, 0.1)}}, Slow, []int{1}, nil, "node 1: pairs with it exchange down to 0.1 GB/s"},
		{"the master of three", Report{Nodes: 3, Measurements: []Measurement{all(0.1), pair(0, 1, 0.1), pair(0, 2, 0.1), pair(1, 2, 1)}}, Slow, []int{0}, nil, "node 0:"},
		{"one rail of two", Report{Nodes: 2, Rails: []Rail{{Name: "net1"}, {Name: "net2", Network: "10.0.104.0/24"}}, Measurements: []Measurement{all(1), rail(0, 1), rail(1, 0.2)}},
			Slow, nil, []string{"net2 (10.0.104.0/24)"}, "rail net2 (10.0.104.0/24): 0.2 GB/s"},
		{"a rail below its rate", Report{Nodes: 2, Rails: []Rail{{Name: "mlx5_6", Expected: 48 * rdma.GBps}}, Measurements: []Measurement{all(12), rail(0, 12)}}, Slow, nil, []string{"mlx5_6"}, "expected 48.0 GB/s"},
		{"a pair, of which nothing more is known", Report{Nodes: 2, Expected: 50 * rdma.GBps, Measurements: []Measurement{all(10), pair(0, 1, 10)}}, Slow, []int{0, 1}, nil, "nodes 0 and 1 exchange 10.0 GB/s"},
		{"all slow alike are the network's", Report{Nodes: 3, Expected: 50 * rdma.GBps, Measurements: []Measurement{all(10), pair(0, 1, 10), pair(0, 2, 10), pair(1, 2, 10)}}, Slow, nil, nil, "20% of it"},
		{"decided already", Report{Verdict: WrongTransport, Nodes: 2, Expected: 194 * rdma.GBps, Measurements: []Measurement{all(5)}}, WrongTransport, nil, nil, ""},
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
	line, ok := ParseLine([]byte(`{"fabric": 1, "operation": "send_recv", "scope": "pair", "pair": [0, 2], "bytes": 4096, "ranks": 4, "time": 1500, "iterations": 9}`))
	want := Measurement{Operation: SendRecv, Scope: InPair, Pair: Pair{0, 2}, Bytes: agent.Bytes(4096), Ranks: 4, Time: 1500, Iterations: 9}
	if diff := cmp.Diff(want, line.Measurement); !ok || diff != "" {
		t.Errorf("ok %t (-want +got):\n%s", ok, diff)
	}
	if line, ok := ParseLine([]byte(`{"fabric": 1, "event": "ready", "torch": "2.9"}`)); !ok || line.Event != Ready || line.Torch != "2.9" {
		t.Errorf("got %+v, %t; want ready", line, ok)
	}
	for _, other := range []string{"", "{}", `{"fabric": 1, "time": "soon"}`, "[W socket.cpp] The client socket has failed"} {
		if _, ok := ParseLine([]byte(other)); ok {
			t.Errorf("%q was taken", other)
		}
	}
}

func TestPrint(t *testing.T) {
	r := Report{Nodes: 2, RanksPerNode: 4, Transport: "RDMA with GPUDirect", Expected: 194 * rdma.GBps, Sockets: 5 * rdma.GBps, Rails: []Rail{{Name: "mlx5_6"}},
		Measurements: []Measurement{rail(0, 48), pair(0, 1, 190), all(190)}}
	Sort(r.Measurements)
	r.Judge()
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := `operation   between        size    time      bus bandwidth
all_reduce  all ranks      1.0 GB  5.2632ms  190.0 GB/s (177.0 GiB/s)
send_recv   nodes 0 and 1  1.0 GB  5.2632ms  190.0 GB/s (177.0 GiB/s)
all_reduce  all, on mlx5_6  1.0 GB  20.8333ms  48.0 GB/s (44.7 GiB/s)
over TCP sockets: 5.0 GB/s (4.7 GiB/s); without them it is 38.0 times that
`
	if diff := cmp.Diff(strings.Fields(want), strings.Fields(out.String())); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	if got, want := r.Summary(), "pass: 2 nodes of 4 ranks each, RDMA with GPUDirect, bus bandwidth 190.0 GB/s (177.0 GiB/s) of 194.0 GB/s (180.7 GiB/s) expected, latency 5.2632ms"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
}
