package receipt

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// encode leaves out what matters least until the rest fits: first the indentation, then what all healthy ranks and nodes have
// in common, then tails, the curve, and the failed ranks after the first ones. LeftOut names the parts.
func encode(r Receipt) ([]byte, error) {
	content, err := json.MarshalIndent(r, "", "  ")
	if err == nil && len(content) > maxSize {
		var own Receipt // the caller's stays as it is
		err = json.Unmarshal(content, &own)
		for _, shorten := range []func(*Receipt){
			func(*Receipt) {}, dropHealthyRanks, dropLikeTransports, dropGoodPairs, dropHealthyNodes, dropTails, dropCurve, dropLaterRanks,
		} {
			if err != nil || len(content) <= maxSize {
				break
			}
			shorten(&own)
			content, err = json.Marshal(own)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the receipt of %s: %w", r.Run, err)
	}
	return content, nil
}

// leaveOut returns a list without the elements to drop, and notes their number.
func leaveOut[T any](r *Receipt, list []T, what string, drop func(T) bool) []T {
	kept := slices.DeleteFunc(list, drop)
	if dropped := len(list) - len(kept); dropped > 0 {
		r.note(humanize.Count(dropped, what))
	}
	return kept
}

func (r *Receipt) note(part string) {
	if !slices.Contains(r.LeftOut, part) { // check-fabric's network is mostly the training's
		r.LeftOut = append(r.LeftOut, part)
	}
}

func dropHealthyRanks(r *Receipt) {
	r.Ranks = leaveOut(r, r.Ranks, "healthy rank", Rank.Healthy)
}

// Healthy reports whether the rank succeeded, or was stopped because of another one.
func (r Rank) Healthy() bool { return r.Stopped || r.Exit == agent.Exit{} }

// dropLikeTransports keeps the ranks and rails whose transport differs from that of most.
func dropLikeTransports(r *Receipt) {
	networks := []*nccl.Summary{r.Network}
	if r.Fabric != nil {
		networks = append(networks, r.Fabric.Network)
	}
	for _, network := range networks {
		if network == nil {
			continue
		}
		rankUsual := mostFrequent(network.Ranks, func(rank nccl.Rank) nccl.Transport { return rank.Transport })
		network.Ranks = leaveOut(r, network.Ranks, string(rankUsual)+" rank", func(rank nccl.Rank) bool { return rank.Transport == rankUsual })
		railUsual := mostFrequent(network.Rails, func(rail nccl.Rail) nccl.Transport { return rail.Transport })
		network.Rails = leaveOut(r, network.Rails, string(railUsual)+" rail", func(rail nccl.Rail) bool { return rail.Transport == railUsual })
	}
}

func mostFrequent[T any, K comparable](list []T, of func(T) K) (most K) {
	counts := map[K]int{}
	for _, element := range list {
		key := of(element)
		if counts[key]++; counts[key] > counts[most] {
			most = key
		}
	}
	return most
}

// dropGoodPairs keeps the measurements of all ranks, of the rails, and of nodes at fault.
func dropGoodPairs(r *Receipt) {
	if r.Fabric == nil {
		return
	}
	r.Fabric.Measurements = leaveOut(r, r.Fabric.Measurements, "measurement", func(m fabric.Measurement) bool {
		return m.Scope == fabric.InPair && !slices.ContainsFunc(r.Fabric.FaultyNodes, m.Pair.Has) ||
			m.Scope == fabric.InNode && !slices.Contains(r.Fabric.FaultyNodes, m.Node)
	})
}

// dropHealthyNodes drops the ports and the UUIDs of GPUs of nodes on which no rank failed by itself.
func dropHealthyNodes(r *Receipt) {
	failed := map[int]bool{}
	for _, rank := range r.Ranks {
		failed[rank.Node] = failed[rank.Node] || !rank.Healthy()
	}
	for i := range r.Nodes {
		if n := &r.Nodes[i]; !failed[n.Node] {
			n.Rails, n.GPUs = nil, make([]string, len(n.GPUs)) // whose number stays
		}
	}
	r.note("ports and UUIDs of GPUs of nodes without a failed rank")
}

func dropTails(r *Receipt) {
	for i := range r.Ranks {
		r.Ranks[i].Tail = nil
	}
	r.note("last lines of failed ranks")
}

func dropCurve(r *Receipt) {
	r.Curve = nil
	r.note("curve")
}

func dropLaterRanks(r *Receipt) {
	const most = 1000
	left := most
	r.Ranks = leaveOut(r, r.Ranks, "failed rank", func(Rank) bool { left--; return left < 0 })
}
