// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// ncclMonitor reports what NCCL's logs show: the transport, once it is known for all ranks, and each finding once.
type ncclMonitor struct {
	// wanted is the slowest allowed transport.
	wanted nccl.Transport
	// environments are the ranks' variables, by node.
	environments map[int]map[string]string
	ranks, nodes int
	logged       bool
	findings     []string // their keys
	// changed is true until the next look at a change.
	changed bool
	// problem is what the latest look found.
	problem error
}

// proofTime is after how much time with ranks the log warns that RDMA is not proven.
const proofTime = 10 * time.Minute

// together is the time in which the nodes' logs change together, as they do when a communicator starts.
const together = 500 * time.Millisecond

// note takes a node's summary before and after an update. It reports whether a look is due, when the nodes' logs have changed together.
func (m *ncclMonitor) note(before, now *nccl.Summary) bool {
	first := !m.changed && !reflect.DeepEqual(before, now)
	m.changed = m.changed || first
	return first
}

// look merges what all nodes' logs show, if that has changed: for hundreds of nodes a merge takes a while. It returns
// TransportWrong for ranks on sockets in mode RDMA.
func (m *ncclMonitor) look(statuses []agent.JobStatus, say func(slog.Level, string, ...any)) error {
	if m.changed {
		m.changed, m.problem = false, m.merge(statuses, say)
	}
	return m.problem
}

func (m *ncclMonitor) merge(statuses []agent.JobStatus, say func(slog.Level, string, ...any)) error {
	summary, ok := agent.NCCLOf(statuses, m.wanted, m.environments)
	if !ok {
		return nil
	}
	// With several nodes the first communicators may be groups within a node.
	partial := summary.Transport == nccl.Unknown || summary.Transport == nccl.WithinNode && m.nodes > 1
	if !m.logged && len(summary.Ranks) == m.ranks && !partial {
		m.logged = true
		say(slog.LevelInfo, "NCCL's logs show: "+summary.String()+".", "event", "transport", "transport", summary.Transport, "ranks",
			len(summary.Ranks))
	}
	for _, finding := range summary.Findings {
		key := fmt.Sprint(finding.Reason, finding.Host, finding.Device)
		if finding.Consequence || slices.Contains(m.findings, key) {
			continue
		}
		m.findings = append(m.findings, key)
		text := fmt.Sprintf("NCCL on %s: %s: %s\n  its log: %s\n  next: %s", finding.Host, finding.Reason, finding.Cause, finding.Seen,
			finding.Next)
		say(slog.LevelWarn, text, "event", "nccl-finding", "host", finding.Host, "reason", finding.Reason, "cause", finding.Cause, "seen",
			finding.Seen, "next", finding.Next)
	}
	i := slices.IndexFunc(summary.Findings, func(f nccl.Finding) bool { return f.Reason == nccl.SocketsInsteadOfRDMA })
	if i < 0 {
		return nil
	}
	finding := summary.Findings[i]
	return fail.Advise(fail.Becausef(fail.TransportWrong, "training: %d of %d ranks use TCP sockets, want RDMA, which mode rdma promises: "+
		"first on %s: %s: %s",
		len(summary.RanksOn(nccl.Sockets)), m.ranks, finding.Host, finding.Cause, finding.Seen), "%s", finding.Next)
}
