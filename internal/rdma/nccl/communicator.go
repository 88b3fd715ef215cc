package nccl

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// Communicator is a group of ranks as one process sees it.
type Communicator struct {
	// ID is the same in all its ranks: "0x6e99db63b024eb76". It is empty where the log does not show
	// it: the communicator was split from another, or the log begins after it was made.
	ID string `json:"id,omitempty"`
	// Rank of the process in it, of Ranks. Ranks is 0 where the log does not show them.
	Rank  int `json:"rank"`
	Ranks int `json:"ranks"`
	// Nodes it spans, 0 where the log does not show it (before 2.20).
	Nodes int `json:"nodes,omitempty"`
	// Ready: all ranks have met.
	Ready bool `json:"ready,omitempty"`
	// Routes count the channels by the way that they take.
	Routes []Route `json:"routes,omitempty"`
	// Channels are the first ones. Their sum over a reader is bounded; Routes count all.
	Channels []Channel `json:"channels,omitempty"`
}

// Route is a way that channels of a communicator take.
type Route struct {
	Transport Transport `json:"transport"`
	// Network, Device and Rail, its name, are set for a network.
	Network string `json:"network,omitempty"`
	Device  int    `json:"device"`
	Rail    string `json:"rail,omitempty"`
	// Channels counts the ends of channels: those that send and those that receive.
	Channels int `json:"channels"`
}

// Transport is the slowest that any of its channels has, Unknown as long as there are none.
func (c *Communicator) Transport() Transport {
	var result Transport
	for _, route := range c.Routes {
		result = slower(result, route.Transport)
	}
	if c.Ranks == 1 {
		return WithinNode
	}
	return cmp.Or(result, Unknown)
}

// communicator is one as it is read.
type communicator struct {
	Communicator
	address string
	seen    map[Channel]bool
}

var (
	// made: "ncclCommInitRank comm 0x55d9607ee240 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 61000 commId
	// 0x6e99db63b024eb76 - Init START", with the function's name since 2.21, "[Rank 1] " before it since
	// 2.30, "parent" and "color" after a split, without START in 2.16 (init.cc).
	made = regexp.MustCompile(`(?:^|[\w\]] )comm (0x[0-9a-f]+) rank (\d+) nranks (\d+) cudaDev \d+ (?:nvmlDev \d+ )?busId [0-9a-f]+(?: commId (0x[0-9a-f]+))?.* ?- Init (START|COMPLETE)`)
	// spans: "comm 0x55d9607ee240 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0" (2.20 and on).
	spans = regexp.MustCompile(`^comm (0x[0-9a-f]+) rank (\d+) nRanks (\d+) nNodes (\d+) `)
)

// takeCommunicator takes what a line says of a communicator; false where it says nothing of one.
func (p *process) takeCommunicator(thread int, text string) bool {
	if !strings.Contains(text, "comm 0x") {
		return false
	}
	if m := spans.FindStringSubmatch(text); m != nil {
		if c := p.byAddress(m[1]); c != nil {
			c.Nodes = number(m[4])
		}
		return true
	}
	m := made.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	c := p.byAddress(m[1])
	start := m[5] == "START"
	switch {
	case c != nil && start && c.Ready:
		c.address = "" // NCCL uses the memory of one that was destroyed again
		c = nil
	case c == nil && !start:
		// Before 2.18 the first thing to be seen of a communicator are its channels.
		if c = p.threads[thread]; c != nil && (c.address != "" || c.Rank != number(m[2])) {
			c = nil
		}
	}
	if c == nil {
		if c = p.newCommunicator(); c == nil {
			return true
		}
	}
	c.address, c.Rank, c.Ranks, c.Ready = m[1], number(m[2]), number(m[3]), !start
	if m[4] != "" {
		c.ID = clip(m[4])
	}
	p.onThread(thread, c)
	return true
}

// newCommunicator is nil beyond the bounds.
func (p *process) newCommunicator() *communicator {
	if len(p.communicators) == maxCommunicators {
		p.leftOut++
		return nil
	}
	c := &communicator{seen: map[Channel]bool{}}
	p.communicators = append(p.communicators, c)
	return c
}

func (p *process) byAddress(address string) *communicator {
	i := slices.IndexFunc(p.communicators, func(c *communicator) bool { return c.address == address })
	if i < 0 {
		return nil
	}
	return p.communicators[i]
}

// onThread notes the communicator that a thread makes. Threads that ended are forgotten with
// all others when there are too many.
func (p *process) onThread(thread int, c *communicator) {
	if len(p.threads) == maxThreads {
		clear(p.threads)
	}
	p.threads[thread] = c
}

// takeChannel adds a channel to its communicator. The line does not name that: it is the one
// that the thread is making, else, as NCCL connects on first use from threads of its own since
// 2.22, the newest in which the process has that rank.
func (p *process) takeChannel(thread int, channel Channel, budget *int) {
	c := p.threads[thread]
	if c == nil || c.Rank != channel.own() {
		c = nil
		for _, candidate := range slices.Backward(p.communicators) {
			if candidate.Rank == channel.own() {
				c = candidate
				break
			}
		}
	}
	if c == nil {
		if c = p.newCommunicator(); c == nil {
			return
		}
		c.Rank = channel.own()
		p.onThread(thread, c)
	}
	if !c.add(channel, budget) {
		p.leftOut++
	}
}

// add counts a channel once, as far as budget lets it be remembered. It is false where
// something could not be kept.
func (c *communicator) add(channel Channel, budget *int) bool {
	if c.seen[channel] {
		return true
	}
	remembered := *budget > 0
	if remembered {
		*budget--
		c.seen[channel] = true
		c.Channels = append(c.Channels, channel)
	}
	for i := range c.Routes {
		route := &c.Routes[i]
		if route.Transport == channel.Transport && route.Network == channel.Network && route.Device == channel.Device {
			route.Channels++
			return remembered
		}
	}
	if len(c.Routes) == maxRoutes {
		return false
	}
	c.Routes = append(c.Routes, Route{Transport: channel.Transport, Network: channel.Network, Device: channel.Device, Channels: 1})
	return remembered
}
