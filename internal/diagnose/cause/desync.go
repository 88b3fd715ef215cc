package cause

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// standing is for how many seconds no rank of a group may have entered a collective: before, ranks that are at different numbers
// may only have been asked at different moments.
const standing = 5

// desync is what the flight recorders of the ranks show: the ranks of a process group that have entered fewer collectives than
// the others, or another one with the same number. "" if all are alike, or fewer than two ranks have one. nodes are the ranks'.
func desync(activities []agent.RankActivity, nodes map[int]int) (culprit string) {
	type member struct {
		activity agent.RankActivity
		last     agent.Collective
	}
	groups := map[string][]member{}
	for _, a := range activities {
		for _, last := range a.Collectives {
			key := fmt.Sprint(last.ID, last.Ranks)
			groups[key] = append(groups[key], member{a, last})
		}
	}
	// at is what a member has entered.
	at := func(m member) string {
		if m.last.Number == 0 {
			return "none"
		}
		return fmt.Sprintf("number %d (%s)", m.last.Number, m.last.Operation)
	}
	var worst int64
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		group := groups[key]
		if slices.ContainsFunc(group, func(m member) bool { return m.last.Entered < standing }) {
			continue
		}
		first := slices.MinFunc(group, func(a, b member) int { return cmp.Compare(a.last.Number, b.last.Number) })
		furthest := slices.MaxFunc(group, func(a, b member) int { return cmp.Compare(a.last.Number, b.last.Number) })
		if lag := furthest.last.Number - first.last.Number; lag > worst {
			worst = lag
			var late []int
			for _, m := range group {
				if m.last.Number == first.last.Number {
					late = append(late, m.activity.Rank)
				}
			}
			others := humanize.Count(len(group)-len(late), "rank")
			culprit = fmt.Sprintf("%s entered %s of the collectives of %s, while %s came as far as %s", ranksOf(late, nodes), at(first), first.last.Group, others, at(furthest))
			if len(late) == 1 {
				culprit += "; it " + Doing(first.activity)
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
		if len(operations) < 2 || culprit != "" {
			continue
		}
		// The operation of the fewest ranks comes first.
		names := slices.SortedFunc(maps.Keys(operations), func(a, b string) int {
			return cmp.Or(len(operations[a])-len(operations[b]), cmp.Compare(operations[a][0], operations[b][0]))
		})
		culprit = fmt.Sprintf("%s entered %s as collective %d of %s, while %s entered %s", ranksOf(operations[names[0]], nodes), names[0], first.last.Number, first.last.Group,
			ranksOf(operations[names[1]], nodes), names[1])
	}
	return culprit
}
