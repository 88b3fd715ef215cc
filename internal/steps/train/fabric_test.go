// SPDX-License-Identifier: Apache-2.0

package train

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// TestFabricBeforeAnAttempt: the step measures the network of new pods if it measured the network of the first pods. python3 on the
// nodes stands in for the benchmark.
func TestFabricBeforeAnAttempt(t *testing.T) {
	const (
		passes = `echo '{"fabric": 1, "event": "joined"}'; echo '{"fabric": 1, "operation": "all_reduce", "scope": "world", "bytes": 8, ` +
			`"ranks": 2, "time": 50000, "iterations": 9}'; echo '{"fabric": 1, "event": "done"}'`
		fails = `echo 'Traceback (most recent call last):'; echo '  File "x.py", line 1, in <module>'; echo 'RuntimeError: ` +
			`[../gloo/transport/tcp/pair.cc:799] connect [10.0.103.5]:28703: Connection refused'; exit 1`
	)
	first := map[int]types.UID{0: "0", 1: "1"}
	for _, tc := range []struct {
		name     string
		pods     map[int]types.UID
		measured bool
		does     string
		want     int // the node at fault, -1 for none
		reason   fail.Reason
		says     string
	}{
		{"the same pods", first, true, fails, -1, "", ""},
		{"a run without check-fabric", map[int]types.UID{0: "0", 1: "new"}, false, fails, -1, "", ""},
		{"a new pod", map[int]types.UID{0: "0", 1: "new"}, true, passes, -1, "", "Fabric: pass: 2 nodes of 2 ranks each"},
		{"a new pod that nobody reaches", map[int]types.UID{0: "0", 1: "new"}, true, fails, 1, fail.NetworkBroken,
			"because node 1 has a new pod"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			training, out, agents := newTraining(t, "exit 0")
			bin := t.TempDir()
			if err := os.WriteFile(filepath.Join(bin, "python3"), []byte("#!/bin/sh\necho '{\"fabric\": 1, \"event\": \"ready\"}'\n"+tc.does),
				0o755); err != nil {
				t.Fatal(err)
			}
			for _, node := range agents {
				node.End()
				node.Config.Environ = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
				node.Restart()
			}
			if tc.measured {
				if err := training.Nodes[1].WriteRecord(t.Context(), "uid", agent.FabricReport, []byte("{}")); err != nil {
					t.Fatal(err)
				}
			}
			training.Run, training.measured, training.uids = run.Flags{UID: "uid"}, first, tc.pods
			got, fault, err := training.checkFabric(t.Context())
			if (fault == "") != (tc.want < 0) || fault != "" && (got != tc.want || !strings.Contains(fault, "do not reach each other")) {
				t.Errorf("got node %d, %q; want node %d", got, fault, tc.want)
			}
			if err != nil && fail.ReasonOf(err) != tc.reason || err == nil && tc.reason != "" {
				t.Errorf("got %v, want %s", err, tc.reason)
			}
			if !strings.Contains(out.String(), tc.says) || tc.says == "" && out.String() != "" {
				t.Errorf("log %q, want %q in it", out, tc.says)
			}
		})
	}
}
