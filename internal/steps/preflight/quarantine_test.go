// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/hosts"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// quarantined adds the quarantine of a node, and the receipts of two runs that met faults on another one.
func (w *world) quarantined(namespace, node, faulty string) {
	w.t.Helper()
	client, now := fake.NewClientset(), time.Now().UTC()
	if node != "" {
		if _, err := hosts.Quarantine(w.t.Context(), client, namespace, node, hosts.Who("kim", "the fan is broken", now)); err != nil {
			w.t.Fatal(err)
		}
	}
	for i := range 2 {
		at := now.Add(-time.Duration(i+1) * 25 * time.Hour)
		r := receipt.Receipt{Run: fmt.Sprint("run-", i), RunUID: fmt.Sprint(i), Namespace: namespace, Environment: "other", Started: at,
			Ended:   at,
			Verdict: receipt.Failed, Faults: []receipt.Fault{{KubernetesNode: faulty, Kind: receipt.GPUFault, At: at, Message: "GPU 3 is lost"}}}
		if err := receipt.Write(w.t.Context(), client, r); err != nil {
			w.t.Fatal(err)
		}
	}
	found, err := client.CoreV1().ConfigMaps(namespace).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range found.Items {
		w.objects = append(w.objects, &found.Items[i])
	}
}

// Preflight counts only the nodes that a run may use.
func TestQuarantine(t *testing.T) {
	const bad, faulty = "moc-r4pcc02u15", "moc-r4pcc02u16"
	quarantine := want{"node " + bad, Warning, "quarantined by kim on ", "mlenv nodes release " + bad + " -n "}
	for _, tc := range []struct {
		name   string
		node   string
		change func(*world, *Options)
		want   []want
		reason fail.Reason
	}{
		{"two nodes are listed, two are wanted", bad, func(*world, *Options) {}, []want{
			quarantine, {"nodes", Blocked, "1 can be used, want 2", "mlenv nodes release " + bad + " -n "},
			{"quarantine", Blocked, "leaves 1 node of nodes.gpu_nodes", "mlenv nodes release " + bad + " -n "},
		}, fail.NodesUnavailable},
		{"one is wanted", bad, func(_ *world, o *Options) { o.Request.Nodes = 1 }, []want{quarantine, {"nodes", OK, "1 can be used, want 1", ""},
			{"node " + faulty, Warning, "ready; used only if no other one is free: 2 faults in 7 days (gpu on ", "--use-all-nodes"}}, ""},
		{"all nodes are used as any others", bad, func(_ *world, o *Options) { o.Request.Nodes, o.UseAllNodes = 1, true },
			[]want{quarantine, {"node " + faulty, OK, "ready; nvidia.com/gpu", ""}}, ""},
		{"no node is listed", bad, func(_ *world, o *Options) { o.Request.Cluster.Nodes.GPUNodes = nil }, []want{
			quarantine, {"nodes", Blocked, "1 can be used, want 2", "mlenv nodes release " + bad + " -n "}}, fail.NodesUnavailable},
		{"a node that is gone", "gone", func(_ *world, o *Options) { o.Request.Cluster.Nodes.GPUNodes = nil },
			[]want{{"nodes", OK, "2 can be used, want 2", ""}}, ""},
		// The list of the cluster file and the record are enough.
		{"nodes may not be read", bad, func(w *world, _ *Options) { w.forbidden = []string{"list nodes"} },
			[]want{{"nodes", Unknown, "may not be read", ""}, {"quarantine", Blocked, "leaves 1 node", "mlenv nodes release"}},
			fail.NodesUnavailable},
		{"the record may not be read", bad, func(w *world, _ *Options) { w.forbidden = []string{"get configmaps", "list configmaps"} },
			[]want{{"quarantine", Unknown, "the quarantined nodes may not be read", "configmaps"}}, fail.PermissionDenied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, file := cairo(t)
			w.quarantined(file.Cluster.Namespace, tc.node, faulty)
			o := optionsOf(file, agent.TCP)
			tc.change(w, &o)
			report := w.examine(o.Request.Cluster, agent.TCP, func(_ *Deps, to *Options) {
				to.Request.Nodes, to.UseAllNodes = o.Request.Nodes, o.UseAllNodes
			})
			for _, want := range tc.want {
				if !said(report, want) {
					t.Errorf("want %s %s %q, next %q in\n%s", want.check, want.status, want.seen, want.fix, print(report))
				}
			}
			if err := report.Err(); (err != nil) != (tc.reason != "") || err != nil && fail.ReasonOf(err) != tc.reason {
				t.Errorf("error %v, want reason %q", err, tc.reason)
			}
		})
	}
}

// Free nodes that a run avoids come last.
func TestAvoidedNodesAreLast(t *testing.T) {
	w, file := cairo(t)
	w.quarantined(file.Cluster.Namespace, "", "moc-r4pcc02u15")
	report := w.examine(file, agent.TCP)
	if got := strings.Join(report.free, " "); got != "moc-r4pcc02u16 moc-r4pcc02u15" {
		t.Errorf("free: %s", got)
	}
}
