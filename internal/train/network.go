package train

import (
	"fmt"
	"log/slog"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/nccl"
)

// network tells people what NCCL's logs show: over what the ranks talk, once it is
// known of all of them, and each finding once.
type network struct {
	log *slog.Logger
	// environment is what the ranks were given.
	environment map[string]string
	ranks       int
	said        bool
	found       map[string]bool
}

// look is called whenever a node's status has changed.
func (n *network) look(statuses []agent.JobStatus) {
	summary, ok := agent.NCCLOf(statuses, n.environment)
	if !ok {
		return
	}
	if !n.said && len(summary.Ranks) == n.ranks && summary.Transport != nccl.Unknown {
		n.said = true
		n.log.Info("NCCL's logs show: " + summary.String() + ".")
	}
	for _, finding := range summary.Findings {
		key := fmt.Sprint(finding.Name, finding.Host, finding.Device)
		if finding.Consequence || n.found[key] {
			continue
		}
		if n.found == nil {
			n.found = map[string]bool{}
		}
		n.found[key] = true
		n.log.Warn(fmt.Sprintf("NCCL on %s: %s: %s\n  its log: %s\n  next: %s", finding.Host, finding.Name, finding.Cause, finding.Evidence, finding.Fix))
	}
}
