// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestNodeFaults has receipts of this version and of earlier ones, which have no faults of their own.
func TestNodeFaults(t *testing.T) {
	end := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	noted := Fault{KubernetesNode: "gpu-2", Kind: GPUFault, At: end.Add(-30 * time.Minute), Message: "GPU 3 is lost"}
	for _, tc := range []struct {
		name   string
		change func(*Receipt)
		want   []string
	}{
		{"a run that succeeded", func(*Receipt) {}, nil},
		{"a fault that was noted", func(r *Receipt) { r.Faults = []Fault{noted} }, []string{"gpu-2 gpu"}},
		{"the same fault in the rest of the receipt", func(r *Receipt) {
			r.Faults = []Fault{noted}
			r.Attempts = []agent.Attempt{{Reason: fail.RankFailed, Ended: end.Add(-3 * time.Hour), LeftOut: []string{"gpu-2"}}, {}}
			r.Verdict, r.Cause = Failed, &cause.Culprit{Node: 1, Python: &agent.PythonError{Message: "CUDA error: uncorrectable ECC error"}}
		}, []string{"gpu-2 gpu"}},
		{"an earlier version: nodes that were left out", func(r *Receipt) {
			r.Attempts = []agent.Attempt{{Reason: fail.NodeLost, LeftOut: []string{"gpu-7"}}, {Reason: fail.RankFailed, LeftOut: []string{"gpu-8"}},
				{}}
		}, []string{"gpu-7 lost", "gpu-8 gpu"}},
		// Its pod may have been deleted, evicted or preempted, which is no fault of the node.
		{"an earlier version: a pod that was lost", func(r *Receipt) {
			r.Attempts = []agent.Attempt{{Reason: fail.NodeLost, Node: new(1)}, {}}
		}, nil},
		{"an error of the hardware", func(r *Receipt) {
			r.Verdict, r.Cause = Failed, &cause.Culprit{Node: 1, Python: &agent.PythonError{Message: "CUDA error: uncorrectable ECC error"}}
		}, []string{"gpu-2 gpu"}},
		{"an error of the script", func(r *Receipt) {
			r.Verdict, r.Cause = Failed, &cause.Culprit{Node: 1, Python: &agent.PythonError{Message: "shapes differ"}}
		}, nil},
		{"a hang on one node", func(r *Receipt) {
			r.Verdict, r.Reason = Failed, fail.Hang
			r.Ranks = []Rank{{Rank: 0, Stopped: true, Exit: agent.Exit{Signal: "SIGKILL"}}, {Rank: 1, Node: 1, Exit: agent.Exit{Signal: "SIGKILL"}}}
		}, []string{"gpu-2 hang"}},
		{"a hang on all nodes", func(r *Receipt) {
			r.Verdict, r.Reason = Failed, fail.Hang
			r.Ranks = []Rank{{Rank: 0, Exit: agent.Exit{Signal: "SIGKILL"}}, {Rank: 1, Node: 1, Exit: agent.Exit{Signal: "SIGKILL"}}}
		}, nil},
		{"a slow node", func(r *Receipt) {
			r.Fabric = &fabric.Report{Verdict: fabric.Slow, Nodes: 2, FaultyNodes: []int{0}, KubernetesNodes: []string{"gpu-1", "gpu-2"}}
		}, []string{"gpu-1 slow"}},
		{"a broken one", func(r *Receipt) {
			r.Fabric = &fabric.Report{Verdict: fabric.Broken, Nodes: 2, FaultyNodes: []int{1}, KubernetesNodes: []string{"gpu-1", "gpu-2"}}
		}, []string{"gpu-2 network"}},
		{"all nodes are slow", func(r *Receipt) {
			r.Fabric = &fabric.Report{Verdict: fabric.Slow, Nodes: 2, FaultyNodes: []int{0, 1}, KubernetesNodes: []string{"gpu-1", "gpu-2"}}
		}, nil},
		{"a forged report", func(r *Receipt) {
			r.Fabric = &fabric.Report{Verdict: fabric.Slow, Nodes: 9, FaultyNodes: []int{-1, 7}, KubernetesNodes: []string{"gpu-1"}}
		}, nil},
		{"a local run", func(r *Receipt) {
			r.Nodes = nil
			r.Verdict, r.Cause = Failed, &cause.Culprit{Python: &agent.PythonError{Message: "GPU is lost"}}
		}, nil},
		{"too many", func(r *Receipt) {
			for i := range 100 {
				r.Faults = append(r.Faults, Fault{KubernetesNode: fmt.Sprint("gpu-", i%3), Kind: GPUFault, At: end.Add(time.Duration(i) * time.Hour),
					Message: strings.Repeat("x", 9000)})
			}
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := Receipt{Run: "run", Namespace: "ns", Verdict: Succeeded, Started: end.Add(-time.Hour), Ended: end,
				Nodes: []Node{{KubernetesNode: "gpu-1"}, {Node: 1, KubernetesNode: "gpu-2"}}}
			tc.change(&r)
			var got []string
			for _, f := range r.NodeFaults() {
				if f.At.IsZero() && len(r.Attempts) == 0 || len(f.Message) > mostFaultText+3 {
					t.Errorf("fault %+v: want its time, and a short message", f)
				}
				got = append(got, fmt.Sprintf("%s %s", f.KubernetesNode, f.Kind))
			}
			if tc.name == "too many" {
				if len(got) != mostFaults {
					t.Errorf("got %d faults, want %d", len(got), mostFaults)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A retried step keeps the faults of its first pod, and a run in progress shows them.
func TestFaultsAreKept(t *testing.T) {
	client, now := fake.NewClientset(), time.Now().UTC().Truncate(time.Second)
	start := Start{Run: "run", Namespace: "ns", RunUID: "uid", Environment: "env", Started: now.Add(-time.Hour)}
	part := Part{Task: "train", Started: now}
	part.AddFault(Fault{KubernetesNode: "gpu-2", Kind: LostFault, At: now.Add(-20 * time.Minute)})
	part.AddFault(Fault{KubernetesNode: "gpu-2", Kind: LostFault, At: now})
	part.AddFault(Fault{Kind: LostFault, At: now})
	if len(part.Faults) != 1 {
		t.Errorf("faults %+v: want one", part.Faults)
	}
	if err := Begin(t.Context(), client, start); err != nil {
		t.Fatal(err)
	}
	if err := Note(t.Context(), client, start, part); err != nil {
		t.Fatal(err)
	}
	m, err := Recall(t.Context(), client, "ns", "run")
	if err != nil || m.Receipt != nil || len(m.NodeFaults()) != 1 {
		t.Fatalf("in progress: %+v, %v; want the fault", m, err)
	}
	r := m.End(fail.NodeLost, "gone", now)
	m.Fill(&r) // a second time
	if err := m.Finish(t.Context(), client, r); err != nil {
		t.Fatal(err)
	}
	if m, err = Recall(t.Context(), client, "ns", "run"); err != nil || m.Receipt == nil || len(m.NodeFaults()) != 1 {
		t.Errorf("after its end: %+v, %v; want the fault", m, err)
	}
}
