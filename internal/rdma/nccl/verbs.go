// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"net/netip"
	"regexp"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// verbsCall: "Call to ibv_reg_mr failed with error Cannot allocate memory", "Call to ibv_modify_qp
// failed with error Invalid argument errno 22", since 2.26 "Call to ibv_modify_qp failed with 22
// Invalid argument, on dev mlx5_6:1, curr state INIT, ..." (misc/ibvwrap.cc, misc/mlx5dvwrap.cc).
var verbsCall = regexp.MustCompile(`Call to ((?:ibv|mlx5dv)_\w+) failed(?: with (?:error )?(?:\d+ )?([^,]+?)(?: errno \d+)?(?:,|$))?`)

// nameOfVerbs recognizes failed calls to libibverbs by the call and the C library's words for its error.
func nameOfVerbs(text string, warning bool) fail.Reason {
	m := verbsCall.FindStringSubmatch(text)
	if !warning || m == nil {
		return ""
	}
	switch call, failure := m[1], m[2]; {
	case strings.Contains(call, "_reg_dmabuf_"):
		return DMABUFRefused // the kernel counts no pages of such a buffer
	// The kernel counts locked pages against the limit (linux:drivers/infiniband/core/umem.c);
	// mlx5 locks a queue's memory in the same way.
	case failure == "Cannot allocate memory":
		return MemoryLockLimit
	case strings.Contains(call, "_reg_"):
		return GPUMemoryRefused
	case call == "ibv_query_gid":
		return GIDUnusable
	case call == "ibv_open_device", call == "ibv_get_device_list":
		return DeviceUnavailable
	case call == "ibv_modify_qp":
		// It connects two ports' queues. For RoCE the kernel looks up the route and the neighbour of the peer's address then
		// (linux:drivers/infiniband/core/addr.c).
		switch failure {
		case "Connection timed out", "Network is unreachable", "No route to host", "Host is unreachable":
			return RailUnreachable
		case "Invalid argument", "No data available", "No such device", "Cannot assign requested address":
			return GIDUnusable
		}
	}
	return VerbsFailed
}

// completion: "Got completion from peer 10.0.103.7<49892> with status=12 opcode=0 len=0 vendor err 129
// (Recv) ...", until 2.18 "with error 12, opcode ...", since 2.28 and in HPC-X "with
// status=IBV_WC_RETRY_EXC_ERR(12)" (net_ib.cc; net_ib/p2p.cc).
var completion = regexp.MustCompile(`Got completion from peer .*?(?:status=|error )(?:IBV_WC_\w+\()?(\d+)`)

// statusNames are what values of libibverbs' enum ibv_wc_status mean here.
var statusNames = map[int]fail.Reason{
	4:  DMARefused,       // IBV_WC_LOC_PROT_ERR
	5:  TransferFlushed,  // IBV_WC_WR_FLUSH_ERR
	10: PeerDMARefused,   // IBV_WC_REM_ACCESS_ERR
	11: PeerDMARefused,   // IBV_WC_REM_OP_ERR
	12: RetryExceeded,    // IBV_WC_RETRY_EXC_ERR
	13: ReceiverNotReady, // IBV_WC_RNR_RETRY_EXC_ERR
}

// nameOfCompletion recognizes transfers that failed by their completion status.
func nameOfCompletion(text string, warning bool) fail.Reason {
	m := completion.FindStringSubmatch(text)
	if !warning || m == nil {
		return ""
	}
	name, known := statusNames[number(m[1])]
	switch {
	case !known:
		return TransferFailed
	case name == RetryExceeded && crossesSubnets(text):
		return RailsCrossed
	}
	return name
}

// gids are both ends' addresses, "localGid ::ffff:10.0.103.7 remoteGids::ffff:10.0.104.9": NCCL leaves out the space.
var gids = regexp.MustCompile(`localGid ([0-9a-f:.]+) remoteGids? ?([0-9a-f:.]+)`)

// crossesSubnets reports whether both ends have IPv4 addresses of different /24 networks, as rails mostly are.
func crossesSubnets(text string) bool {
	m := gids.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	local, err := netip.ParseAddr(m[1])
	remote, err2 := netip.ParseAddr(m[2])
	if err != nil || err2 != nil || !local.Is4In6() || !remote.Is4In6() {
		return false
	}
	return !netip.PrefixFrom(local.Unmap(), 24).Contains(remote.Unmap())
}

// asyncEvent: "NET/IB : mlx5_6:1 Got async error event: port error" (2.23 to 2.27), "... Got non-fatal async
// event: port error(10)" (2.28 and on), "NET/IB : mlx5_6:1 async fatal event on QP (0x...): ..." (2.23 and
// on), "NET/IB : Got async event : port error" (until 2.18, to 2.21 with the device), "NET/IB : mlx5_6:1 GID table changed". The
// event's words are libibverbs' (libibverbs/enum_strs.c).
var asyncEvent = regexp.MustCompile(
	`^NET/IB : (?:([^\s:]+):\d+ )?(?:Got (?:non-fatal )?async (?:error )?event ?: |async (fatal) event|GID (table changed))(.*)`)

// nameOfEvent recognizes what a device reports by itself. Ports that come back, and news of
// the subnet's manager, are no failure.
func nameOfEvent(text string, warning bool) fail.Reason {
	m := asyncEvent.FindStringSubmatch(text)
	switch {
	case m == nil:
		return ""
	case m[3] != "", strings.HasPrefix(m[4], "GID table change"):
		return GIDChanged
	case strings.HasPrefix(m[4], "port error"):
		return PortDown
	case strings.Contains(m[4], "access violation"):
		return PeerDMARefused
	case warning && (m[2] != "" || strings.Contains(m[4], "catastrophic") || strings.HasPrefix(m[4], "CQ error")):
		return DeviceFatal
	}
	return ""
}
