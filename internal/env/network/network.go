// Package network prepares the nodes of an environment to talk to each other: it asks
// what devices they have, derives NCCL's settings from all of them together, and has
// each node's agent set its own.
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
	"sync"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// Settings are what the nodes' networks are derived with.
type Settings struct {
	// Mode is agent.TCP or agent.RDMA.
	Mode     string
	Expected rdma.Expected
	// Forced are variables of NCCL that hold whatever is detected.
	Forced map[string]string
	// Racks are those of the nodes, "" for one that is not known; nil for none.
	Racks []string
}

// FromFile is what a cluster file says. Racks are for the caller to find.
func FromFile(file cluster.File, mode string) Settings {
	r := file.Network.RDMA
	return Settings{Mode: mode, Forced: file.NCCL.Env, Expected: rdma.Expected{
		Devices: r.Devices, Interfaces: r.Interfaces, GIDIndex: r.GIDIndex, GDRLevel: r.GDRLevel, CrossNIC: r.CrossNIC,
		IBTimeout: r.IBTimeout, MinNChannels: r.MinNChannels, Bandwidth: rdma.BytesPerSecond(r.ExpectedBandwidth),
	}}
}

// SettingsOf is what the nodes were told before, as their facts have it. An environment of
// which the agents know nothing is in mode TCP.
func SettingsOf(facts []agent.Facts) Settings {
	s := Settings{Mode: agent.TCP, Racks: make([]string, len(facts))}
	for i, f := range facts {
		if f.Network == nil {
			continue
		}
		s.Racks[i] = f.Network.Rack
		s.Mode, s.Expected, s.Forced = f.Network.Mode, f.Network.Expected, f.Network.Forced
	}
	return s
}

// Network is how the nodes talk.
type Network struct {
	Settings
	// Facts and Plans are each node's, nil in mode TCP.
	Facts []rdma.Facts
	Plans []rdma.Plan
	// Between are the findings between nodes.
	Between []fail.Finding
	// Environments are what the nodes give their processes, by the node.
	Environments map[int]map[string]string
}

// Prepare looks at all nodes, and sets each one's network. Errors: RDMAUnavailable of a
// node that cannot use RDMA in mode RDMA, or where no rail joins all; those of agents
// that do not answer.
func Prepare(ctx context.Context, set nodes.Set, settings Settings) (Network, error) {
	n := Network{Settings: settings, Environments: map[int]map[string]string{}}
	if settings.Mode == agent.RDMA {
		n.Facts = make([]rdma.Facts, len(set))
		err := set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
			return nodes.Retry(ctx, func() (err error) {
				n.Facts[client.Node()], err = client.RDMA(ctx, settings.Expected)
				return err
			})
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
	var mu sync.Mutex
	return n, set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return nodes.Retry(ctx, func() error {
			environment, err := client.SetNetwork(ctx, n.agentNetwork(client.Node()))
			mu.Lock()
			defer mu.Unlock()
			n.Environments[client.Node()] = environment
			return err
		})
	})
}

// agentNetwork is what a node's agent is told.
func (n Network) agentNetwork(node int) agent.Network {
	told := agent.Network{Mode: n.Mode, Expected: n.Expected, Forced: n.Forced, Set: maps.Clone(n.Forced)}
	if node < len(n.Racks) {
		told.Rack = n.Racks[node]
	}
	if n.Plans != nil {
		told.Set, told.Unset = n.Plans[node].Environment(), n.Plans[node].Unset()
	}
	return told
}

// unusable is the error of nodes that cannot use RDMA, each with what is in its way.
func (n Network) unusable() error {
	var problems []error
	refuse := func(doing, object string, findings []fail.Finding) {
		for _, finding := range findings {
			if finding.Level == fail.Broken {
				finding.Reason, finding.Object = fail.RDMAUnavailable, object
				finding.Next = cmp.Or(finding.Next, "mlenv rdma shows all that was detected; mode=tcp trains without RDMA")
				problems = append(problems, finding.Err(doing))
			}
		}
	}
	for node, facts := range n.Facts {
		refuse("using RDMA on", fmt.Sprintf("node %d", node), facts.Findings)
	}
	refuse("using RDMA between", "the nodes", n.Between)
	return errors.Join(problems...)
}

// Bandwidth is what a ring over the nodes should reach, 0 where that is not known.
func (n Network) Bandwidth() rdma.BytesPerSecond {
	if n.Facts == nil {
		return n.Expected.Bandwidth
	}
	return rdma.ExpectedBandwidth(n.Facts, n.Expected)
}

// Log says what was set on each node, and what is worth knowing about it.
func (n Network) Log(log *slog.Logger) {
	if n.Plans == nil {
		return
	}
	for node, plan := range n.Plans {
		variables := plan.Environment()
		log.Info(fmt.Sprintf("  node %d: %s, NCCL_IB_HCA %s, sockets on %s", node, humanize.Count(len(n.Facts[node].Rails()), "rail"), variables["NCCL_IB_HCA"], variables["NCCL_SOCKET_IFNAME"]), "node", node, "rails", len(n.Facts[node].Rails()), "hca", variables["NCCL_IB_HCA"], "interfaces", variables["NCCL_SOCKET_IFNAME"])
	}
	for node, plan := range n.Plans {
		warn(log, fmt.Sprintf("node %d: ", node), slices.Concat(n.Facts[node].Findings, plan.Findings))
	}
	warn(log, "", n.Between)
	log.Info(fmt.Sprintf("Mode rdma: %s join all nodes; a ring over them should reach %s.", humanize.Count(n.commonRails(), "network"), n.Bandwidth()), "networks", n.commonRails(), "bytesPerSecond", float64(n.Bandwidth()))
}

func warn(log *slog.Logger, where string, findings []fail.Finding) {
	for _, finding := range findings {
		text := where + finding.Seen
		if finding.Next != "" {
			text += "\n  next: " + finding.Next
		}
		if finding.Level == fail.Note {
			log.Info("  " + text)
			continue
		}
		log.Warn(strings.ToUpper(text[:1]) + text[1:])
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
