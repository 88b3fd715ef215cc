package nccl

import (
	"regexp"
	"strconv"
	"strings"
)

// None stands for a device that is not known, and for the missing one of a channel within a node.
const None = -1

// channel is one end of a channel between two ranks of a communicator.
type channel struct {
	// rank is the one whose process printed the line.
	rank int
	Route
}

var (
	// channelLine: "Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0(7)/GDRDMA(PCI)/Shared". The numbers in brackets are
	// GPUs, in 2.16 by their PCI address. SHM has no connection's number (transport/net.cc, p2p.cc, shm.cc).
	channelLine = regexp.MustCompile(`^Channel \d+(?:/\d+)? : (\d+)\[[0-9a-fA-F]+\] -> (\d+)\[[0-9a-fA-F]+\] (?:\[(send|receive)\] )?via (.+)$`)
	// collNetLine: "CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA" (transport/coll_net.cc), to a switch that reduces.
	collNetLine = regexp.MustCompile(`^CollNet \d+/\d+ : (\d+) \[(?:send|receive)\] via (.+)$`)
	// netDevice is "0", or "0(7)" if rank 7 of the same node sends in this one's place.
	netDevice = regexp.MustCompile(`^(\d+)(?:\(\d+\))?$`)
	// netSuffix is what may follow the device, "flush=..." since 2.32. Anything else is a line that
	// was cut, and "/GDR" instead of "/GDRDMA" would be a wrong verdict.
	netSuffix = regexp.MustCompile(`^(?:GDRDMA(?:\(PCI\))?|Shared|flush=\w+)$`)
)

// parseChannel reads a channel's line. ok is false for other lines and for a line that was cut.
func parseChannel(text string) (c channel, ok bool) {
	if m := channelLine.FindStringSubmatch(text); m != nil {
		rank := m[1]
		if m[3] == "receive" {
			rank = m[2]
		}
		return parseRoute(number(rank), m[4])
	}
	if m := collNetLine.FindStringSubmatch(text); m != nil {
		return parseRoute(number(m[1]), m[2])
	}
	return channel{}, false
}

// parseRoute reads how a channel reaches its peer: "P2P/CUMEM/read", "NET/IB/0/GDRDMA/Shared".
func parseRoute(rank int, via string) (channel, bool) {
	parts := strings.Split(via, "/")
	switch parts[0] {
	case "P2P", "SHM":
		return channel{rank, Route{Transport: WithinNode, Device: None, Channels: 1}}, len(parts) > 1 && parts[1] != ""
	case "NET", "COLLNET":
		if len(parts) < 3 {
			return channel{}, false
		}
	default:
		return channel{}, false
	}
	device := netDevice.FindStringSubmatch(parts[2])
	if device == nil {
		return channel{}, false
	}
	gpuDirect := false
	for _, suffix := range parts[3:] {
		if !netSuffix.MatchString(suffix) {
			return channel{}, false
		}
		gpuDirect = gpuDirect || strings.HasPrefix(suffix, "GDRDMA")
	}
	network := clip(parts[1])
	return channel{rank, Route{Transport: overNetwork(network, gpuDirect), Network: network, Device: number(device[1]), Channels: 1}}, true
}

// number converts the digits that a pattern has matched, at most to the largest of 32 bits: no count of NCCL's is larger.
func number(digits string) int {
	n, _ := strconv.ParseInt(digits, 10, 32)
	return int(n)
}
