package server

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
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
			sockets, all = socketsOf(cmp.Or(status.Spec.MasterPort, agent.MasterPort)), processTable()
		}
		below := descendants(all, rank.PID)
		for _, pid := range append(slices.Collect(maps.Keys(below)), rank.PID) {
			rank.Rendezvous = max(rank.Rendezvous, best(pid, sockets))
		}
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

// best is the furthest that a socket of the process is.
func best(pid int, sockets map[string]agent.Rendezvous) (state agent.Rendezvous) {
	entries, _ := os.ReadDir(proc(pid, "fd"))
	for _, entry := range entries {
		target, _ := os.Readlink(proc(pid, "fd/"+entry.Name()))
		state = max(state, sockets[target])
	}
	return state
}

// socketsOf are the sockets of this container that listen on the port, or are or will be connected to it, by their names in
// /proc/PID/fd.
func socketsOf(port int) map[string]agent.Rendezvous {
	found := map[string]agent.Rendezvous{}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, _ := os.ReadFile(name)
		readSockets(string(table), port, found)
	}
	return found
}

// readSockets reads the kernel's table of sockets, proc_net_tcp(5): number, local and remote address, state, queues, timer,
// retransmissions, user, timeouts, inode. All but the number and the user are hexadecimal.
func readSockets(table string, port int, found map[string]agent.Rendezvous) {
	const established, synSent, listening = "01", "02", "0A"
	end := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 10 {
			continue
		}
		local, remote, state, socket := fields[1], fields[2], fields[3], "socket:["+fields[9]+"]"
		switch {
		case state == listening && strings.HasSuffix(local, end), state == established && strings.HasSuffix(remote, end):
			found[socket] = agent.Arrived
		case state == synSent && strings.HasSuffix(remote, end):
			found[socket] = agent.Connecting
		}
	}
}
