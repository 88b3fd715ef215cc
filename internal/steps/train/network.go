package train

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// shown tells people what NCCL's logs show: over what the ranks talk, once it is
// known of all of them, and each finding once.
type shown struct {
	log *slog.Logger
	// wanted is the slowest transport that is right.
	wanted nccl.Transport
	// environments are what the ranks were given, by the node.
	environments map[int]map[string]string
	ranks        int
	said         bool
	found        map[string]bool
}

// look is called whenever a node's status has changed. Its error, TransportWrong, is of
// ranks on sockets where RDMA was promised.
func (n *shown) look(statuses []agent.JobStatus) error {
	summary, ok := agent.NCCLOf(statuses, n.wanted, n.environments)
	if !ok {
		return nil
	}
	if !n.said && len(summary.Ranks) == n.ranks && summary.Transport != nccl.Unknown {
		n.said = true
		n.log.Info("NCCL's logs show: " + summary.String() + ".")
	}
	for _, finding := range summary.Findings {
		key := fmt.Sprint(finding.Reason, finding.Host, finding.Device)
		if finding.Consequence || n.found[key] {
			continue
		}
		if n.found == nil {
			n.found = map[string]bool{}
		}
		n.found[key] = true
		n.log.Warn(fmt.Sprintf("NCCL on %s: %s: %s\n  its log: %s\n  next: %s", finding.Host, finding.Reason, finding.Cause, finding.Seen, finding.Next), "host", finding.Host, "reason", finding.Reason, "cause", finding.Cause, "seen", finding.Seen, "next", finding.Next)
	}
	return n.onSockets(summary)
}

// onSockets names the first host with ranks on sockets where that is a finding, and
// counts those ranks that are known to be.
func (n *shown) onSockets(summary nccl.Summary) error {
	i := slices.IndexFunc(summary.Findings, func(f nccl.Finding) bool { return f.Reason == nccl.SocketsInsteadOfRDMA })
	if i < 0 {
		return nil
	}
	finding := summary.Findings[i]
	return fail.Advise(fail.Becausef(fail.TransportWrong, "training: %d of %d ranks talk over TCP sockets, want RDMA, which mode rdma promises: first on %s: %s: %s",
		len(summary.On(nccl.Sockets)), n.ranks, finding.Host, finding.Cause, finding.Seen), "%s", finding.Next)
}
