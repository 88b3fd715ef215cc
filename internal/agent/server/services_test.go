// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// TestServicesAreNodeZeros: only node 0 has services, and its facts report them.
func TestServicesAreNodeZeros(t *testing.T) {
	nodes := agenttest.Start(t, 2)
	for _, node := range nodes {
		dir := filepath.Join(node.Config.Paths.Home, "services")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, agent.ServicesKey), []byte(agent.Jupyter), 0o600); err != nil {
			t.Fatal(err)
		}
		node.End()
		node.Restart()
	}
	var asked []agent.ServiceStatus
	const timeForTheServicesToBeRead = time.Minute
	for began := time.Now(); len(asked) == 0 && time.Since(began) < timeForTheServicesToBeRead; time.Sleep(10 * time.Millisecond) {
		facts, err := nodes[0].Client.Facts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		asked = facts.Services
	}
	if len(asked) != 1 || asked[0].Name != agent.Jupyter || asked[0].State != agent.ServiceRefused {
		t.Errorf("services of node 0: %+v, want jupyter, refused without a token", asked)
	}
	facts, err := nodes[1].Client.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(facts.Services) != 0 {
		t.Errorf("services of node 1: %+v, want none", facts.Services)
	}
}
