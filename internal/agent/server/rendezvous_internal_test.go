// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func TestReadSockets(t *testing.T) {
	// Port 29500 is 733C.
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11 1 ffff 100 0 0 10 0
   1: 0201800A:C350 0101800A:733C 01 00000000:00000000 00:00000000 00000000  1000        0 12 1 ffff 20 4 30 10 -1
   2: 0201800A:C351 0101800A:733C 02 00000000:00000000 01:00000064 00000000  1000        0 13 1 ffff 20 4 30 10 -1
   3: 0201800A:C352 0101800A:733C 06 00000000:00000000 03:00000064 00000000  1000        0 14 1 ffff 20 4 30 10 -1
   4: 0201800A:C352 0101800A:01BB 01 00000000:00000000 03:00000064 00000000  1000        0 15 1 ffff 20 4 30 10 -1
   5: 0101800A:733C 0201800A:C350 01 00000000:00000000 00:00000000 00000000  1000        0 16 1 ffff 20 4 30 10 -1
   6: cut off
`
	got := socketsAt(readConnections(table), 29500)
	want := map[string]agent.Rendezvous{"socket:[11]": agent.Arrived, "socket:[12]": agent.Arrived, "socket:[13]": agent.Connecting}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestArrivalsStay: a rank that was at the rendezvous once has arrived, although its sockets are closed later.
func TestArrivalsStay(t *testing.T) {
	store, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	status := agent.JobStatus{Spec: agent.JobSpec{MasterPort: store.Addr().(*net.TCPAddr).Port},
		Ranks: []agent.RankStatus{{Rank: 1, PID: os.Getpid()}}}
	var j job
	j.addRendezvous(&status)
	store.Close()
	later := j.withArrivals([]agent.RankStatus{{Rank: 0}, {Rank: 1}})
	if status.Ranks[0].Rendezvous != agent.Arrived || later[0].Rendezvous == agent.Arrived || later[1].Rendezvous != agent.Arrived {
		t.Errorf("got %v, and later %v; want that rank 1 has arrived", status.Ranks, later)
	}
}

func TestAddressOf(t *testing.T) {
	for text, want := range map[string]string{
		"0201800A:C350":                         "10.128.1.2:50000",
		"0100007F:733C":                         "127.0.0.1:29500",
		"0000000000000000FFFF00000201800A:733C": "10.128.1.2:29500", // of a socket for both protocols
		"000080FE00000000FF005450B6FA9AFE:733C": "[fe80::5054:ff:fe9a:fab6]:29500",
		"odd":                                   "invalid AddrPort",
	} {
		if got := addressOf(text).String(); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// TestLinks: which connections show that ranks have found each other.
func TestLinks(t *testing.T) {
	const (
		mine, other, service = "0201800A", "0301800A", "0A0A0A0A"
		store                = "733C"
	)
	for _, test := range []struct {
		name                 string
		nodes                int
		local, remote, state string
		live, left           bool
	}{
		{"to the store on another node", 2, mine + ":C350", other + ":" + store, established, true, false},
		{"from another node, at the store", 2, mine + ":" + store, other + ":C350", established, true, false},
		{"between ranks, at any port", 2, mine + ":C350", other + ":C351", established, true, false},
		{"to the store, closed", 2, mine + ":C350", other + ":" + store, timeWait, false, true},
		{"between ranks, closed", 2, mine + ":C350", other + ":C351", timeWait, false, false}, // whose it was is not known
		{"to a store of its own", 2, mine + ":C350", mine + ":" + store, established, false, false},
		{"at a store of its own", 2, "0100007F:" + store, "0100007F:C350", established, false, false},
		{"to a service", 2, mine + ":C350", service + ":01BB", established, false, false},
		{"it gets no answer", 2, mine + ":C350", other + ":" + store, synSent, false, false},
		{"it waits for others", 2, "00000000:" + store, "00000000:0000", listening, false, false},
		{"one node: to the store", 1, "0100007F:C350", "0100007F:" + store, established, true, false},
		{"one node: to the store, closed", 1, mine + ":C350", mine + ":" + store, timeWait, false, true},
		{"one node: to a service", 1, mine + ":C350", service + ":01BB", established, false, false},
	} {
		p := peers{spec: agent.JobSpec{Nodes: test.nodes, RanksPerNode: 2},
			addresses: map[netip.Addr]bool{netip.MustParseAddr("10.128.1.3"): true}}
		c := connection{local: addressOf(test.local), remote: addressOf(test.remote), state: test.state}
		if live, left := p.links(t.Context(), c), p.leftBy(c); live != test.live || left != test.left {
			t.Errorf("%s: live %t, left %t; want %t, %t", test.name, live, left, test.live, test.left)
		}
	}
}
