// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

type nodes struct {
	Missing string
	Cards   []card
	More    string
}

// card is a node.
type card struct {
	Title, Faulty string
	Facts         []fact
	Ranks         []chip
	Rails         []string
	More          string
}

// chip is a rank.
type chip struct {
	Name, Text string
	Class      string
}

func nodesOf(r receipt.Receipt) nodes {
	if len(r.Nodes) == 0 && len(r.Ranks) == 0 {
		return nodes{Missing: "No node is known: the run ended before the nodes started, or none answered when the receipt was written."}
	}
	all := slices.Clone(r.Nodes)
	// The ranks name nodes that no longer answered.
	for _, rank := range r.Ranks {
		if !slices.ContainsFunc(all, func(n receipt.Node) bool { return n.Node == rank.Node }) {
			all = append(all, receipt.Node{Node: rank.Node})
		}
	}
	slices.SortFunc(all, func(a, b receipt.Node) int { return cmp.Compare(a.Node, b.Node) })
	all, more := atMost(all, mostNodes, "nodes")
	result := nodes{More: more}
	left := mostRanks
	for _, n := range all {
		c := card{Title: fmt.Sprintf("Node %d", n.Node), Facts: withValues([]fact{
			{Name: "Pod", Value: n.Pod},
			{Name: "On", Value: n.KubernetesNode},
			{Name: "Rack", Value: n.Rack},
			{Name: "GPUs", Value: gpus(n)},
			{Name: "Driver", Value: n.Driver},
		})}
		if r.Fabric != nil && slices.Contains(r.Fabric.FaultyNodes, n.Node) {
			c.Faulty = "at fault by check-fabric"
		}
		for _, rank := range r.Ranks {
			if rank.Node != n.Node {
				continue
			}
			if left == 0 {
				c.More = "More ranks are in the receipt."
				break
			}
			left--
			c.Ranks = append(c.Ranks, chipOf(r, rank))
		}
		c.Rails = railsOf(r, n)
		result.Cards = append(result.Cards, c)
	}
	return result
}

func gpus(n receipt.Node) string {
	if len(n.GPUs) == 0 {
		return ""
	}
	return fmt.Sprintf("%d × %s", len(n.GPUs), cmp.Or(truncate(n.Model, mostLine), "unknown model"))
}

// chipOf returns how a rank ended, and its transport.
func chipOf(r receipt.Receipt, rank receipt.Rank) chip {
	c := chip{Name: fmt.Sprintf("✓ %d", rank.Rank), Text: fmt.Sprintf("rank %d: succeeded after %s", rank.Rank,
		humanize.Seconds(rank.Seconds)), Class: "good"}
	switch {
	case rank.Stopped:
		c = chip{Name: fmt.Sprintf("■ %d", rank.Rank), Text: fmt.Sprintf("rank %d: %s", rank.Rank, receipt.WhyStopped(r.Reason)), Class: "open"}
	case rank.Exit == agent.Exit{Code: -1}:
		c = chip{Name: fmt.Sprintf("… %d", rank.Rank), Text: fmt.Sprintf("rank %d: had not ended", rank.Rank), Class: "open"}
	case rank.Exit != agent.Exit{}:
		c = chip{Name: fmt.Sprintf("✗ %d", rank.Rank), Class: "bad",
			Text: fmt.Sprintf("rank %d: %s", rank.Rank, truncate(cause.Describe(rank.Exit), mostLine))}
	}
	if r.Network == nil {
		return c
	}
	if i := slices.IndexFunc(r.Network.Ranks, func(n nccl.Rank) bool { return n.Rank == rank.Rank }); i >= 0 {
		c.Text += "; " + r.Network.Ranks[i].Transport.DisplayName()
	}
	return c
}

// railsOf returns a node's ports and NCCL's use of them.
func railsOf(r receipt.Receipt, n receipt.Node) (texts []string) {
	var logged []nccl.Rail
	if r.Network != nil {
		for _, rail := range r.Network.Rails {
			if rail.Host == n.Pod && n.Pod != "" {
				logged = append(logged, rail)
			}
		}
	}
	for _, rail := range n.Rails {
		text := fmt.Sprintf("%s:%d", rail.Device, rail.Port)
		for _, more := range []string{rail.Interface, rail.Network, rail.LinkLayer} {
			if more != "" {
				text += ", " + more
			}
		}
		if rail.Rate > 0 {
			text += ", " + rail.Rate.String()
		}
		if rail.Model != "" {
			text += ", " + truncate(rail.Model, mostLine)
		}
		if rail.Firmware != "" {
			text += ", firmware " + truncate(rail.Firmware, mostLine)
		}
		if i := slices.IndexFunc(logged, func(l nccl.Rail) bool { return l.Name == rail.Device || l.Name == rail.Interface }); i >= 0 {
			text += "; " + traffic(logged[i])
			logged = slices.Delete(logged, i, i+1)
		}
		texts = append(texts, truncate(text, mostLine))
	}
	for _, rail := range logged {
		texts = append(texts, truncate(rail.Name+": "+traffic(rail), mostLine))
	}
	if len(texts) > mostRails {
		texts = append(texts[:mostRails], "more are in the receipt")
	}
	return texts
}

func traffic(rail nccl.Rail) string {
	if rail.Channels == 0 {
		return "not used by NCCL"
	}
	return fmt.Sprintf("%s, %s of channels", rail.Transport.DisplayName(), humanize.Count(rail.Channels, "end"))
}
