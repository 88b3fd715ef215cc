// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// nodeExcluded tests that a run does not use a Kubernetes node that it excludes, although mlenv nodes shows that the node is ready.
func nodeExcluded(u trainer) {
	const excluded = "node-2"
	u.equal("the state of "+excluded, u.stateOf(excluded), "ready")
	e := u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=nodes=1", "--param=exclude-nodes="+excluded)).succeeded()
	if nodes := e.receipt.Nodes; len(nodes) != 1 || nodes[0].KubernetesNode != "node-1" {
		u.Errorf("the run used %+v, want node-1", nodes)
	}
	if !slices.Equal(e.receipt.ExcludedNodes, []string{excluded}) {
		u.Errorf("the run excluded %q, want %s", e.receipt.ExcludedNodes, excluded)
	}
}

// stateOf returns the state of a Kubernetes node with GPUs, as mlenv nodes shows it, and checks that its GPUs are known.
func (u trainer) stateOf(node string) string {
	u.Helper()
	out, _ := u.says(u.TempDir(), command.Done, "nodes", "--output=json")
	var list struct {
		Kind  string
		Items []struct {
			Name, State string
			GPUs, Free  *int
			Conditions  []struct{ Type, Status string }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || list.Kind != "NodeList" {
		u.Fatalf("mlenv nodes printed %q: %v", out, err)
	}
	for _, n := range list.Items {
		if n.Name == node {
			if n.GPUs == nil || *n.GPUs == 0 || n.Free == nil || len(n.Conditions) == 0 || n.Conditions[0].Type != "Ready" {
				u.Errorf("node %+v: want its GPUs, those that are free, and Ready first", n)
			}
			return n.State
		}
	}
	u.Fatalf("mlenv nodes does not list %s: %s", node, out)
	return ""
}
