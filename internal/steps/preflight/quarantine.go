// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/hosts"
)

// quarantine checks that enough nodes of the cluster file are not quarantined, which needs no right to read nodes. It reports nothing of a
// namespace without quarantine.
func (p *probe) quarantine(context.Context) []Check {
	const name = "quarantine"
	c := p.choice()
	if c.UnreadRecord != nil {
		return []Check{unread(name, "the quarantined nodes", c.UnreadRecord)}
	}
	if err := c.TooFew(p.Request); err != nil {
		return []Check{blockedBy(name, err)}
	}
	return nil
}

// mark adds the namespace's quarantines to the nodes that a run could use otherwise: they are none of those that it may use.
func (p *probe) mark(found []diagnose.Candidate) []diagnose.Candidate {
	c := p.choice()
	for i := range found {
		if r := c.Record(found[i].Name); r != nil && found[i].Node != nil {
			found[i].Finding = fail.Finding{
				Reason: fail.NodesUnavailable, Seen: "quarantined " + r.Quarantined.String(), Final: true,
				Next: hosts.Release(r.Node, p.Request.Namespace),
			}
		}
	}
	return found
}

// avoided returns why a run uses a node only if no other one is free, "" if it does not mind.
func (p *probe) avoided(node string) string {
	if p.UseAllNodes {
		return ""
	}
	return p.choice().Why(node)
}
