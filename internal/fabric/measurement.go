// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// Operation is a collective, by torch's name.
type Operation string

// The operations.
const (
	AllReduce     Operation = "all_reduce"
	AllGather     Operation = "all_gather"
	ReduceScatter Operation = "reduce_scatter"
	Broadcast     Operation = "broadcast"
	// SendRecv sends and receives at once between each two ranks of a pair of nodes.
	SendRecv Operation = "send_recv"
	// HostCopy copies from the host's memory to the GPU, on all GPUs of a node at once; the slowest counts.
	HostCopy Operation = "host_copy"
	// HostRDMA writes from the memory of Pair's first node into the second node's memory, over Rail, by perftest's ib_write_bw.
	HostRDMA Operation = "host_rdma"
)

// Scope is the set of ranks that take part.
type Scope string

// The scopes.
const (
	// World: all of them.
	World Scope = "world"
	// InNode: the ranks of Node.
	InNode Scope = "node"
	// InPair: the ranks of Pair.
	InPair Scope = "pair"
	// ByRail: all ranks, or the ranks of Pair, over Rail alone.
	ByRail Scope = "rail"
)

// Measurement is an operation on one size.
type Measurement struct {
	Operation Operation `json:"operation,omitempty"`
	Scope     Scope     `json:"scope,omitempty"`
	Node      int       `json:"node,omitempty"`
	Pair      Pair      `json:"pair,omitzero"`
	Rail      int       `json:"rail,omitempty"`
	// Bytes are counted as nccl-tests does: of all_gather and reduce_scatter the whole buffer.
	Bytes agent.Bytes `json:"bytes,omitempty"`
	Ranks int         `json:"ranks,omitempty"`
	// Time is the median of the iterations, in nanoseconds. The time of an iteration is its slowest rank's.
	Time       time.Duration `json:"time,omitempty"`
	Iterations int           `json:"iterations,omitempty"`
}

// maxBandwidth is more than any network has, and less than the largest BytesPerSecond.
const maxBandwidth = 1e15

// valid returns false for values that no benchmark can measure.
func (m Measurement) valid() bool {
	return slices.Contains([]Operation{AllReduce, AllGather, ReduceScatter, Broadcast, SendRecv, HostCopy}, m.Operation) &&
		slices.Contains([]Scope{World, InNode, InPair, ByRail}, m.Scope) && m.Node >= 0 && m.Rail >= 0 &&
		m.Bytes >= 0 && m.Ranks > 0 && m.Time > 0
}

// Bandwidth returns the bus bandwidth: bytes by time, times a factor that makes it comparable with the hardware's, whatever
// the operation and the number of ranks (NVIDIA/nccl-tests:doc/PERFORMANCE.md). For a pair it is what each node sends,
// all its ranks together. It is 0 for a measurement without time or ranks.
func (m Measurement) Bandwidth() rdma.BytesPerSecond {
	if m.Time <= 0 || m.Ranks < 1 || m.Bytes < 0 {
		return 0
	}
	n := float64(m.Ranks)
	factor := 1.0
	switch m.Operation {
	case AllReduce:
		factor = 2 * (n - 1) / n
	case AllGather, ReduceScatter:
		factor = (n - 1) / n
	case SendRecv:
		factor = n / 2
	}
	return rdma.BytesPerSecond(min(float64(m.Bytes)/m.Time.Seconds()*factor, maxBandwidth))
}

// BandwidthRange returns the lowest and the highest bandwidth of an operation, 0 without a measurement.
func BandwidthRange(all []Measurement, operation Operation) (lowest, highest rdma.BytesPerSecond) {
	for _, m := range all {
		if b := m.Bandwidth(); m.Operation == operation && b > 0 {
			highest = max(highest, b)
			if lowest == 0 || b < lowest {
				lowest = b
			}
		}
	}
	return lowest, highest
}

// latency returns the time of the fastest all_reduce over all ranks, 0 for none.
func latency(all []Measurement) (least time.Duration) {
	for _, m := range all {
		if m.Operation == AllReduce && m.Scope == World && m.Time > 0 && (least == 0 || m.Time < least) {
			least = m.Time
		}
	}
	return least
}

// measured returns the measurements that match, and the highest bandwidth of them, 0 for none.
func measured(all []Measurement, match func(Measurement) bool) (found []Measurement, highest rdma.BytesPerSecond) {
	for _, m := range all {
		if match(m) {
			found = append(found, m)
			highest = max(highest, m.Bandwidth())
		}
	}
	return found, highest
}
