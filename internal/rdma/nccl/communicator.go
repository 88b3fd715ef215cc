// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// Communicator is a group of ranks as one process sees it.
type Communicator struct {
	// Rank of the process in it, of Ranks. Ranks is 0 if the log does not show them.
	Rank  int `json:"rank"`
	Ranks int `json:"ranks"`
	// Nodes it spans, 0 if the log does not show it (before 2.20).
	Nodes int `json:"nodes,omitempty"`
	// Ready: all ranks have joined.
	Ready bool `json:"ready,omitempty"`
	// Routes count the channels by transport, network and device.
	Routes []Route `json:"routes,omitempty"`
}

// Route is the transport, network and device that channels of a communicator share.
type Route struct {
	Transport Transport `json:"transport"`
	// Network is NCCL's name, as in "IB" and "Socket", and Device its number of the network's device, whose name is
	// Rail. Within a node Device is None.
	Network string `json:"network,omitempty"`
	Device  int    `json:"device"`
	Rail    string `json:"rail,omitempty"`
	// Channels counts the ends of channels: those that send and those that receive.
	Channels int `json:"channels"`
}

// Transport returns the slowest of its channels' transports, Unknown as long as there are none.
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

// communicator is a Communicator whose log is still being read.
type communicator struct {
	Communicator
	address string
	// seen are the lines of channels that are counted already. Their number over a reader is bounded.
	seen map[string]bool
}

var (
	// made: "ncclCommInitRank comm 0x55d9607ee240 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 61000 commId 0x6e99db63b024eb76 - Init START",
	// with the function's name since 2.21, "[Rank 1] " before it since 2.30, "parent" and "color" after a split, without START in 2.16
	// (init.cc).
	made = regexp.MustCompile(`(?:^|[\w\]] )comm (0x[0-9a-f]+) rank (\d+) nranks (\d+) cudaDev \d+ (?:nvmlDev \d+ )?busId [0-9a-f]+.* ?- ` +
		`Init (START|COMPLETE)`)
	// spans: "comm 0x55d9607ee240 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0" (2.20 and on).
	spans = regexp.MustCompile(`^comm (0x[0-9a-f]+) rank \d+ nRanks \d+ nNodes (\d+) `)
)

// takeCommunicator takes what a line reports about a communicator, and is false for other lines.
func (p *process) takeCommunicator(thread int, text string) bool {
	if !strings.Contains(text, "comm 0x") {
		return false
	}
	if m := spans.FindStringSubmatch(text); m != nil {
		if c := p.byAddress(m[1]); c != nil {
			c.Nodes = number(m[2])
		}
		return true
	}
	m := made.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	c := p.byAddress(m[1])
	start := m[4] == "START"
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
	p.onThread(thread, c)
	return true
}

// newCommunicator returns nil beyond the bounds.
func (p *process) newCommunicator() *communicator {
	if len(p.communicators) == maxCommunicators {
		p.leftOut++
		return nil
	}
	c := &communicator{seen: map[string]bool{}}
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

// onThread notes the communicator that a thread creates. When there are too many threads, all are forgotten.
func (p *process) onThread(thread int, c *communicator) {
	if len(p.threads) == maxThreads {
		clear(p.threads)
	}
	p.threads[thread] = c
}

// takeChannel adds a channel to its communicator, which the line does not name. It is the one that the thread is creating. Since 2.22
// NCCL connects on first use, from threads of its own: then it is the newest one in which the process has that rank.
func (p *process) takeChannel(thread int, channel channel, line string, budget *int) {
	c := p.threads[thread]
	if c == nil || c.Rank != channel.rank {
		c = nil
		for _, candidate := range p.communicators {
			if candidate.Rank == channel.rank {
				c = candidate
			}
		}
	}
	if c == nil {
		if c = p.newCommunicator(); c == nil {
			return
		}
		c.Rank = channel.rank
		p.onThread(thread, c)
	}
	if !c.add(channel, clipText(line), budget) {
		p.leftOut++
	}
}

// add counts a channel once, as long as budget allows to remember its line. It is false if something could not be kept.
func (c *communicator) add(channel channel, line string, budget *int) bool {
	if c.seen[line] {
		return true
	}
	remembered := *budget > 0
	if remembered {
		*budget--
		c.seen[line] = true
	}
	same := func(r Route) bool {
		return r.Transport == channel.Transport && r.Network == channel.Network && r.Device == channel.Device
	}
	switch i := slices.IndexFunc(c.Routes, same); {
	case i >= 0:
		c.Routes[i].Channels++
	case len(c.Routes) == maxRoutes:
		return false
	default:
		c.Routes = append(c.Routes, channel.Route)
	}
	return remembered
}
