// SPDX-License-Identifier: Apache-2.0

package nodes_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// TestCheckVolume: agents on one folder stand for nodes with a shared claim. Their system calls are real, or behave as on a file
// system that lacks what is tried.
func TestCheckVolume(t *testing.T) {
	hangs := make(chan struct{})
	defer close(hangs)
	const timeToLock = 50 * time.Millisecond
	fails := func(err error) facts.Trial { return facts.Trial{Flock: func(int, int) error { return err }} }
	for _, test := range []struct {
		name          string
		nodes         int
		shared        bool
		first, second facts.Trial
		want          string
	}{
		{"a claim with locks", 2, true, facts.Trial{}, facts.Trial{}, ""},
		{"three nodes", 3, true, facts.Trial{}, facts.Trial{}, ""},
		{"claims of their own", 2, false, facts.Trial{}, facts.Trial{}, ""},
		{"one node", 1, true, facts.Trial{}, facts.Trial{}, ""},
		{"NFS without locks", 2, true, fails(unix.ENOLCK), fails(unix.ENOLCK), "on node 0: flock: no locks available (ENOLCK)"},
		{"Lustre mounted in two ways", 2, true, facts.Trial{}, fails(unix.ENOSYS), "on node 1: flock: function not implemented (ENOSYS)"},
		{"local locks only", 2, true, fails(nil), fails(nil),
			"nodes 0 and 1 get the same lock at once: locks on /workspace do not reach other nodes"},
		{"one node without locks", 1, true, fails(nil), facts.Trial{}, "on node 0: two programs get the same lock"},
		{"claims of their own without locks", 2, false, facts.Trial{}, fails(unix.EOPNOTSUPP), "on node 1: flock: operation not supported"},
		{"locks that hang", 2, true, facts.Trial{}, facts.Trial{Time: timeToLock, Flock: func(int, int) error { <-hangs; return nil }},
			"on node 1: flock has not returned within " + timeToLock.String()},
		{"no renames over files", 2, true, facts.Trial{}, facts.Trial{Rename: func(string, string) error { return unix.ENOTSUP }},
			"on node 1: replacing a file by a rename: operation not supported"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var set nodes.Set
			agents := agenttest.StartWith(t, test.nodes, agenttest.Options{Shared: test.shared})
			for i, node := range agents {
				if trial := map[bool]facts.Trial{true: test.first, false: test.second}[i == 0]; trial.Flock != nil || trial.Rename != nil {
					node.End()
					node.Config.Trial = trial
					node.Restart()
				}
				set = append(set, node.Client)
			}
			got, err := set.CheckVolume(t.Context(), agent.Workspace, test.shared)
			if err != nil || (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, %v; want %q", got, err, test.want)
			}
			for _, node := range agents {
				entries, err := os.ReadDir(node.Config.Paths.Workspace)
				for _, entry := range entries {
					if err != nil || strings.HasPrefix(entry.Name(), ".mlenv-check") {
						t.Errorf("the check leaves %s, %v", entry.Name(), err)
					}
				}
			}
		})
	}
}
