// SPDX-License-Identifier: Apache-2.0

package train

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/test/locked"
)

// A folder is named only if a node has it.
func TestDone(t *testing.T) {
	var got []string
	for _, works := range [][]string{{"", ""}, {"/work/a1", "/work/a1"}, {"", "/work/a1"}} {
		var statuses []agent.JobStatus
		for _, work := range works {
			statuses = append(statuses, agent.JobStatus{Record: "/runs/a1", Work: work})
		}
		got = append(got, done(2, statuses))
	}
	const line = "Training done: 2 ranks exited with 0. On the nodes, the record is /runs/a1"
	const files = ", and files at relative paths are in /work/a1"
	if diff := cmp.Diff([]string{line + ".", line + files + ".", line + files + "."}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Outputs outside of the working directory, and a full workspace, are warned of.
func TestWarnOfFiles(t *testing.T) {
	out := &locked.Buffer{}
	training := &Training{Deps: Deps{Log: command.TextLog(out)}}
	training.warnOfFiles([]agent.JobStatus{{Node: 0}, {Node: 1, Full: true,
		Outside: []agent.Outside{{Path: "/tmp/log", Files: 2, Bytes: 3 << 20, Newest: "/tmp/log/b"}}}})
	for _, want := range []string{"The workspace of node 1 is full.",
		"Node 1 has 3.1 MB in 2 files of /tmp/log, the newest /tmp/log/b. They do not belong to the run: mlenv fetch does not copy them"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in %q", want, out)
		}
	}
	if strings.Contains(out.String(), "node 0") {
		t.Errorf("node 0 has nothing, got %q", out)
	}
}
