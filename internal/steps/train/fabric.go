// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/checkfabric"
)

// fabricTime bounds the check of the network between two attempts.
const fabricTime = 90 * time.Second

// checkFabric measures the network of an environment with new pods, if the run measured it with the earlier ones: a new pod may
// have other devices, and be on another Kubernetes node. fault describes what is wrong with node. It is "" with an error if the network
// fails and no node is to blame.
func (t *Training) checkFabric(ctx context.Context) (node int, fault string, err error) {
	var fresh []int
	for node := range t.Nodes {
		if t.uids[node] != t.measured[node] {
			fresh = append(fresh, node)
		}
	}
	if len(fresh) == 0 || !t.measuredBefore(ctx) {
		return 0, "", nil
	}
	t.Log.Info(fmt.Sprintf("The network is measured again, because %s has a new pod.", humanize.Nodes(fresh)))
	check := &checkfabric.Check{Nodes: t.Nodes, ID: checkfabric.JobsOf(t.ID), RunName: t.Run.Name, Bound: fabricTime, Quick: true, Log: t.Log}
	for node := range t.Nodes {
		check.Hosts = append(check.Hosts, t.place().TLSName(node))
	}
	report, err := check.Run(ctx)
	if ctx.Err() != nil {
		return 0, "", ctx.Err()
	}
	t.Log.Info("Fabric: "+report.Summary()+".", "event", "fabric", "report", report)
	if len(report.FaultyNodes) == 0 {
		return 0, "", err
	}
	// If the check blames several, the one that is new.
	suspect := report.FaultyNodes[0]
	if i := slices.IndexFunc(fresh, func(node int) bool { return slices.Contains(report.FaultyNodes, node) }); i >= 0 {
		suspect = fresh[i]
	}
	return suspect, report.Message, err
}

// measuredBefore reports whether the run's record has the report of a check-fabric.
func (t *Training) measuredBefore(ctx context.Context) bool {
	return t.Run.UID != "" && slices.ContainsFunc(t.Nodes, func(client *agent.Client) bool {
		_, err := client.ReadRecord(ctx, t.Run.UID, agent.FabricReport)
		return err == nil
	})
}
