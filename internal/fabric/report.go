// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// Result is what a check found.
type Result string

// The results of a check.
const (
	// Pass: the network does what it should, as far as anything is expected.
	Pass Result = "pass"
	// Slow: the bandwidth of the network, a node or a rail is below what it should be, or a device is slower than others of its kind.
	Slow Result = "slow"
	// WrongTransport: ranks use sockets although the environment uses RDMA.
	WrongTransport Result = "wrong-transport"
	// Broken: ranks do not reach each other, or hang.
	Broken Result = "broken"
	// NotMeasured: nothing could be measured, and not because of the network.
	NotMeasured Result = "not-measured"
)

// Report is what a check found. It is part of the receipt, docs/reference/receipt.md.
type Report struct {
	Verdict Result `json:"verdict"`
	Message string `json:"message,omitempty"`
	// Mode is the environment's.
	Mode    agent.Mode `json:"mode"`
	Backend Backend    `json:"backend"`
	// Transport is NCCL's in words, or "gloo over net1".
	Transport string `json:"transport,omitempty"`
	// Network is what NCCL's logs show, without its processes; nil with gloo.
	Network *nccl.Summary `json:"network,omitempty"`
	Nodes   int           `json:"nodes"`
	// KubernetesNodes are the Kubernetes nodes that the nodes run on, empty for an unknown one.
	KubernetesNodes []string `json:"kubernetesNodes,omitempty"`
	RanksPerNode    int      `json:"ranksPerNode"`
	// Bandwidth is the highest bus bandwidth of all_reduce over all ranks.
	Bandwidth rdma.BytesPerSecond `json:"bandwidthBytesPerSecond"`
	// Expected is the expected bandwidth, 0 if there is none.
	Expected rdma.BytesPerSecond `json:"expectedBytesPerSecond,omitempty"`
	// Figures are what the cluster file expects of single measurements.
	Figures rdma.Figures `json:"figures,omitzero"`
	// Latency is the time of the smallest all_reduce, in nanoseconds.
	Latency time.Duration `json:"latencyNanoseconds,omitempty"`
	Rails   []Rail        `json:"rails,omitempty"`
	// FaultyNodes and FaultyRails are slow, have a slow device, or do not answer.
	FaultyNodes  []int          `json:"faultyNodes,omitempty"`
	FaultyRails  []string       `json:"faultyRails,omitempty"`
	Findings     []nccl.Finding `json:"findings,omitempty"`
	Measurements []Measurement  `json:"measurements,omitempty"`
	// Devices are the ranks' devices; of very many only those that differ. DeviceKinds has the spread of all, and SlowDevices those that
	// are slower than others of their kind.
	Devices     []Device     `json:"devices,omitempty"`
	DeviceKinds []DeviceKind `json:"deviceKinds,omitempty"`
	SlowDevices []SlowDevice `json:"slowDevices,omitempty"`
	// Quick is true if a quick check found nothing wrong, and no more was measured.
	Quick   bool    `json:"quick,omitempty"`
	Seconds float64 `json:"seconds"`
}

// Rail is one network of the environment, with its own bandwidth.
type Rail struct {
	// Name is the interface or device of the first node; Network is its subnet.
	Name      string              `json:"name"`
	Network   string              `json:"network,omitempty"`
	Bandwidth rdma.BytesPerSecond `json:"bandwidthBytesPerSecond,omitempty"`
	// Expected is what the slowest node's port should reach, 0 if nothing is expected.
	Expected rdma.BytesPerSecond `json:"expectedBytesPerSecond,omitempty"`
	// Far is true if on some node no GPU that takes part is near the port: such a rail is slower than others, and no fault.
	Far bool `json:"far,omitempty"`
}

const (
	// enough is the part of the expected bandwidth below which the network is slow. Rings that cross
	// between racks at every hop reached 54 to 84% of it, healthy ones 97% and more.
	enough = 0.85
	// alike is the part of the best node's or rail's bandwidth below which another one is
	// slow if nothing is expected: links of one kind differ by less.
	alike = 0.5
)

// Judge sets bandwidths and latency from the measurements, and the verdict unless there is one.
func (r *Report) Judge() {
	_, r.Bandwidth = measured(r.Measurements, func(m Measurement) bool { return m.Operation == AllReduce && m.Scope == World })
	r.Latency = latency(r.Measurements)
	for i := range r.Rails {
		_, r.Rails[i].Bandwidth = measured(r.Measurements, func(m Measurement) bool {
			return m.Operation == AllReduce && m.Scope == ByRail && m.Rail == i
		})
	}
	r.compareDevices()
	if r.Verdict != "" {
		return
	}
	r.Verdict = Pass
	if slow := append(r.slowNetwork(), r.slowTexts()...); len(slow) > 0 {
		if r.Message != "" {
			slow = append(slow, r.Message)
		}
		r.Verdict, r.Message = Slow, strings.Join(slow, "; ")
	}
}

// SlowNetwork reports whether the network is slow, and not only a device.
func (r *Report) SlowNetwork() bool {
	again := *r
	again.FaultyNodes, again.FaultyRails = nil, nil
	return len(again.slowNetwork()) > 0
}

// slowNetwork describes what is slow of the network, and sets the nodes and rails at fault.
func (r *Report) slowNetwork() (slow []string) {
	if r.Expected > 0 && isBelow(r.Bandwidth, r.Expected, enough) {
		slow = append(slow, fmt.Sprintf("bus bandwidth %s, expected %s: %.0f%% of it", r.Bandwidth, r.Expected,
			100*float64(r.Bandwidth)/float64(r.Expected)))
	}
	return slices.Concat(slow, r.slowNodes(), r.slowInside(), r.slowRails(), r.slowHosts(), r.belowFigures())
}

// slowNodes compares pairs with each other. Nothing else is comparable: between two ranks NCCL uses fewer channels than in a ring.
func (r *Report) slowNodes() []string {
	pairs, fastest := measured(r.Measurements, func(m Measurement) bool { return m.Scope == InPair && m.Pair.Within(r.Nodes) })
	slowest := fastest
	var good, bad []Pair
	for _, m := range pairs {
		if b := m.Bandwidth(); isBelow(b, fastest, alike) {
			bad = append(bad, m.Pair)
			slowest = min(slowest, b)
		} else {
			good = append(good, m.Pair)
		}
	}
	faulty := Faulty(good, bad)
	if len(faulty) == 0 {
		return nil
	}
	r.FaultyNodes = faulty
	return []string{fmt.Sprintf("%s: pairs with it exchange down to %s, others up to %s", NodesAt(faulty, r.KubernetesNodes), slowest,
		fastest)}
}

// slowInside compares what happens inside the nodes: what ranks exchange with each other, and copies to GPUs. With gloo that shows
// how busy the processors are.
func (r *Report) slowInside() (slow []string) {
	if r.Backend == Gloo {
		return nil
	}
	for operation, words := range map[Operation]string{AllReduce: "its ranks exchange %s with each other, those of another node %s",
		HostCopy: "its slowest GPU takes %s from the host's memory, that of another node %s"} {
		inside := map[int]rdma.BytesPerSecond{}
		all, fastest := measured(r.Measurements, func(m Measurement) bool {
			return m.Operation == operation && m.Scope == InNode && m.Node >= 0 && m.Node < r.Nodes
		})
		for _, m := range all {
			inside[m.Node] = max(inside[m.Node], m.Bandwidth())
		}
		for node, b := range inside {
			if b > 0 && isBelow(b, fastest, alike) {
				slow = append(slow, NodesAt([]int{node}, r.KubernetesNodes)+": "+fmt.Sprintf(words, b, fastest))
				r.FaultyNodes = append(r.FaultyNodes, node)
			}
		}
	}
	slices.Sort(slow)
	slices.Sort(r.FaultyNodes)
	r.FaultyNodes = slices.Compact(r.FaultyNodes)
	return slow
}

// slowRails compares the rails with what each should give, or with others that are as near to the GPUs.
func (r *Report) slowRails() (slow []string) {
	best := map[bool]rdma.BytesPerSecond{}
	for _, rail := range r.Rails {
		best[rail.Far] = max(best[rail.Far], rail.Bandwidth)
	}
	for _, rail := range r.Rails {
		fastest := best[rail.Far]
		switch {
		case rail.Bandwidth == 0:
			continue // there was no time to measure it
		case rail.Expected > 0 && isBelow(rail.Bandwidth, rail.Expected, enough):
			slow = append(slow, fmt.Sprintf("rail %s: %s, expected %s", rail, rail.Bandwidth, rail.Expected))
		case isBelow(rail.Bandwidth, fastest, alike):
			slow = append(slow, fmt.Sprintf("rail %s: %s, another has %s", rail, rail.Bandwidth, fastest))
		default:
			continue
		}
		r.FaultyRails = append(r.FaultyRails, rail.String())
	}
	return slow
}

// slowHosts compares RDMA between host memories, which no GPU limits, over all rails and pairs.
func (r *Report) slowHosts() (slow []string) {
	all, fastest := measured(r.Measurements, func(m Measurement) bool { return m.Operation == HostRDMA })
	for _, m := range all {
		if m.Rail < 0 || m.Rail >= len(r.Rails) || !m.Pair.Within(r.Nodes) || !isBelow(m.Bandwidth(), fastest, alike) {
			continue
		}
		rail := r.Rails[m.Rail].String()
		slow = append(slow, fmt.Sprintf("rail %s: RDMA between the memories of %s reaches %s, elsewhere %s", rail,
			NodesAt(m.Pair[:], r.KubernetesNodes), m.Bandwidth(), fastest))
		if !slices.Contains(r.FaultyRails, rail) {
			r.FaultyRails = append(r.FaultyRails, rail)
		}
	}
	return slow
}

// belowFigures compares measurements with the cluster file's figures. The best size counts.
func (r *Report) belowFigures() (slow []string) {
	best := map[string]Measurement{}
	var order []string
	for _, m := range r.Measurements {
		if r.figure(m) == 0 {
			continue
		}
		what := fmt.Sprintf("%s between %s", m.Operation, r.measured(m))
		if _, seen := best[what]; !seen {
			order = append(order, what)
		}
		if m.Bandwidth() >= best[what].Bandwidth() {
			best[what] = m
		}
	}
	for _, what := range order {
		if m := best[what]; isBelow(m.Bandwidth(), r.figure(m), enough) {
			slow = append(slow, fmt.Sprintf("%s: %s, expected %s", what, m.Bandwidth(), r.figure(m)))
		}
	}
	return slow
}

// figure returns what the cluster file expects of a measurement, 0 for nothing. HostRDMA alone has a figure without GPUs.
func (r *Report) figure(m Measurement) rdma.BytesPerSecond {
	switch {
	case m.Operation == HostRDMA:
		return r.Figures.HostRDMA
	case r.Backend == Gloo:
		return 0
	case m.Operation == HostCopy:
		return r.Figures.HostCopy
	case m.Scope == InPair:
		return r.Figures.Pair
	case m.Scope == InNode:
		return r.Figures.Inside
	}
	return 0
}

// String returns "net1 (10.0.103.0/24)".
func (r Rail) String() string {
	if r.Network == "" {
		return r.Name
	}
	return fmt.Sprintf("%s (%s)", r.Name, r.Network)
}

// NodesAt is nodes with the Kubernetes nodes that they run on, as far as these are known: "node 1 (wrk-97)".
func NodesAt(nodes []int, kubernetesNodes []string) string {
	text := humanize.Nodes(nodes)
	var where []string
	for _, node := range nodes {
		if node >= 0 && node < len(kubernetesNodes) && kubernetesNodes[node] != "" {
			where = append(where, kubernetesNodes[node])
		}
	}
	if len(where) == 0 {
		return text
	}
	return fmt.Sprintf("%s (%s)", text, strings.Join(where, ", "))
}

// Exclusion returns the param that leaves the faulty nodes out of the next run, "" if none is known, or all are faulty.
func (r *Report) Exclusion() string {
	var hosts []string
	for _, node := range r.FaultyNodes {
		if node < 0 || node >= len(r.KubernetesNodes) || r.KubernetesNodes[node] == "" {
			return ""
		}
		hosts = append(hosts, r.KubernetesNodes[node])
	}
	if len(hosts) == 0 || len(hosts) == r.Nodes {
		return ""
	}
	return "exclude-nodes=" + strings.Join(hosts, ",")
}

func isBelow(b, of rdma.BytesPerSecond, part float64) bool {
	return float64(b) < float64(of)*part
}

// Summary returns the verdict in one line.
func (r *Report) Summary() string {
	text := fmt.Sprintf("%s: %s of %s each", r.Verdict, humanize.Count(r.Nodes, "node"), humanize.Count(r.RanksPerNode, "rank"))
	if r.Transport != "" {
		text += ", " + r.Transport
	}
	if r.Bandwidth > 0 {
		text += fmt.Sprintf(", bus bandwidth %s", r.Bandwidth)
	}
	if r.Expected > 0 {
		text += fmt.Sprintf(" of %s expected", r.Expected)
	}
	if r.Latency > 0 {
		text += fmt.Sprintf(", latency %s", r.Latency.Round(100*time.Nanosecond))
	}
	if r.Quick {
		text += ", by a quick check"
	}
	return text
}
