// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// TestDecideCaches: without locks on the workspace all nodes keep the caches themselves, and log and result give the reason.
func TestDecideCaches(t *testing.T) {
	for _, test := range []struct {
		name  string
		trial facts.Trial
		why   string
	}{
		{"locks", facts.Trial{}, ""},
		{"no locks on one node", facts.Trial{Flock: func(int, int) error { return unix.ENOLCK }},
			"on node 1: flock: no locks available (ENOLCK)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			p := &provisioner{log: slog.New(slog.NewTextHandler(&log, nil))}
			p.request.Storage = cluster.SharedStorage
			agents := agenttest.StartWith(t, 2, agenttest.Options{Shared: true})
			agents[1].End()
			agents[1].Config.Trial = test.trial
			agents[1].Restart()
			var set nodes.Set
			for _, node := range agents {
				set = append(set, node.Client)
			}
			p.decideCaches(t.Context(), set)
			if p.caches != test.why || strings.Contains(log.String(), "HF_HOME") != (test.why != "") || !strings.Contains(log.String(), test.why) {
				t.Errorf("caches %q, log %s; want %q in both", p.caches, &log, test.why)
			}
			for _, node := range agents {
				seen, err := node.Client.Facts(t.Context())
				want := filepath.Join(node.Config.Paths.Workspace, ".mlenv", "cache", "huggingface")
				if test.why != "" {
					want = filepath.Join(node.Config.Paths.Home, "cache", "huggingface")
				}
				if err != nil || seen.Environment["HF_HOME"] != want {
					t.Errorf("node %d has HF_HOME %s, %v; want %s", seen.Node, seen.Environment["HF_HOME"], err, want)
				}
			}
			if strings.Contains(log.String(), agent.Datasets) != (test.why != "") {
				t.Errorf("log %s, want a warning about the datasets: %t", &log, test.why != "")
			}
		})
	}
}
