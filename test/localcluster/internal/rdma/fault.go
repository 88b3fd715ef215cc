// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Fault is a fault of a NIC: one of the kinds below, or a rate such as "rate-100". "" is no fault.
type Fault string

// The kinds of Fault.
const (
	// Down is a NIC without a link: its port is DOWN, and its interfaces carry no traffic.
	Down Fault = "down"
	// SlowPCIe is a NIC that runs at PCIe 4.0, below its maximum.
	SlowPCIe Fault = "pcie-4"
	// NoInfo makes the device plugin set no PCIDEVICE_..._INFO, like old plugins.
	NoInfo Fault = "no-info"
	// EmptyInfo makes the device plugin report rdma: {}, as after its restart in exclusive mode.
	EmptyInfo Fault = "empty-info"
)

// rate returns the rate of the link in Gb/s. The fault does not slow down the interface.
func (f Fault) rate() string {
	if rate, ok := strings.CutPrefix(string(f), "rate-"); ok {
		return rate
	}
	return "400"
}

// NodeFault is a fault of one NIC of one node.
type NodeFault struct {
	Node, NIC string
	Fault     Fault
}

var faultForm = regexp.MustCompile(`^(node-[1-8]):([a-z0-9]+)=(down|pcie-4|no-info|empty-info|rate-(?:10|25|40|50|100|200))$`)

// ParseNodeFault reads "node-1:eno6np0=down", "=rate-100", "=pcie-4", "=no-info" or "=empty-info".
func ParseNodeFault(s string) (NodeFault, error) {
	m := faultForm.FindStringSubmatch(s)
	if m == nil || !slices.ContainsFunc(NICs, func(n NIC) bool { return n.Name == m[2] }) {
		return NodeFault{},
			fmt.Errorf("RDMA fault %q is not NODE:NIC=down, =rate-GBPS, =pcie-4, =no-info or =empty-info, as in node-1:eno6np0=rate-100", s)
	}
	return NodeFault{Node: m[1], NIC: m[2], Fault: Fault(m[3])}, nil
}

// Faults are the faults of a node, by the NIC's name.
type Faults map[string]Fault

// FaultsOf returns the faults of the node.
func FaultsOf(node string, all []NodeFault) Faults {
	faults := Faults{}
	for _, f := range all {
		if f.Node == node {
			faults[f.NIC] = f.Fault
		}
	}
	return faults
}

// StateFile is the file's name in the folder of the node's devices.
const StateFile = "state.json"

// State is the information about a node's NICs that the node's programs share.
type State struct {
	Layout Layout
	Faults Faults
}

// WriteState writes the state to the file that the node's device plugins read.
func WriteState(dir string, state State) error {
	content, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return replace(filepath.Join(dir, StateFile), string(content))
}

// ReadState reads the file of WriteState.
func ReadState(dir string) (State, error) {
	var state State
	content, err := os.ReadFile(filepath.Join(dir, StateFile))
	if err != nil {
		return state, err
	}
	if err := json.Unmarshal(content, &state); err != nil {
		return state, fmt.Errorf("reading the RDMA state of %s: %w", dir, err)
	}
	return state, nil
}

// replace atomically replaces the content of the file, unless it already has that content.
func replace(path, content string) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == content {
		return nil
	}
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
