// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"strings"
)

// GPUDirect describes how a NIC can reach a GPU's memory without a copy in the host's.
type GPUDirect struct {
	// Peermem is true if the nvidia_peermem module is loaded.
	Peermem bool `json:"peermem"`
	// DMABUF is yes if the kernel and the GPU's driver can share buffers.
	DMABUF Answer `json:"dmabuf"`
	// Why is the reason for DMABUF.
	Why string `json:"why,omitempty"`
}

// Answer is yes, no or unknown.
type Answer string

// The answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
)

// Describe returns "nvidia_peermem", "DMA-BUF", both, "none" or "unknown".
func (g GPUDirect) Describe() string {
	switch {
	case g.Peermem && g.DMABUF == Yes:
		return "nvidia_peermem and DMA-BUF"
	case g.Peermem:
		return "nvidia_peermem"
	case g.DMABUF == Yes:
		return "DMA-BUF"
	case g.DMABUF == No:
		return "none"
	}
	return "unknown"
}

// String returns the way with its reason.
func (g GPUDirect) String() string {
	if g.Peermem {
		return fmt.Sprintf("%s (DMA-BUF %s: %s)", g.Describe(), g.DMABUF, g.Why)
	}
	return fmt.Sprintf("%s (nvidia_peermem is not loaded; DMA-BUF %s: %s)", g.Describe(), g.DMABUF, g.Why)
}

// peermemVersions are where NCCL looks for the module (NVIDIA/nccl:src/transport/net_ib.cc, ncclIbGdrSupport).
var peermemVersions = [...]string{"sys/module/nvidia_peermem/version", "sys/kernel/mm/memory_peers/nv_mem/version",
	"sys/kernel/mm/memory_peers/nv_mem_nc/version"}

// gpuDirect looks for the module and for what DMA-BUF needs: Linux 5.12, since which verbs can register such buffers,
// and the open kernel modules of NVIDIA's driver (its README, "Open Linux Kernel Modules": DMABUF support for CUDA
// allocations), whose version names them so. Vendors backport such features, so an older kernel is unknown.
func (d *detector) gpuDirect() GPUDirect {
	var g GPUDirect
	for _, name := range peermemVersions {
		g.Peermem = g.Peermem || d.exists(name)
	}
	g.DMABUF = Unknown
	driver, _, _ := strings.Cut(d.readText("proc/driver/nvidia/version"), "\n")
	release := d.readText("proc/sys/kernel/osrelease")
	var major, minor int
	_, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	switch {
	case driver == "":
		g.Why = "/proc/driver/nvidia/version is missing"
	case !strings.Contains(driver, "Open Kernel Module"):
		g.DMABUF, g.Why = No, "the GPU driver's kernel modules are not the open ones"
	case err != nil || major < 5 || major == 5 && minor < 12:
		g.Why = fmt.Sprintf("the kernel is %q, want 5.12 or later, or a vendor's kernel with a backport", release)
	default:
		g.DMABUF, g.Why = Yes, "open kernel modules, Linux "+release
	}
	return g
}
