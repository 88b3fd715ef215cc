// SPDX-License-Identifier: Apache-2.0

// Package gpu is a stand-in for NVIDIA's GPUs, which a test machine does not
// have: a device plugin as the kubelet knows it, and an nvidia-smi that prints
// what the real one prints.
package gpu

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Properties that every stand-in GPU reports.
const (
	Product       = "NVIDIA H100 80GB HBM3"
	DriverVersion = "580.82.07"
	CUDAVersion   = "13.0"
	memoryMiB     = 81559
)

// Fault is a fault of a GPU. The zero Fault is a healthy GPU.
type Fault struct {
	// Kind is "", "missing", "throttled", "ecc", "no-nvlink" or "xid".
	Kind string `json:"kind,omitempty"`
	// Xid is the error's number if Kind is "xid".
	Xid int `json:"xid,omitempty"`
}

// The kinds of Fault.
const (
	// Missing is a GPU that has fallen off the bus after the plugin counted it. The plugin still advertises it, like
	// the real plugin, but the container does not have it.
	Missing = "missing"
	// Throttled is a GPU that is too hot and runs at a fraction of its clock.
	Throttled = "throttled"
	// ECC is a GPU that has counted an uncorrected memory error and retired that memory. It is healthy.
	ECC = "ecc"
	// NoNVLink is a GPU that is connected to the other GPUs of its node only by PCIe.
	NoNVLink = "no-nvlink"
	// Xid is a GPU that has reported a critical error. The plugin reports it as unhealthy.
	Xid = "xid"
)

// GPU is one stand-in device.
type GPU struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	BusID string `json:"busID"`
	Fault Fault  `json:"fault"`
}

// NodeFault is a fault of one GPU of one node.
type NodeFault struct {
	Node  string
	Index int
	Fault Fault
}

var faultForm = regexp.MustCompile(`^(node-[1-8]):(\d+)=(missing|throttled|ecc|no-nvlink|xid-(\d+))$`)

// ParseNodeFault reads "node-1:3=missing" and the like, or "node-1:3=xid-79".
func ParseNodeFault(s string) (NodeFault, error) {
	m := faultForm.FindStringSubmatch(s)
	if m == nil {
		return NodeFault{}, fmt.Errorf("GPU fault %q is not NODE:INDEX=missing, =throttled, =ecc, =no-nvlink or =xid-NUMBER, as in "+
			"node-1:3=xid-79", s)
	}
	index, err := strconv.Atoi(m[2])
	if err != nil {
		return NodeFault{}, fmt.Errorf("GPU fault %q: the index is out of range", s)
	}
	fault := NodeFault{Node: m[1], Index: index, Fault: Fault{Kind: m[3]}}
	if m[4] != "" {
		number, err := strconv.Atoi(m[4])
		if err != nil {
			return NodeFault{}, fmt.Errorf("GPU fault %q: the Xid is out of range", s)
		}
		fault.Fault = Fault{Kind: Xid, Xid: number}
	}
	return fault, nil
}

// Inventory returns the GPUs of a node. They have the addresses of an eight-GPU HGX board, and their UUIDs are
// derived from node and index.
func Inventory(node string, count int, faults []NodeFault) []GPU {
	buses := []string{"19", "3B", "4C", "5D", "9B", "BB", "CB", "DB"}
	gpus := make([]GPU, count)
	for i := range gpus {
		number := strings.TrimPrefix(node, "node-")
		gpus[i] = GPU{
			Index: i,
			UUID:  fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", atoi(number), i),
			BusID: fmt.Sprintf("%08X:%s:00.0", i/len(buses), buses[i%len(buses)]),
		}
		for _, f := range faults {
			if f.Node == node && f.Index == i {
				gpus[i].Fault = f.Fault
			}
		}
	}
	return gpus
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// StateFile is the file's name in the folder that containers see as StateDir.
const (
	StateFile = "gpus.json"
	StateDir  = "/run/nvidia-stand-in"
)

// WriteState writes the node's GPUs to the file that the plugin and nvidia-smi read.
func WriteState(dir string, gpus []GPU) error {
	content, err := json.MarshalIndent(gpus, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(dir, StateFile)
	if old, err := os.ReadFile(path); err == nil && string(old) == string(content) {
		return nil
	}
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// ReadState reads the file of WriteState.
func ReadState(dir string) ([]GPU, error) {
	content, err := os.ReadFile(filepath.Join(dir, StateFile))
	if err != nil {
		return nil, err
	}
	var gpus []GPU
	if err := json.Unmarshal(content, &gpus); err != nil {
		return nil, fmt.Errorf("reading the GPUs of %s: %w", dir, err)
	}
	return gpus, nil
}
