// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// A local run is examined by its nodes alone, and the advice names no command of a cluster.
func TestExamineLocal(t *testing.T) {
	var set nodes.Set
	for _, a := range agenttest.Start(t, 2) {
		set = append(set, a.Client)
	}
	spec := agent.JobSpec{Run: "try-1", Launcher: agent.Command, Script: "sleep", Args: []string{"600"}, Nodes: 2, RanksPerNode: 1}
	for _, client := range set {
		if _, err := client.StartJob(t.Context(), "try-1", spec); err != nil {
			t.Fatal(err)
		}
	}
	report := ExamineLocal(t.Context(), "try-1", set, Options{QuietAfter: time.Nanosecond})
	var text bytes.Buffer
	report.Print(&text)
	for _, want := range []string{"local run try-1: 2 nodes", "node 1", "agent: answers", "job try-1 (sleep) of try-1", string(NoProgress)} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("want %q in:\n%s", want, &text)
		}
	}
	for _, f := range report.Findings {
		if strings.Contains(f.Next, "oc ") || strings.Contains(f.Next, "cluster file") {
			t.Errorf("%s advises %q", f.Reason, f.Next)
		}
	}
}
