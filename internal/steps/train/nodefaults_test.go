// SPDX-License-Identifier: Apache-2.0

package train

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// TestNoteFaults notes what is a fault of a Kubernetes node, and nothing else.
func TestNoteFaults(t *testing.T) {
	python := func(message string) error {
		rank := agent.RankStatus{Rank: 2, Node: 1, Exit: agent.Exit{Code: 1},
			Python: &agent.PythonError{Type: "RuntimeError", Message: message, Traceback: []string{"RuntimeError: " + message}}}
		return cause.Cause{Rank: rank, Known: true}.Err(cause.Job{})
	}
	hang := func(ranks ...int) error {
		return fail.Because(fail.Hang, hangError{culprit: "rank 2 stands still", ranks: ranks, error: errors.New("it hangs")})
	}
	for _, tc := range []struct {
		name string
		err  func(*Training) error
		want []string
	}{
		{"a silent node", func(t *Training) error { return onNode{1, t.lost(1, errors.New("timeout"))} }, []string{"b lost"}},
		{"a pod that was deleted", func(t *Training) error { return onNode{1, t.lost(1, t.gone(1, "its pod was deleted"))} }, nil},
		{"a broken GPU", func(*Training) error { return python("CUDA error: uncorrectable ECC error encountered") }, []string{"b gpu"}},
		{"an error of the script", func(*Training) error { return python("shapes differ") }, nil},
		{"a hang on one node", func(*Training) error { return hang(2, 3) }, []string{"b hang"}},
		{"a hang on both", func(*Training) error { return hang(1, 2) }, nil},
		{"a hang without culprits", func(*Training) error { return hang() }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clients := &kube.Clients{Kube: fake.NewClientset(), Tekton: tektonfake.NewSimpleClientset(), Namespace: "ns"}
			training := &Training{Deps: Deps{Clients: clients}, Nodes: make(nodes.Set, 2), hosts: map[int]string{0: "a", 1: "b"},
				Spec: agent.JobSpec{Launcher: agent.Torchrun, Nodes: 2, RanksPerNode: 2}}
			err := tc.err(training)
			training.noteFaults(t.Context(), err) // of no run: nothing to write
			of := run.Flags{Name: "run", UID: "uid", Task: "train"}
			training.kept = receipt.Remember(t.Context(), clients, slog.New(slog.DiscardHandler), of, "env")
			training.noteFaults(t.Context(), err)
			training.noteFaults(t.Context(), err)
			// A pod of the same step that comes later keeps the faults.
			_ = receipt.Remember(t.Context(), clients, slog.New(slog.DiscardHandler), of, "env")
			m, err := receipt.Recall(t.Context(), clients.Kube, "ns", "run")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range m.PartOf("train").Faults {
				got = append(got, fmt.Sprintf("%s %s", f.KubernetesNode, f.Kind))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("faults %q, want %q", got, tc.want)
			}
		})
	}
}
