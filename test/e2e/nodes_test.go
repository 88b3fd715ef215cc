// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// quarantined tests that runs do not use a quarantined node, that too few nodes fail at once with the command that ends the quarantine,
// and that the node is used again after it.
func quarantined(u trainer) {
	const bad = "node-2"
	release := "mlenv nodes release " + bad + " -n " + u.namespace
	out, _ := u.says(u.TempDir(), command.Done, "nodes", "quarantine", bad, "--why=its fan is broken")
	u.mustContain(out, "do not use Kubernetes node "+bad+".", release, "oc adm cordon "+bad)

	refused := u.end(u.start("e2e/quick.sh", byShell, oneGPU)).failed("preflight", fail.NodesUnavailable, "leaves 1 node of nodes.gpu_nodes",
		bad+" (by ", "its fan is broken")
	refused.mustContain(refused.log("preflight"), release)

	e := u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=nodes=1")).succeeded()
	u.equal("the node of the run", usedNodes(e.receipt)[0], "node-1")
	if !slices.Contains(e.receipt.ExcludedNodes, bad) {
		u.Errorf("the run excluded %q, want %s", e.receipt.ExcludedNodes, bad)
	}
	e.mustContain(e.log("provision"), "Kubernetes node "+bad+" is not used: it is quarantined by ", "its fan is broken", release)
	u.equal("the state of "+bad, u.stateOf(bad), "quarantined")

	out, _ = u.says(u.TempDir(), command.Done, "nodes", "release", bad, "--why=the fan is new")
	u.mustContain(out, "may use Kubernetes node "+bad+" again")
	u.equal("the state of "+bad, u.stateOf(bad), "ready")
	e = u.end(u.start("e2e/quick.sh", byShell, oneGPU)).succeeded().ranks(2)
	if used := usedNodes(e.receipt); !slices.Contains(used, bad) {
		u.Errorf("the run used %q, want %s too", used, bad)
	}
}

func usedNodes(r receipt.Receipt) (names []string) {
	for _, n := range r.Nodes {
		names = append(names, n.KubernetesNode)
	}
	return append(names, "none")
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
