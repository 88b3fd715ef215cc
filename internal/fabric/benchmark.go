// SPDX-License-Identifier: Apache-2.0

// Package fabric describes how the network between the nodes of an environment is measured by
// collectives, and judges the measurements. internal/steps/checkfabric runs it.
package fabric

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// Benchmark is the Python program that measures. Each node runs it once as
// `python3 -c Benchmark INPUT`; it needs only torch.
//
//go:embed benchmark.py
var Benchmark string

// Backend is the backend of torch.distributed.
type Backend string

const (
	// NCCL is for GPUs.
	NCCL Backend = "nccl"
	// Gloo is for nodes without GPUs.
	Gloo Backend = "gloo"
)

// Input is the benchmark's input on one node.
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
	// Seconds after which no measurement begins, from the program's start.
	Seconds float64 `json:"seconds"`
	// Share is how many seconds each measurement takes if so many are left; 0 divides those that there are.
	Share float64 `json:"share,omitempty"`
	// Sizes of all_reduce, ascending. Other operations use the last ones. WithoutGPU
	// is the largest one if torch sees no GPU and falls back to gloo.
	Sizes      []agent.Bytes `json:"sizes"`
	WithoutGPU agent.Bytes   `json:"withoutGPU"`
	// Pairs has rounds of pairs of nodes. All pairs of a round are measured at once; PairBytes go each way.
	Pairs     [][]Pair    `json:"pairs,omitempty"`
	PairBytes agent.Bytes `json:"pairBytes,omitempty"`
	// Rails are the node's interfaces to be measured one by one, in the same order on all
	// nodes. Only gloo can change them within one process.
	Rails []string `json:"rails,omitempty"`
	// Others adds all_gather, reduce_scatter and broadcast, Inside the ranks of each node and copies to its GPUs.
	Others bool `json:"others,omitempty"`
	Inside bool `json:"inside,omitempty"`
	// Devices is for how many seconds each rank's device computes and copies; 0 leaves that out.
	Devices float64 `json:"devices,omitempty"`
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
// rings need to fill four 400 Gb/s rails. Sockets are as fast as they get with much less, and a network of
// 1 Gb/s needs seconds for each all_reduce of a gigabyte.
var (
	gpuSizes    = []agent.Bytes{8, 1 << 10, 32 << 10, 1 << 20, 16 << 20, 128 << 20, 512 << 20, 1 << 30}
	socketSizes = []agent.Bytes{8, 1 << 10, 32 << 10, 1 << 20, 16 << 20, 64 << 20}
	cpuSizes    = []agent.Bytes{8, 1 << 10, 32 << 10, 1 << 20, 8 << 20}
)

// LargestWithoutGPU returns the largest of gloo's sizes.
func LargestWithoutGPU() agent.Bytes { return cpuSizes[len(cpuSizes)-1] }

// MessageSizes returns the sizes in bytes to measure with a backend, and the size for pairs. sockets is true if NCCL uses TCP between
// nodes.
func MessageSizes(backend Backend, sockets bool) (sizes []agent.Bytes, pair agent.Bytes) {
	switch {
	case backend != NCCL:
		return cpuSizes, 4 << 20
	case sockets:
		return socketSizes, 16 << 20
	}
	return gpuSizes, 128 << 20
}

// Event is the progress of a node.
type Event string

// The events, in their order.
const (
	// WithoutGPU: torch sees no GPU, so gloo takes the place of NCCL.
	WithoutGPU Event = "without-gpu"
	// Ready: torch is imported and the device chosen.
	Ready Event = "ready"
	// Joined: the node has taken part in a first collective.
	Joined Event = "joined"
	// Beat: the node has ended an iteration; there is one in half a second at most.
	Beat Event = "beat"
	// OnRail: the node begins to measure a rail.
	OnRail Event = "rail"
	// OfDevice: the rate of a rank's device. Each rank prints its own.
	OfDevice Event = "device"
	// Done: all is measured.
	Done Event = "done"
)

// Line is one line that the benchmark prints: an event, or else a measurement.
type Line struct {
	Event Event `json:"event,omitempty"`
	// Device has the rates of OfDevice, and no node.
	Device Device `json:"device,omitzero"`
	Measurement
}

const prefix = `{"fabric": 1, `

// ParseLine reads a line of a rank's output. It is false for a line that is not the benchmark's, or has
// values that the benchmark cannot print: the image's programs write to the same log.
func ParseLine(text []byte) (line Line, ok bool) {
	if !bytes.HasPrefix(text, []byte(prefix)) || json.Unmarshal(text, &line) != nil {
		return Line{}, false
	}
	switch line.Event {
	case "":
		return line, line.valid()
	case OfDevice:
		return line, line.Device.valid()
	}
	return line, slices.Contains([]Event{WithoutGPU, Ready, Joined, Beat, OnRail, Done}, line.Event)
}
