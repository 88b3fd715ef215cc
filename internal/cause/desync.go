// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// member is a rank of a process group, with the last collective that it has entered.
type member struct {
	activity agent.RankActivity
	last     agent.Collective
}

// standing is for how many seconds no rank of a group may have entered a collective: before, ranks that are at different numbers
// may only have been asked at different moments.
const standing = 5

// desync returns what the flight recorders of the ranks show: the ranks of a process group that have entered fewer collectives than
// the others, or another one with the same number, or have not completed what the others have; or the collective that none of them
// completes. "" if nothing is wrong, or fewer than two ranks have one. late are the ranks that have entered fewer. nodes are the ranks'.
func desync(activities []agent.RankActivity, nodes map[int]int) (culprit string, late []int) {
	groups := map[string][]member{}
	for _, a := range activities {
		for _, last := range a.Collectives {
			key := fmt.Sprint(last.ID, last.Ranks)
			groups[key] = append(groups[key], member{a, last})
		}
	}
	// at is what a member has entered.
	at := func(m member) string {
		switch {
		case m.last.Number == 0:
			return "none"
		case m.last.Operation == "":
			return fmt.Sprintf("number %d", m.last.Number)
		}
		return fmt.Sprintf("number %d (%s)", m.last.Number, m.last.Operation)
	}
	var worst int64
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		group := groups[key]
		// Ranks run ahead of the GPU, so that a rank behind others may wait for one that is not known.
		unknown := func(m member) bool { return m.last.Number < 0 || m.last.Entered < standing }
		if len(group) < max(len(group[0].last.Ranks), group[0].last.Size) || slices.ContainsFunc(group, unknown) {
			continue
		}
		first := slices.MinFunc(group, func(a, b member) int { return cmp.Compare(a.last.Number, b.last.Number) })
		furthest := slices.MaxFunc(group, func(a, b member) int { return cmp.Compare(a.last.Number, b.last.Number) })
		if lag := furthest.last.Number - first.last.Number; lag > worst {
			worst, late = lag, nil
			for _, m := range group {
				if m.last.Number == first.last.Number {
					late = append(late, m.activity.Rank)
				}
			}
			others := humanize.Count(len(group)-len(late), "rank")
			culprit = fmt.Sprintf("%s entered %s of the collectives of %s, while %s came as far as %s",
				ranksOf(late, nodes), at(first), first.last.Group, others, at(furthest))
			if c := pending(furthest.activity); c != nil {
				culprit += fmt.Sprintf(" and %s waited for number %d (%s) for %s", hasHave(make([]int, len(group)-len(late))), c.Number, c.Operation,
					(time.Duration(c.Entered) * time.Second).String())
			}
			if first.activity.State != "" && len(late) == 1 {
				culprit += "; it " + DescribeActivity(first.activity)
			}
			continue
		}
		if worst > 0 {
			continue
		}
		operations := map[string][]int{}
		for _, m := range group {
			operations[m.last.Operation] = append(operations[m.last.Operation], m.activity.Rank)
		}
		if culprit == "" && len(operations) == 1 {
			culprit = unfinished(group, nodes)
		}
		if len(operations) < 2 || culprit != "" {
			continue
		}
		// The operation of the fewest ranks comes first.
		names := slices.SortedFunc(maps.Keys(operations), func(a, b string) int {
			return cmp.Or(len(operations[a])-len(operations[b]), cmp.Compare(operations[a][0], operations[b][0]))
		})
		culprit = fmt.Sprintf("%s entered %s as collective %d of %s, while %s entered %s", ranksOf(operations[names[0]], nodes), names[0],
			first.last.Number, first.last.Group,
			ranksOf(operations[names[1]], nodes), names[1])
	}
	return culprit, late
}

// absent returns the ranks that a monitored barrier missed: rank 0 names them in its error. culprit is "" if no rank did.
func absent(failed []agent.RankStatus) (culprit string, late []int) {
	nodes := map[int]int{}
	for _, rank := range failed {
		nodes[rank.Rank] = rank.Node
	}
	if late = blamed(failed, true); len(late) > 0 {
		return ranksOf(late, nodes) + " did not come to the monitored barrier, as rank 0 reports", late
	}
	return "", nil
}

// waitedApart says that ranks waited at two places of the script until a timeout, which blames neither. It is "" if a rank has no error of
// its own with a place, or if there is one place, or many, as in a pipeline.
func waitedApart(failed []agent.RankStatus) string {
	nodes, places := map[int]int{}, map[string][]int{}
	for _, rank := range failed {
		if !endedByError(rank) || rank.Python.File == "" || !waitTimedOut(rank) {
			return ""
		}
		place := fmt.Sprintf("%s:%d", rank.Python.File, rank.Python.Line)
		nodes[rank.Rank], places[place] = rank.Node, append(places[place], rank.Rank)
	}
	if len(places) != 2 {
		return ""
	}
	var said []string
	byRanks := func(a, b string) int { return cmp.Or(cmp.Compare(len(places[a]), len(places[b])), cmp.Compare(a, b)) }
	for _, place := range slices.SortedFunc(maps.Keys(places), byRanks) {
		slices.Sort(places[place])
		said = append(said, ranksOf(places[place], nodes)+" waited in "+place)
	}
	return strings.Join(said, ", while ")
}

// together says that all ranks waited in the same collective until NCCL's watchdog ended them, "" if they did not.
func together(statuses []agent.JobStatus) string {
	var first []string
	ranks, world := 0, 0
	for _, status := range statuses {
		world = status.Spec.Nodes * status.Spec.RanksOfNode()
		for _, rank := range status.Ranks {
			match := work.FindStringSubmatch(lastWords(rank))
			if match == nil || p2p.MatchString(match[0]) || first != nil && sizesOf(match[0]) != sizesOf(first[0]) {
				return "" // the script may be wrong
			}
			first = match
			ranks++
		}
	}
	if ranks < max(2, world) {
		return ""
	}
	which := ""
	if first[1] == "1" {
		which = ", the first one"
	}
	return fmt.Sprintf("all %d ranks waited in this collective%s, and none shows an error of its own: a GPU, a link between GPUs, or the "+
		"network may hang", ranks, which)
}

// sizesOf returns what the watchdog's line has of a collective: its number, its operation and its sizes.
func sizesOf(work string) string {
	before, _, _ := strings.Cut(work, "Timeout")
	return before
}

// unfinished returns the first collective that ranks of a group have not completed, although all have entered it: the GPU of a rank or the
// network is at fault. "" if there is none.
func unfinished(group []member, nodes map[int]int) string {
	var first *agent.Collective
	for _, m := range group {
		c := m.last.Pending
		if c != nil && !collective.MatchString(c.Operation) { // P2P, with numbers of its own
			return ""
		}
		if c != nil && c.Entered >= stuckFor && (first == nil || c.Number < first.Number) {
			first = c
		}
	}
	if first == nil {
		return ""
	}
	var late, slow []int
	entered := first.Entered
	for _, m := range group {
		if c := m.last.Pending; c != nil && c.Number == first.Number {
			late, entered = append(late, m.activity.Rank), min(entered, c.Entered)
			if c.State == "scheduled" {
				slow = append(slow, m.activity.Rank)
			}
		}
	}
	what := fmt.Sprintf("number %d (%s) of the collectives of %s", first.Number, first.Operation, group[0].last.Group)
	switch {
	case len(late) < len(group):
		return fmt.Sprintf("%s %s not completed %s, as %s did: the GPU or the network of the former may hang",
			ranksOf(late, nodes), hasHave(late), what, humanize.Count(len(group)-len(late), "rank"))
	case len(slow) > 0 && len(slow) < len(group):
		return fmt.Sprintf("the GPU of %s has not started %s, as %s did", ranksOf(slow, nodes), what,
			humanize.Count(len(group)-len(slow), "rank"))
	}
	return fmt.Sprintf("all %d ranks entered %s at least %s ago, and none has completed it: a GPU or the network may hang",
		len(group), what, (time.Duration(entered) * time.Second).String())
}

// lastActivities returns the ranks of ended jobs with the last collectives that they have entered: by the flight recorder's dumps at the
// end, or if there are none by the watchdog's lines.
func lastActivities(statuses []agent.JobStatus) (activities []agent.RankActivity, nodes map[int]int) {
	dumped := slices.ContainsFunc(statuses, func(s agent.JobStatus) bool { return len(s.Collectives) > 0 })
	nodes = map[int]int{}
	for _, status := range statuses {
		for _, rank := range status.Ranks {
			a := agent.RankActivity{Rank: rank.Rank, Node: rank.Node, Collectives: status.Collectives[rank.Rank]}
			if !dumped {
				a.Collectives = printed(rank.Tail, status.Spec)
			}
			nodes[rank.Rank] = rank.Node
			activities = append(activities, a)
		}
	}
	return activities, nodes
}

// printed returns the last collectives by the watchdog's lines among a rank's last ones, as if each group had all ranks: a group of some
// ranks alone is never complete. Lines of trainings with P2P mean nothing, because older versions of torch count its batches too.
func printed(tail []string, spec agent.JobSpec) (all []agent.Collective) {
	last := map[string]agent.Collective{}
	for _, line := range tail {
		if match := enqueued.FindStringSubmatch(line); match != nil {
			number, _ := strconv.ParseInt(match[3], 10, 64)
			last[match[1]] = agent.Collective{ID: match[1], Group: cmp.Or(match[2], "process group "+match[1]), Number: number, Entered: standing,
				Size: spec.Nodes * spec.RanksOfNode()}
		}
		if p2p.MatchString(line) {
			return nil
		}
	}
	return slices.Collect(maps.Values(last))
}
