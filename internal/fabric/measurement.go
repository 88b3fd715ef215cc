package fabric

import (
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
)

// Scope is which ranks take part.
type Scope string

// The scopes.
const (
	// World: all of them.
	World Scope = "world"
	// InNode: those of Node.
	InNode Scope = "node"
	// InPair: those of Pair.
	InPair Scope = "pair"
	// ByRail: all of them, over Rail alone.
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
	// Time is the median of the iterations, in nanoseconds; that of each is its slowest rank's.
	Time       time.Duration `json:"time,omitempty"`
	Iterations int           `json:"iterations,omitempty"`
}

// Bandwidth is the bus bandwidth: that of the algorithm, bytes by time, times what makes
// it comparable with the hardware's whatever the operation and the number of ranks
// (NVIDIA/nccl-tests:doc/PERFORMANCE.md). Of a pair it is what each node sends, all its ranks together.
func (m Measurement) Bandwidth() rdma.BytesPerSecond {
	if m.Time <= 0 || m.Ranks < 1 {
		return 0
	}
	n := float64(m.Ranks)
	factor := 1.0
	switch m.Operation {
	case AllReduce:
		factor = 2 * (n - 1) / n
	case AllGather, ReduceScatter:
		factor = (n - 1) / n
	case Broadcast:
	case SendRecv:
		factor = n / 2
	}
	return rdma.BytesPerSecond(float64(m.Bytes) / m.Time.Seconds() * factor)
}

// Best is the highest bus bandwidth of all_reduce over all ranks, 0 for none.
func Best(all []Measurement) rdma.BytesPerSecond { return best(all, AllReduce, World, nil) }

// best is the highest bandwidth of an operation in a scope that match takes, 0 for none.
func best(all []Measurement, operation Operation, scope Scope, match func(Measurement) bool) rdma.BytesPerSecond {
	var highest rdma.BytesPerSecond
	for _, m := range all {
		if m.Operation == operation && m.Scope == scope && (match == nil || match(m)) {
			highest = max(highest, m.Bandwidth())
		}
	}
	return highest
}
