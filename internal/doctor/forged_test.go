// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"math"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestForgedAnswers: a training can answer in its agent's place, so no number in an answer may crash the doctor.
func TestForgedAnswers(t *testing.T) {
	tests := []struct {
		name  string
		forge func(*agent.JobStatus)
		want  fail.Reason
	}{
		{"another node's number", func(s *agent.JobStatus) { s.Node, s.Ranks[0].Node = 99, -1 }, ""},
		{"a negative number of nodes", func(s *agent.JobStatus) { s.Spec.Nodes = -1 }, fail.AgentUnreachable},
		{"too many nodes", func(s *agent.JobStatus) { s.Spec.Nodes = math.MaxInt }, fail.AgentUnreachable},
		{"too many ranks", func(s *agent.JobStatus) { s.Spec.RanksPerNode = math.MaxInt }, fail.AgentUnreachable},
		{"an order of nodes that do not exist", func(s *agent.JobStatus) { s.Spec.Order = []int{7, -3} }, ""},
		{"times that are no numbers", func(s *agent.JobStatus) { s.RankSeconds = []float64{math.MaxFloat64, -1, 0, 1} }, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.overRDMA()
			w.job(func(node int, s *agent.JobStatus) {
				s.NCCL = printed(node, sockets()...)
				if node == 1 {
					test.forge(s)
				}
			})
			report, text := w.examine()
			for _, f := range report.Findings {
				if f.Reason == test.want && f.Object == "node 1 (env-1 on gpu-b)" {
					return
				}
			}
			if test.want != "" {
				t.Errorf("no finding %s of node 1:\n%s", test.want, text)
			}
		})
	}
}
