// SPDX-License-Identifier: Apache-2.0

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
	channelLine = regexp.MustCompile(
		`^Channel \d+(?:/\d+)? : (\d+)\[[0-9a-fA-F]+\] -> (\d+)\[[0-9a-fA-F]+\] (?:\[(send|receive)\] )?via (.+)$`)
	// collNetLine: "CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA" (transport/coll_net.cc), to a switch that reduces.
	collNetLine = regexp.MustCompile(`^CollNet \d+/\d+ : (\d+) \[(?:send|receive)\] via (.+)$`)
	inNode      = regexp.MustCompile(`^(?:P2P|SHM)/[^/]`)
	// overNet has the network, its device, "0", or "0(7)" if rank 7 of the same node sends in this one's place, and what may follow,
	// "flush=..." since 2.32. Anything else is a line that was cut, and "/GDR" instead of "/GDRDMA" would be a wrong verdict.
	overNet = regexp.MustCompile(`^(?:NET|COLLNET)/([^/]*)/(\d+)(?:\(\d+\))?((?:/GDRDMA(?:\(PCI\))?|/Shared|/flush=\w+)*)$`)
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
	if strings.HasPrefix(via, "P2P/MNNVL") { // in place of P2P/CUMEM, with all ranks of a rack (transport/p2p.cc)
		return channel{rank, Route{Transport: MultiNodeNVLink, Device: None, Channels: 1}}, true
	}
	if inNode.MatchString(via) {
		return channel{rank, Route{Transport: WithinNode, Device: None, Channels: 1}}, true
	}
	m := overNet.FindStringSubmatch(via)
	if m == nil {
		return channel{}, false
	}
	network := clipText(m[1])
	transport := overNetwork(network, strings.Contains(m[3], "/GDRDMA"))
	return channel{rank, Route{Transport: transport, Network: network, Device: number(m[2]), Channels: 1}}, true
}

// number converts the digits that a pattern has matched, at most to the largest of 32 bits: no count of NCCL's is larger.
func number(digits string) int {
	n, _ := strconv.ParseInt(digits, 10, 32)
	return int(n)
}
