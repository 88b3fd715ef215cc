// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// peers watches whether the ranks of a job find each other. Those that do not are no error for torch: each trains alone, and
// exits with 0.
//
// A connection counts if a rank has it to the store's port of another node, or at that port from another node, or to any port of a
// node of the job: with some backends there is no store. On one node only connections to the store count. The process behind a closed
// connection is unknown, so those to the store count for the job, except with torchrun itself, whose launchers meet there too.
type peers struct {
	spec agent.JobSpec
	node int
	// host is the name of a node.
	host func(node int) string
	// addresses has the addresses of the other nodes, nil before they are needed.
	addresses map[netip.Addr]bool
	met       atomic.Bool
}

const (
	// peersOften is the time between two looks at the connections of ranks in the first minute, in which ranks meet.
	peersOften = 250 * time.Millisecond
	// peersSeldom is the time between two looks at the connections of ranks after the first minute.
	peersSeldom = 5 * time.Second
)

// expected reports whether the ranks of a job should meet. Programs of launcher command are not ranks.
func (p *peers) expected() bool {
	return p.spec.Launcher != agent.Command && p.spec.Nodes*p.spec.RanksPerNode > 1
}

// watch looks until ranks have met, or ctx is done. ranks returns this node's ranks.
func (p *peers) watch(ctx context.Context, ranks func() []agent.RankStatus) {
	for began := time.Now(); p.expected() && !p.met.Load(); {
		pause := peersOften
		if time.Since(began) > time.Minute {
			pause = peersSeldom
		}
		select {
		case <-time.After(pause):
			p.look(ctx, ranks())
		case <-ctx.Done():
			return
		}
	}
}

// look looks at the sockets of the live ranks. Only if some socket of the container may be theirs it asks whose it is.
func (p *peers) look(ctx context.Context, ranks []agent.RankStatus) {
	sockets := map[string]agent.Rendezvous{}
	for _, c := range connections() {
		if p.links(ctx, c) {
			sockets[c.socket] = agent.Arrived
		}
	}
	if len(sockets) == 0 {
		return
	}
	all := processTable()
	for _, rank := range ranks {
		// On one node the first rank, which serves the store, is connected to it also alone.
		if rank.PID > 0 && rank.Ended.IsZero() && (p.spec.Nodes > 1 || rank.LocalRank > 0) && bestBelow(all, rank.PID, sockets) == agent.Arrived {
			p.met.Store(true)
		}
	}
}

// neverMet reports whether the job has ended before its ranks met.
func (p *peers) neverMet() bool {
	if !p.expected() || p.met.Load() {
		return false
	}
	return p.spec.Launcher == agent.TorchrunLauncher || !slices.ContainsFunc(connections(), p.leftBy)
}

// links reports whether such a connection of a rank is one to another rank.
func (p *peers) links(ctx context.Context, c connection) bool {
	switch {
	case c.state != established:
		return false
	case p.spec.Nodes == 1:
		return c.remote.Port() == p.port()
	case c.local.Addr() == c.remote.Addr():
		return false
	}
	return c.remote.Port() == p.port() || c.local.Port() == p.port() || p.isNode(ctx, c.remote.Addr())
}

// leftBy reports whether a closed connection, which has no process, was one to the store.
func (p *peers) leftBy(c connection) bool {
	return c.state == timeWait && (c.remote.Port() == p.port() || c.local.Port() == p.port()) &&
		(p.spec.Nodes == 1 || c.local.Addr() != c.remote.Addr())
}

func (p *peers) port() uint16 { return uint16(cmp.Or(p.spec.MasterPort, agent.MasterPort)) }

// isNode reports whether another node of the job has the address. It asks for the addresses once: jobs have hundreds of nodes.
func (p *peers) isNode(ctx context.Context, address netip.Addr) bool {
	if p.addresses == nil {
		p.addresses = map[netip.Addr]bool{}
		for node := range p.spec.Nodes {
			if node == p.node {
				continue
			}
			found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", p.host(node))
			for _, a := range found {
				p.addresses[a.Unmap()] = true
			}
		}
	}
	return p.addresses[address]
}
