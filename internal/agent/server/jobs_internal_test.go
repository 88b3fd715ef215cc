// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// A training is done when its watchers have seen the end of every node. The next training may start then, even if a slow
// claim is still writing the record.
func TestEndedJobsAreNotRunning(t *testing.T) {
	js := &jobs{live: map[string]*job{
		"live":     {status: agent.JobStatus{State: agent.Running}},
		"recorded": {status: agent.JobStatus{State: agent.Exited}},
	}}
	if got := js.running(); len(got) != 1 || got[0] != "live" {
		t.Errorf("got %q, want the live one", got)
	}
}
