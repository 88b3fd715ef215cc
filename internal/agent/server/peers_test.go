// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// store is a training whose first rank serves a store, to which the others connect, for a moment or until the end.
const store = `exec python3 -c "
import os, socket, sys, time
address = ('127.0.0.1', int(os.environ['MASTER_PORT']))
if os.environ['RANK'] == '0':
    server = socket.create_server(address)
    server.accept()[0].recv(1)
else:
    while True:
        try:
            client = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.02)
    time.sleep(float(sys.argv[1]))
" "$@"`

// storePort returns a free port that is never the port of a client, or of a listener that takes any: the closed connections of the tests of
// other packages would look like those of ranks.
func (n *node) storePort() int {
	n.t.Helper()
	for range 100 {
		port := 10000 + rand.IntN(20000)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			_ = listener.Close()
			return port
		}
	}
	n.t.Fatal("no port is free")
	return 0
}

// TestRanksAlone: ranks that have met are known even if they have closed their connection at once, and ranks that are alone are
// known as such.
func TestRanksAlone(t *testing.T) {
	n := newNode(t)
	n.script("store.sh", store)
	n.script("alone.sh", "sleep 0.5")
	spec := func(script string, port int, args ...string) agent.JobSpec {
		return agent.JobSpec{Run: "run", Launcher: agent.Torchrun, Script: script, Args: args, Nodes: 1, RanksPerNode: 2, MasterPort: port}
	}
	program, one := spec("alone.sh", n.storePort()), spec("alone.sh", n.storePort())
	program.Launcher, one.RanksPerNode = agent.Command, 1
	for name, test := range map[string]struct {
		spec agent.JobSpec
		want bool
	}{
		"met":       {spec("store.sh", n.storePort(), "1"), false},
		"met-short": {spec("store.sh", n.storePort(), "0"), false},
		"alone":     {spec("alone.sh", n.storePort()), true},
		"program":   {program, false},
		"one":       {one, false},
	} {
		status := n.run(name, test.spec)
		for _, rank := range status.Ranks {
			if rank.Exit != (agent.Exit{}) {
				t.Errorf("%s: rank %d ended with %+v: %s", name, rank.Rank, rank.Exit, n.log(name, "rank-0", 0))
			}
		}
		if again, err := n.Client.Job(t.Context(), name); err != nil || status.Alone != test.want || again.Alone != test.want {
			t.Errorf("%s: alone %t, and in the record %t, %v; want %t", name, status.Alone, again.Alone, err, test.want)
		}
	}
}
