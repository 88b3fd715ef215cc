// SPDX-License-Identifier: Apache-2.0

// Package network prepares the network between the nodes of an environment: it derives NCCL's settings from the devices
// of all nodes together, and has each node's agent set them.
package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/racks"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// Settings are the input for the nodes' network variables.
type Settings struct {
	// Mode is agent.TCP or agent.RDMA.
	Mode     agent.Mode
	Expected rdma.Expected
	// Forced are variables of NCCL that override what is detected.
	Forced map[string]string
	// Racks are the nodes' racks, "" for an unknown one; nil for none.
	Racks []string
}

// FromFile takes the settings from a cluster file, without racks.
func FromFile(file cluster.File, mode agent.Mode) Settings {
	r := file.Network.RDMA
	return Settings{Mode: mode, Forced: file.NCCL.Env, Expected: rdma.Expected{
		Devices: r.Devices, Interfaces: r.Interfaces, GIDIndex: r.GIDIndex, GDRLevel: r.GDRLevel, CrossNIC: r.CrossNIC,
		IBTimeout: r.IBTimeout, TrafficClass: r.TrafficClass, ServiceLevel: r.ServiceLevel, MinNChannels: r.MinNChannels, MTU: r.MTU,
		Bandwidth: rdma.BytesPerSecond(r.ExpectedBandwidth),
		Figures: rdma.Figures{
			OneGPU: rdma.BytesPerSecond(r.Expected.OneGPU), Inside: rdma.BytesPerSecond(r.Expected.Inside),
			Pair:     rdma.BytesPerSecond(r.Expected.Pair),
			HostCopy: rdma.BytesPerSecond(r.Expected.HostCopy), HostRDMA: rdma.BytesPerSecond(r.Expected.HostRDMA),
		},
		Sockets: rdma.BytesPerSecond(file.Network.TCP.ExpectedBandwidth),
	}}
}

// SettingsOf takes the settings that the nodes have, from their facts. Without any the mode is TCP.
func SettingsOf(facts []agent.Facts) Settings {
	s := Settings{Mode: agent.TCP, Racks: racks.OfNodes(facts)}
	for _, f := range facts {
		if f.Network != nil {
			s.Mode, s.Expected, s.Forced = f.Network.Mode, f.Network.Expected, f.Network.Forced
		}
	}
	return s
}

// Network is the prepared network.
type Network struct {
	Settings
	// Facts and Plans are each node's, nil in mode TCP.
	Facts   []rdma.Facts
	Plans   []rdma.Plan
	Between []fail.Finding
	// Environments are the variables of the nodes' processes, by node.
	Environments map[int]map[string]string
}

// Prepare sets each node's network. Errors: in mode RDMA RDMAUnavailable for a node that cannot use it, and if no rail
// joins all nodes: then no node is set, and OverSockets can do so; any error of an agent that does not answer.
func Prepare(ctx context.Context, set nodes.Set, settings Settings) (Network, error) {
	n := Network{Settings: settings}
	if settings.Mode == agent.RDMA {
		var err error
		n.Facts, err = nodes.AskAll(ctx, set, func(client *agent.Client, ctx context.Context) (rdma.Facts, error) {
			return client.RDMA(ctx, settings.Expected)
		})
		if err != nil {
			return n, err
		}
		n.Between = rdma.Compare(n.Facts)
		for node := range n.Facts {
			n.Plans = append(n.Plans, rdma.NewPlan(n.Facts, node, settings.Expected, settings.Forced))
		}
		if err := n.unusable(); err != nil {
			return n, err
		}
	}
	return n.set(ctx, set)
}

// OverSockets sets the network of nodes whose pods were created for RDMA, which they cannot use. Ranks talk over the pod network:
// the rails' interfaces may be what is at fault.
func (n Network) OverSockets(ctx context.Context, set nodes.Set) (Network, error) {
	n.Mode, n.Plans = agent.TCP, nil
	return n.set(ctx, set)
}

func (n Network) set(ctx context.Context, set nodes.Set) (Network, error) {
	environments, err := nodes.AskAll(ctx, set, func(client *agent.Client, ctx context.Context) (map[string]string, error) {
		return client.SetNetwork(ctx, n.agentNetwork(client.Node()))
	})
	n.Environments = maps.Collect(slices.All(environments))
	return n, err
}

func (n Network) agentNetwork(node int) agent.Network {
	request := agent.Network{Mode: n.Mode, Expected: n.Expected, Forced: n.Forced, Set: maps.Clone(n.Forced)}
	if node < len(n.Racks) {
		request.Rack = n.Racks[node]
	}
	switch {
	case n.Plans != nil:
		request.Set, request.Unset = n.Plans[node].Environment(), n.Plans[node].Unset()
	case n.Facts != nil:
		request.Set = map[string]string{}
		nccl.OverSockets(request.Set, n.Facts[node].PodInterface)
		maps.Copy(request.Set, n.Forced)
	}
	return request
}

// unusable returns the error for nodes that cannot use RDMA: each cause once, with the nodes that have it.
func (n Network) unusable() error {
	var causes []fail.Finding
	affected := map[fail.Finding][]int{}
	for node, facts := range n.Facts {
		for _, finding := range facts.Findings {
			if finding.Level != fail.Broken {
				continue
			}
			finding.Object = ""
			if affected[finding] == nil {
				causes = append(causes, finding)
			}
			affected[finding] = append(affected[finding], node)
		}
	}
	var problems []error
	refuse := func(doing, object string, finding fail.Finding) {
		finding.Reason, finding.Object = fail.RDMAUnavailable, object
		finding.Next = cmp.Or(finding.Next, "mlenv rdma shows every detected device; mode=tcp trains without RDMA")
		problems = append(problems, finding.Err(doing))
	}
	for _, cause := range causes {
		refuse("using RDMA on", humanize.Nodes(affected[cause]), cause)
	}
	for _, finding := range n.Between {
		if finding.Level == fail.Broken {
			refuse("using RDMA between", "the nodes", finding)
		}
	}
	return errors.Join(problems...)
}

// Bandwidth returns what a ring over the nodes should reach, 0 if unknown.
func (n Network) Bandwidth() rdma.BytesPerSecond {
	if n.Facts == nil {
		return n.Expected.Bandwidth
	}
	return rdma.ExpectedBandwidth(n.Facts, n.Expected)
}

// LogSettings logs the settings of each node, and the findings.
func (n Network) LogSettings(log *slog.Logger) {
	if n.Plans == nil {
		return
	}
	for node, plan := range n.Plans {
		variables := plan.Environment()
		log.Info(fmt.Sprintf("  node %d: %s, NCCL_IB_HCA %s, sockets on %s", node, humanize.Count(len(n.Facts[node].Rails()), "rail"),
			variables["NCCL_IB_HCA"], variables["NCCL_SOCKET_IFNAME"]))
	}
	for node, plan := range n.Plans {
		warn(log, fmt.Sprintf("node %d: ", node), slices.Concat(n.Facts[node].Findings, plan.Findings), "node", node)
	}
	warn(log, "", n.Between)
	log.Info(fmt.Sprintf("Mode rdma: %s join all nodes; a ring over them should reach %s.", humanize.Count(n.commonRails(), "network"),
		n.Bandwidth()))
}

func warn(log *slog.Logger, where string, findings []fail.Finding, attributes ...any) {
	for _, finding := range findings {
		all := append([]any{"event", "finding", "reason", finding.Reason, "seen", finding.Seen, "next", finding.Next}, attributes...)
		text := where + finding.Seen
		if finding.Next != "" {
			text += "\n  next: " + finding.Next
		}
		if finding.Level == fail.Note {
			log.Info("  "+text, all...)
			continue
		}
		log.Warn(strings.ToUpper(text[:1])+text[1:], all...)
	}
}

func (n Network) commonRails() (count int) {
	for _, rail := range rdma.Rails(n.Facts) {
		if rail.Common() {
			count++
		}
	}
	return count
}
