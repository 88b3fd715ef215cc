// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"log/slog"
	"testing"

	tekton "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// TestStepThatFailsWithItsRun: the Lease of a deleted run may be gone before the step's pod gets SIGTERM, and the step then ends by itself.
func TestStepThatFailsWithItsRun(t *testing.T) {
	ctx, client := t.Context(), fake.NewClientset()
	if err := BeginJournal(ctx, client, startOf("uid-1")); err != nil {
		t.Fatal(err)
	}
	clients := &kube.Clients{Kube: client, Tekton: tekton.NewSimpleClientset(), Namespace: "ns"} // no PipelineRun is left
	k := NewWriter(ctx, clients, slog.New(slog.DiscardHandler), run.Flags{Name: "train-1", UID: "uid-1", Task: "train"}, "env")
	k.End(ctx, fail.Becausef(fail.EnvironmentMissing, "the lease is gone"), nil)
	r, err := Read(ctx, client, "ns", "train-1")
	if err != nil || r.Reason != fail.Cancelled || r.Message != Deleted {
		t.Errorf("got %+v, %v; want that the run was deleted", r, err)
	}
}
