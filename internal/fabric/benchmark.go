// Package fabric measures the network between the nodes of an environment by
// collectives, and judges what was measured. It only describes: internal/steps/checkfabric
// runs it.
package fabric

import (
	_ "embed"
	"encoding/json"
	"fmt"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// Benchmark is the Python program that measures. Each node runs it once as
// `python3 -c Benchmark INPUT`; it needs nothing but torch.
//
//go:embed benchmark.py
var Benchmark string

// Backend is what torch.distributed talks by.
type Backend string

// The backends.
const (
	// NCCL is for GPUs.
	NCCL Backend = "nccl"
	// Gloo is for nodes without.
	Gloo Backend = "gloo"
)

// Input is what the benchmark is told on one node.
type Input struct {
	// Node is the node's place among the Nodes that take part, from 0: not its ordinal.
	Node         int     `json:"node"`
	Nodes        int     `json:"nodes"`
	RanksPerNode int     `json:"ranksPerNode"`
	Backend      Backend `json:"backend"`
	// FirstDevice is the GPU of the node's first rank.
	FirstDevice int `json:"firstDevice"`
	// Master and Port are where the ranks meet: on the first node that takes part.
	Master string `json:"master"`
	Port   int    `json:"port"`
	// Seconds after which nothing more is begun, from the program's start.
	Seconds float64 `json:"seconds"`
	// Sizes of all_reduce, ascending. Others are measured with the last ones. WithoutGPU
	// is the largest where torch sees no GPU, and falls back to gloo.
	Sizes      []agent.Bytes `json:"sizes"`
	WithoutGPU agent.Bytes   `json:"withoutGPU"`
	// Pairs are rounds of pairs of nodes, those of a round at once; PairBytes go each way.
	Pairs     [][]Pair    `json:"pairs,omitempty"`
	PairBytes agent.Bytes `json:"pairBytes,omitempty"`
	// Rails are the node's interfaces to be measured one by one, in one order on all
	// nodes, by gloo, which alone can change them within one process.
	Rails []string `json:"rails,omitempty"`
	// Others adds all_gather, reduce_scatter and broadcast, Inside the ranks of each node.
	Others bool `json:"others,omitempty"`
	Inside bool `json:"inside,omitempty"`
}

// Arguments of python3.
func (i Input) Arguments() ([]string, error) {
	input, err := json.Marshal(i)
	if err != nil {
		return nil, fmt.Errorf("encoding the input of the benchmark: %w", err)
	}
	return []string{"-u", "-c", Benchmark, string(input)}, nil
}

// The sizes. Below a kilobyte an operation's time is its latency; the largest are what
// rings need to fill four 400 Gb/s rails.
var (
	gpuSizes = []agent.Bytes{8, 1 << 10, 32 << 10, 1 << 20, 16 << 20, 128 << 20, 512 << 20, 1 << 30}
	cpuSizes = []agent.Bytes{8, 1 << 10, 32 << 10, 1 << 20, 8 << 20}
)

// LargestWithoutGPU is the largest of gloo's sizes.
func LargestWithoutGPU() agent.Bytes { return cpuSizes[len(cpuSizes)-1] }

// Sizes that are measured with a backend, and that of pairs.
func Sizes(backend Backend) (sizes []agent.Bytes, pair agent.Bytes) {
	if backend == NCCL {
		return gpuSizes, 128 << 20
	}
	return cpuSizes, 4 << 20
}

// Event is how far a node has got.
type Event string

// The events, in their order.
const (
	// WithoutGPU: torch sees no GPU, so gloo takes the place of NCCL.
	WithoutGPU Event = "without-gpu"
	// Ready: torch is imported and the device chosen.
	Ready Event = "ready"
	// Joined: the node has taken part in a first collective.
	Joined Event = "joined"
	// OnRail: a rail's turn begins.
	OnRail Event = "rail"
	// Done: all is measured.
	Done Event = "done"
)

// Line is one line that the benchmark prints: an event, or else a measurement.
type Line struct {
	Event Event `json:"event,omitempty"`
	// Torch is the version, of Ready.
	Torch string `json:"torch,omitempty"`
	Measurement
}

// prefix begins the benchmark's lines; others are somebody else's.
const prefix = `{"fabric": 1, `

// ParseLine reads a line of a rank's output. It is false for a line that is not the benchmark's.
func ParseLine(text []byte) (line Line, ok bool) {
	if len(text) < len(prefix) || string(text[:len(prefix)]) != prefix {
		return Line{}, false
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return Line{}, false
	}
	return line, true
}
