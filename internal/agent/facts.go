// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// Health is the answer of GET /v1/health.
type Health struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
}

// Facts is the answer of GET /v1/facts: the node and its resources.
type Facts struct {
	Health
	// Node is the ordinal of the node in its environment.
	Node           int    `json:"node"`
	Pod            string `json:"pod"`
	KubernetesNode string `json:"kubernetesNode"`
	GPUs           []GPU  `json:"gpus"`
	// GPUsExpected is how many GPUs the node was given.
	GPUsExpected int `json:"gpusExpected"`
	// GPUProblem is the error of reading the GPUs, "" for none.
	GPUProblem string `json:"gpuProblem,omitempty"`
	CPUs       int    `json:"cpus"`
	// MemoryLimit is the container's, 0 without a limit.
	MemoryLimit Bytes `json:"memoryLimit"`
	// MemoryUsed is what the container uses now.
	MemoryUsed Bytes `json:"memoryUsed"`
	// MemoryCache is the part of MemoryUsed that the kernel frees first: contents of files that were not read for a while.
	MemoryCache Bytes `json:"memoryCache,omitempty"`
	// CPUPeriods counts the periods, mostly of 100 ms, in which the container wanted to run
	// under a limit, and CPUThrottled those in which the limit held it back. Both are 0
	// without a limit.
	CPUPeriods   int `json:"cpuPeriods,omitempty"`
	CPUThrottled int `json:"cpuThrottled,omitempty"`
	// SharedMemory is /dev/shm.
	SharedMemory Volume `json:"sharedMemory,omitzero"`
	// Workspace and Datasets describe the mounted claims.
	Workspace Volume `json:"workspace"`
	Datasets  Volume `json:"datasets"`
	// Environment is what the agent sets for every job and shell.
	Environment map[string]string `json:"environment"`
	// Network is the last one of PUT /v1/network, nil for none.
	Network *Network `json:"network,omitempty"`
	// Jobs that are not over.
	Running []string `json:"running,omitempty"`
	// Services are the requested ones; only node 0 has them.
	Services []ServiceStatus `json:"services,omitempty"`
}

// GPUFault returns what is wrong with the GPUs that the node was given, "" if all can be used.
func (f Facts) GPUFault() string {
	if f.GPUProblem != "" {
		return "they cannot be read: " + f.GPUProblem
	}
	if len(f.GPUs) < f.GPUsExpected {
		text, separator := fmt.Sprintf("%d can be used, want %d", len(f.GPUs), f.GPUsExpected), "; there are"
		for _, gpu := range f.GPUs {
			text += fmt.Sprintf("%s %d (%s)", separator, gpu.Index, gpu.UUID)
			separator = ","
		}
		return text
	}
	for _, gpu := range f.GPUs {
		if gpu.Fault != "" {
			return fmt.Sprintf("GPU %d (%s): %s", gpu.Index, gpu.UUID, gpu.Fault)
		}
	}
	return ""
}

// LostDevices reports whether the container may not use its GPUs any more because its device rights were rewritten, as by systemctl
// daemon-reload (nvidia-container-toolkit#48). A new pod on the same node cures it.
func (f Facts) LostDevices() bool {
	return strings.Contains(f.GPUProblem, "Failed to initialize NVML: Unknown Error")
}

// Volume is a mounted claim as a node sees it.
type Volume struct {
	// ID is the same on all nodes that share the volume, "" if it cannot be written.
	ID string `json:"id,omitempty"`
	// Problem is the reason for an empty ID.
	Problem string `json:"problem,omitempty"`
	Size    Bytes  `json:"size"`
	Free    Bytes  `json:"free"`
}

// GPU is one that the container was given, or a MIG device of one.
type GPU struct {
	// Index is the number that nvidia-smi prints, which counts all GPUs that the container sees.
	Index int `json:"index"`
	// UUID is the UUID that nvidia-smi prints.
	UUID string `json:"uuid"`
	// PCI is the address as sysfs has it, empty if it is unknown.
	PCI string `json:"pci,omitempty"`
	// Model is the name of the model.
	Model string `json:"model"`
	// Driver is the version of the driver.
	Driver string `json:"driver"`
	// Compute is CUDA's compute capability, such as 9.0; an older driver does not show it.
	Compute string `json:"compute,omitempty"`
	// Memory is the size of its memory in bytes.
	Memory Bytes `json:"memory"`
	// MemoryUsed is how much of the memory is used, in bytes.
	MemoryUsed Bytes `json:"memoryUsed"`
	// Utilization is how busy it is, in percent of time, 0 to 100.
	Utilization int `json:"utilization"`
	// Unmeasured is true if nvidia-smi does not report the utilization, as of MIG devices; then `utilization` is 0.
	Unmeasured bool `json:"unmeasured,omitempty"`
	// Temperature is in degrees Celsius.
	Temperature int `json:"temperature"`
	// Throttled are the active slowdown reasons that are not idling or a set limit.
	Throttled []string `json:"throttled,omitempty"`
	// Fault describes a fault of the GPU by its consequences. The number of an Xid is only in the kernel's log, which no container may
	// read.
	Fault string `json:"fault,omitempty"`
}

// Resolution is the answer of POST /v1/resolve: what each name resolves to on
// the node, or why it does not.
type Resolution struct {
	Addresses map[string][]string `json:"addresses"`
	Problems  map[string]string   `json:"problems,omitempty"`
}

// Facts returns what the node is and has.
func (c *Client) Facts(ctx context.Context) (Facts, error) {
	f, err := requestJSON[Facts](ctx, c, http.MethodGet, "/v1/facts", nil)
	f.Confine(c.node)
	return f, cmp.Or(err, c.sameProtocol(f.Health))
}

// RDMA returns the RDMA devices of the node and their state. expected is the cluster file's.
func (c *Client) RDMA(ctx context.Context, expected rdma.Expected) (rdma.Facts, error) {
	return requestJSON[rdma.Facts](ctx, c, http.MethodPost, "/v1/rdma", expected)
}

// Workspace returns the workspace's volume alone, which costs less than Facts.
func (c *Client) Workspace(ctx context.Context) (Volume, error) {
	return requestJSON[Volume](ctx, c, http.MethodGet, "/v1/workspace", nil)
}

// Resolve returns what names resolve to on the node.
func (c *Client) Resolve(ctx context.Context, names []string) (Resolution, error) {
	return requestJSON[Resolution](ctx, c, http.MethodPost, "/v1/resolve", names)
}
