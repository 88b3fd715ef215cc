// Package nccl reads what NCCL says of itself: from the log of a training it tells
// over which network each rank really talks, and what went wrong.
//
// The forms are those of NCCL 2.16 to 2.32, taken from the format strings in
// libnccl.so of ten versions of the package nvidia-nccl-cu12 (testdata/README.md names them;
// "since" is the first of these that has a form), and read in NVIDIA/nccl
// (src/debug.cc, init.cc, bootstrap.cc, misc/socket.cc, misc/ibvwrap.cc, graph/topo.cc,
// transport/{net,p2p,shm,coll_net,net_socket}.cc, transport/net_ib.cc and net_ib/*.cc).
// The log is to be had with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET.
package nccl

import "strings"

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
)

// Words is the transport as people call it.
func (t Transport) Words() string {
	switch t {
	case WithinNode:
		return "within the node only"
	case Sockets:
		return "TCP sockets"
	case RDMAHost:
		return "RDMA through host memory"
	case RDMAGPU:
		return "RDMA with GPUDirect"
	}
	return "unknown"
}

// slowness orders transports: the overall one of several is the slowest, and one that is not
// known hides all but sockets.
func (t Transport) slowness() int {
	switch t {
	case WithinNode:
		return 1
	case RDMAGPU:
		return 2
	case RDMAHost:
		return 3
	case Unknown:
		return 4
	case Sockets:
		return 5
	}
	return 0
}

// slower is the slower of two transports; that of none, "", is the other.
func slower(a, b Transport) Transport {
	if b.slowness() > a.slowness() {
		return b
	}
	return a
}

// isRDMA is true of the networks that drive RDMA devices: NCCL's own IB, HPC-X's plugin in
// its two forms (IBext, IBext_v6 and on; UCX), and its SHARP.
func isRDMA(network string) bool {
	return strings.HasPrefix(network, "IB") || strings.HasPrefix(network, "UCX") || network == "SHARP"
}

// overNetwork is the transport of a channel. With other networks "/GDRDMA" says only that a
// plugin takes the GPU's memory: there are some that send it over TCP.
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

// socketNetwork is NCCL's name of its sockets.
const socketNetwork = "Socket"
