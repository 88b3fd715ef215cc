// SPDX-License-Identifier: Apache-2.0

// Package nccl reads the log that NCCL writes during a training: the network that each rank really uses, and what went wrong. It also sets
// NCCL's fixed variables.
//
// It knows the forms of NCCL 2.16 to 2.32, taken from the format strings in libnccl.so of ten versions of nvidia-nccl-cu12
// (testdata/README.md names them; "since" is the first of these that has a form), and read in the files of NVIDIA/nccl's src that comments
// name. NCCL writes the log with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET.
package nccl

import (
	"cmp"
	"slices"
	"strings"
)

// Transport is how ranks reach each other.
type Transport string

// The transports.
const (
	// Unknown: the log does not show it, or the network is one of a plugin that this package does not know.
	Unknown Transport = "unknown"
	// WithinNode: NVLink, PCIe or shared memory; no network.
	WithinNode Transport = "within-node"
	// Sockets: TCP through the kernel.
	Sockets Transport = "sockets"
	// RDMAHost: RDMA, but each message is copied through the memory of the host.
	RDMAHost Transport = "rdma-host-memory"
	// RDMAGPU: RDMA between the memories of the GPUs (GPUDirect RDMA).
	RDMAGPU Transport = "rdma-gpudirect"
	// MultiNodeNVLink: NVLink between the GPUs of several nodes.
	MultiNodeNVLink Transport = "nvlink-between-nodes"
)

// DisplayName returns the transport's usual name.
func (t Transport) DisplayName() string {
	words := map[Transport]string{WithinNode: "within the node only", Sockets: "TCP sockets", RDMAHost: "RDMA through host memory",
		RDMAGPU: "RDMA with GPUDirect", MultiNodeNVLink: "NVLink between nodes"}
	return cmp.Or(words[t], "unknown")
}

// bySpeed are the transports, the fastest first. An unknown one hides the others except sockets.
var bySpeed = []Transport{WithinNode, MultiNodeNVLink, RDMAGPU, RDMAHost, Unknown, Sockets}

// slower returns the slower of two transports. An empty one is faster than all others.
func slower(a, b Transport) Transport {
	if slices.Index(bySpeed, b) > slices.Index(bySpeed, a) {
		return b
	}
	return a
}

// isRDMA reports whether a network drives RDMA devices: NCCL's own IB, HPC-X's plugin in its forms (IBext, IBext_v6 and on; UCX; SPCX, for
// Spectrum-X), and its SHARP.
func isRDMA(network string) bool {
	return strings.HasPrefix(network, "IB") || strings.HasPrefix(network, "UCX") || strings.HasPrefix(network, "SPCX") || network == "SHARP"
}

// overNetwork returns the transport of a channel. With other networks "/GDRDMA" shows only that a
// plugin reads the GPU's memory: some plugins send it over TCP.
func overNetwork(network string, gpuDirect bool) Transport {
	switch {
	case network == socketNetwork:
		return Sockets
	case isRDMA(network) && gpuDirect:
		return RDMAGPU
	case isRDMA(network):
		return RDMAHost
	}
	return Unknown
}

const socketNetwork = "Socket"
