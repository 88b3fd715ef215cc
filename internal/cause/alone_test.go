// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"strings"
	"testing"

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
