// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// encode leaves out what matters least until the rest fits: first the indentation and the ends of very long texts, then what all
// healthy ranks and nodes have in common, then tails, the curve, the failed ranks after the first ones, and all that is
// longer than usual. The goodput is computed before that. In the end the core is left, which always fits. LeftOut names the parts.
func encode(r Receipt) ([]byte, error) {
	r.Goodput = GoodputOf(r)
	content, err := json.MarshalIndent(r, "", "  ")
	if err == nil && len(content) <= maxSize {
		return content, nil
	}
	own := r
	if err == nil {
		own = Receipt{} // the caller's stays as it is
		err = json.Unmarshal(content, &own)
	}
	if err != nil { // a value that JSON does not have
		core(&own)
	}
	for _, shorten := range []func(*Receipt){
		func(*Receipt) {}, bound(16<<10, math.MaxInt), dropHealthyRanks, dropLikeTransports, dropGoodPairs, dropHealthyNodes, dropTails,
		dropCurve, dropLaterRanks, bound(1<<10, 1000), bound(256, 100), core,
	} {
		shorten(&own)
		if content, err = json.Marshal(own); err == nil && len(content) <= maxSize {
			return content, nil
		}
	}
	return nil, fmt.Errorf("encoding the receipt of %s: %d bytes, %w", r.Run, len(content), err)
}

// bound cuts longer texts and lists, wherever they are.
func bound(bytes, elements int) func(*Receipt) {
	return func(r *Receipt) {
		content, err := json.Marshal(r)
		if err != nil {
			return // the core has the last word
		}
		var tree any
		decoder := json.NewDecoder(strings.NewReader(string(content)))
		decoder.UseNumber()
		if err := decoder.Decode(&tree); err != nil {
			return
		}
		b := bounds{bytes: bytes, elements: elements}
		if content, err = json.Marshal(b.shorten(tree)); err != nil || !b.cut {
			return
		}
		var bounded Receipt
		if err := json.Unmarshal(content, &bounded); err != nil {
			return
		}
		*r = bounded
		part := fmt.Sprintf("the ends of texts over %d bytes", bytes)
		if elements < math.MaxInt {
			part += fmt.Sprintf(" and of lists over %d elements", elements)
		}
		r.note(part)
	}
}

type bounds struct {
	bytes, elements int
	cut             bool
}

func (b *bounds) shorten(value any) any {
	switch value := value.(type) {
	case string:
		short := truncate(value, b.bytes)
		b.cut = b.cut || short != value
		return short
	case []any:
		b.cut = b.cut || len(value) > b.elements
		value = value[:min(len(value), b.elements)]
		for i := range value {
			value[i] = b.shorten(value[i])
		}
		return value
	case map[string]any:
		kept := make(map[string]any, len(value))
		for i, name := range slices.Sorted(maps.Keys(value)) {
			if i >= b.elements || len(name) > b.bytes {
				b.cut = true
				continue
			}
			kept[name] = b.shorten(value[name])
		}
		return kept
	}
	return value
}

func truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// core leaves what a receipt always has: which run it was, what it trained, and how it ended.
func core(r *Receipt) {
	*r = Receipt{
		Run: r.Run, RunUID: r.RunUID, Namespace: r.Namespace, Environment: r.Environment, Schedule: r.Schedule, User: r.User,
		Verdict: r.Verdict, Reason: r.Reason, Message: r.Message, Regression: r.Regression, Started: ofJSON(r.Started), Ended: ofJSON(r.Ended),
		Repository: r.Repository, Commit: r.Commit, Tree: r.Tree, Image: r.Image, Mode: r.Mode, ModeReason: r.ModeReason, Storage: r.Storage,
		Constraint: r.Constraint, GPUs: r.GPUs, Goodput: r.Goodput, Training: r.Training, Cause: r.Cause, Record: r.Record,
		Checkpoint: r.Checkpoint, Teardown: r.Teardown,
	}
	bound(500, 20)(r)
	r.LeftOut = []string{"everything but the run and its end"}
}

// ofJSON returns a time that JSON can hold.
func ofJSON(at time.Time) time.Time {
	if year := at.Year(); year < 0 || year > 9999 {
		return time.Time{}
	}
	return at
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

// dropLikeTransports keeps the ranks and rails whose transport differs from what most have.
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
