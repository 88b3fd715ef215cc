// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"encoding/hex"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// addRendezvous adds to the status how far each live rank is on its way to the rendezvous.
func (j *job) addRendezvous(status *agent.JobStatus) {
	var sockets map[string]agent.Rendezvous
	var all []process
	status.Ranks = slices.Clone(status.Ranks)
	for i := range status.Ranks {
		rank := &status.Ranks[i]
		if !rank.Ended.IsZero() || rank.PID == 0 || rank.Rendezvous == agent.Arrived {
			continue
		}
		if sockets == nil {
			sockets, all = socketsAt(connections(), cmp.Or(status.Spec.MasterPort, agent.MasterPort)), processTable()
		}
		rank.Rendezvous = max(rank.Rendezvous, bestBelow(all, rank.PID, sockets))
		if rank.Rendezvous == agent.Arrived {
			j.arrived.Store(rank.Rank, true)
		}
	}
}

// withArrivals returns the ranks with those as Arrived that were seen at the rendezvous. A rank that has come stays so, even after its
// end: a training may close its connections.
func (j *job) withArrivals(ranks []agent.RankStatus) []agent.RankStatus {
	ranks = slices.Clone(ranks)
	for i := range ranks {
		if _, seen := j.arrived.Load(ranks[i].Rank); seen {
			ranks[i].Rendezvous = agent.Arrived
		}
	}
	return ranks
}

// bestBelow returns the furthest that a socket of the process or of one below it is.
func bestBelow(all []process, pid int, sockets map[string]agent.Rendezvous) (state agent.Rendezvous) {
	for _, pid := range append(slices.Collect(maps.Keys(descendants(all, pid))), pid) {
		state = max(state, best(pid, sockets))
	}
	return state
}

// best returns the furthest that a socket of the process is.
func best(pid int, sockets map[string]agent.Rendezvous) (state agent.Rendezvous) {
	entries, _ := os.ReadDir(procPath(pid, "fd"))
	for _, entry := range entries {
		target, _ := os.Readlink(procPath(pid, "fd/"+entry.Name()))
		state = max(state, sockets[target])
	}
	return state
}

// Lines of the kernel's table of sockets.
const (
	established = "01"
	synSent     = "02"
	timeWait    = "06"
	listening   = "0A"
)

// connection is a socket of this container.
type connection struct {
	// socket is its name in /proc/PID/fd.
	socket        string
	local, remote netip.AddrPort
	state         string
}

func connections() (all []connection) {
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, _ := os.ReadFile(name)
		all = append(all, readConnections(string(table))...)
	}
	return all
}

// readConnections reads the kernel's table of sockets, proc_net_tcp(5): number, local and remote address, state, queues, timer,
// retransmissions, user, timeouts, inode. All but the number and the user are hexadecimal.
func readConnections(table string) (all []connection) {
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) >= 10 {
			all = append(all, connection{socket: "socket:[" + fields[9] + "]", local: addressOf(fields[1]), remote: addressOf(fields[2]),
				state: fields[3]})
		}
	}
	return all
}

// addressOf reads an address in the kernel's form: words of four bytes in the machine's order, which is little-endian.
func addressOf(text string) netip.AddrPort {
	host, number, _ := strings.Cut(text, ":")
	bytes, _ := hex.DecodeString(host)
	for word := range slices.Chunk(bytes, 4) {
		slices.Reverse(word)
	}
	address, _ := netip.AddrFromSlice(bytes)
	port, _ := strconv.ParseUint(number, 16, 16)
	return netip.AddrPortFrom(address.Unmap(), uint16(port))
}

// socketsAt returns the sockets that listen on the port, or are or will be connected to it.
func socketsAt(all []connection, port int) map[string]agent.Rendezvous {
	found := map[string]agent.Rendezvous{}
	for _, c := range all {
		switch {
		case c.state == listening && int(c.local.Port()) == port, c.state == established && int(c.remote.Port()) == port:
			found[c.socket] = agent.Arrived
		case c.state == synSent && int(c.remote.Port()) == port:
			found[c.socket] = agent.Connecting
		}
	}
	return found
}
