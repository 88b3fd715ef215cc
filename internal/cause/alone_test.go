// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func TestAlone(t *testing.T) {
	of := func(alone ...bool) (statuses []agent.JobStatus) {
		for node, a := range alone {
			statuses = append(statuses, agent.JobStatus{Node: node, Alone: a, Spec: agent.JobSpec{Nodes: 2, RanksPerNode: 4}})
		}
		return statuses
	}
	for _, test := range []struct {
		name     string
		statuses []agent.JobStatus
		want     string
	}{
		{"all", of(true, true), "the 8 ranks may each have trained alone"},
		{"a node that saw none of the others", of(false, true), ""},
		{"a node that did not answer", of(true), ""},
		{"no job", nil, ""},
	} {
		if got := Alone(test.statuses); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// A shell ends with the exit code of the last program of a pipe.
func TestHidden(t *testing.T) {
	ended := time.Unix(1e9, 0)
	for _, tc := range []struct {
		script, want string
		rank         agent.RankStatus
	}{
		{"run.sh", "the log of rank 0 on node 0 ends in a failure: run.sh: line 2: accelerate: command not found",
			agent.RankStatus{Ended: ended, Tail: []string{"run.sh: line 2: accelerate: command not found"}}},
		{"run.sh", "the log of rank 0 on node 0 ends in a failure: torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
			agent.RankStatus{Ended: ended,
				Tail:   []string{"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "====", "train.py FAILED"},
				Python: &agent.PythonError{Type: "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"}}},
		{"run.sh", "", agent.RankStatus{Ended: ended, Tail: []string{"tool: command not found", "done"}}},
		{"run.sh", "the log of rank 0 on node 0 ends in a failure: tool: command not found",
			agent.RankStatus{Started: ended.Add(-time.Second), Ended: ended, Tail: []string{"tool: command not found", "", "done"}}},
		{"run.sh", "a program that rank 0 on node 0 started ends in a failure: ValueError: bad batch",
			agent.RankStatus{Ended: ended, Tail: []string{"finished"}, Below: &agent.PythonError{Type: "ValueError", Message: "bad batch"}}},
		{"run.sh", "", agent.RankStatus{Ended: ended, Tail: []string{"step 100"}, Python: &agent.PythonError{Type: "ValueError"}}},
		{"train.py", "", agent.RankStatus{Ended: ended, Tail: []string{"ValueError: 1"}, Python: &agent.PythonError{Type: "ValueError"}}},
		{"run.sh", "", agent.RankStatus{Ended: ended, Exit: agent.Exit{Code: 127}, Tail: []string{"x: command not found"}}},
	} {
		status := agent.JobStatus{Spec: agent.JobSpec{Launcher: agent.Command, Script: tc.script}, Ranks: []agent.RankStatus{tc.rank}}
		if got := Hidden([]agent.JobStatus{status}); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.script, got, tc.want)
		}
	}
}
