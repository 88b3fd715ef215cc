// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// The receipt of a training that was restarted lists its attempts.
func TestReceiptListsAttempts(t *testing.T) {
	objects, agents := live(t)
	earlier := agent.Attempt{Attempt: 1, Reason: "NodeLost", Message: "node 1 is gone"}
	for _, node := range agents {
		if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "train.sh"), []byte("exit 0\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		spec := agent.JobSpec{
			Run: "train-1", Launcher: agent.Command, Script: "train.sh", Nodes: 2, RanksPerNode: 1, Attempts: []agent.Attempt{earlier},
		}
		if _, err := node.Client.StartJob(t.Context(), "uid-1", spec); err != nil {
			t.Fatal(err)
		}
		if err := node.Client.WatchJob(t.Context(), "uid-1", func(agent.JobStatus) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	p := newPlace(t, []runtime.Object{pipelineRun(), task("provision", "Succeeded", nil), task("train", "Succeeded", nil)}, objects...)
	if _, err := p.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := receipt.Read(t.Context(), p.kube, "ns", "train-1")
	if err != nil || len(got.Attempts) != 2 || got.Attempts[0].Message != earlier.Message || got.Attempts[1].Attempt != 2 {
		t.Errorf("got attempts %+v, %v; want the earlier one and the last", got.Attempts, err)
	}
}
