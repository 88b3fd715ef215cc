package nccl

import (
	"regexp"
	"strconv"
	"strings"
)

// Direction is whose end of a channel a rank has connected.
type Direction string

// The directions. Within a node NCCL shows the sender's end alone, and does not name it.
const (
	Send    Direction = "send"
	Receive Direction = "receive"
)

// None stands for a device or rank that there is none of.
const None = -1

// Channel is one end of a channel between two ranks of a communicator.
type Channel struct {
	Number int `json:"number"`
	// Connection is 0 for collectives and 1 for point to point.
	Connection int `json:"connection,omitempty"`
	From       int `json:"from"`
	// To is None for a channel to a switch that reduces (CollNet).
	To        int       `json:"to"`
	Direction Direction `json:"direction,omitempty"`
	Transport Transport `json:"transport"`
	// Network is NCCL's name of the network, "IB" or "Socket"; empty within a node.
	Network string `json:"network,omitempty"`
	// Device is the network's device by NCCL's number, None within a node.
	Device int `json:"device"`
	// Proxy is the rank of the same node that sends in this one's place (PXN), else None.
	Proxy int `json:"proxy"`
	// Via is the way as NCCL prints it: "P2P/CUMEM/read", "NET/IB/0/GDRDMA/Shared".
	Via string `json:"via"`
}

var (
	// channelLine: "Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0(7)/GDRDMA(PCI)/Shared". The numbers
	// in brackets are GPUs, in 2.16 by their PCI address. SHM has no connection's number
	// (transport/net.cc, p2p.cc, shm.cc).
	channelLine = regexp.MustCompile(`^Channel (\d+)(?:/(\d+))? : (\d+)\[[0-9a-fA-F]+\] -> (\d+)\[[0-9a-fA-F]+\] (?:\[(send|receive)\] )?via (.+)$`)
	// collNetLine: "CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA" (transport/coll_net.cc).
	collNetLine = regexp.MustCompile(`^CollNet (\d+)/(\d+) : (\d+) \[(send|receive)\] via (.+)$`)
	// netDevice is "0", or "0(7)" where rank 7 sends.
	netDevice = regexp.MustCompile(`^(\d+)(?:\((\d+)\))?$`)
	// netSuffix is what may follow the device, "flush=..." since 2.32. Anything else is a line that
	// was cut, and "/GDR" instead of "/GDRDMA" would be a wrong verdict.
	netSuffix = regexp.MustCompile(`^(?:GDRDMA(?:\(PCI\))?|Shared|flush=\w+)$`)
)

// parseChannel reads a channel's line. ok is false for other lines and for what is not whole.
func parseChannel(text string) (Channel, bool) {
	var c Channel
	var via string
	if m := channelLine.FindStringSubmatch(text); m != nil {
		c = Channel{Number: number(m[1]), Connection: number(m[2]), From: number(m[3]), To: number(m[4]), Direction: Direction(m[5])}
		via = m[6]
	} else if m := collNetLine.FindStringSubmatch(text); m != nil {
		c = Channel{Number: number(m[1]), Connection: number(m[2]), From: number(m[3]), To: None, Direction: Direction(m[4])}
		via = m[5]
	} else {
		return Channel{}, false
	}
	return c, c.take(via)
}

// take reads the way of a channel.
func (c *Channel) take(via string) bool {
	c.Via, c.Device, c.Proxy = clip(via), None, None
	parts := strings.Split(via, "/")
	switch parts[0] {
	case "P2P", "SHM":
		c.Transport = WithinNode
		return len(parts) > 1 && parts[1] != ""
	case "NET", "COLLNET":
	default:
		return false
	}
	if len(parts) < 3 {
		return false
	}
	device := netDevice.FindStringSubmatch(parts[2])
	if device == nil {
		return false
	}
	gpuDirect := false
	for _, suffix := range parts[3:] {
		if !netSuffix.MatchString(suffix) {
			return false
		}
		gpuDirect = gpuDirect || strings.HasPrefix(suffix, "GDRDMA")
	}
	c.Network, c.Device = clip(parts[1]), number(device[1])
	if device[2] != "" {
		c.Proxy = number(device[2])
	}
	c.Transport = overNetwork(c.Network, gpuDirect)
	return true
}

// own is the rank whose process printed the line.
func (c *Channel) own() int {
	if c.Direction == Receive && c.To != None {
		return c.To
	}
	return c.From
}

// number reads what a pattern has found to be digits. One too long for any count of NCCL's is 0.
func number(digits string) int {
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil {
		return 0
	}
	return int(n)
}
