// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pyerror"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// collective matches the functions of torch.distributed and DeepSpeed in which a rank waits for others.
var collective = regexp.MustCompile(
	`^_?(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|gather|scatter|barrier|monitored_barrier|store_based_barrier|` +
		`send|recv|isend|irecv|batch_isend_irecv|init_process_group|init_distributed|new_group|rendezvous|create_c10d_store|wait_tensor)(_\w+)?$`)

// waitsIn reports whether a rank waits for others in a call of a package, or for its GPU, which waits for others if it uses NCCL.
func waitsIn(f agent.Frame, usesNCCL bool) bool {
	function := f.Function[strings.LastIndexByte(f.Function, '.')+1:]
	switch {
	case leaves(f.Function): // torch's function, or one of a package which ends torch's groups
		return true
	case strings.Contains(f.File, "/torch/distributed/"), strings.Contains(f.File, "/deepspeed/comm/"):
		return collective.MatchString(function)
	case strings.Contains(f.File, "/torch/cuda/"):
		return usesNCCL && function == "synchronize"
	}
	return usesNCCL && strings.HasSuffix(f.File, "/torch/autograd/graph.py") && function == "_engine_run_backward"
}

// leaves reports whether a rank in this function ends its process groups. That waits for the work of other ranks, and where none is left
// for threads of its own, which need what the rank holds.
func leaves(function string) bool { return strings.HasSuffix(function, "destroy_process_group") }

// callSite is where a rank is.
type callSite struct {
	// function and at are the call in Python: the collective, or the function of the training's own code.
	function, at string
	// waits is true in a collective, or if the flight recorder shows one that is not completed; lock is the file for which it waits.
	waits bool
	lock  string
	// stopped is true if a signal has stopped the process, blocked if it waits for storage or a device, sleeps if it does for a time.
	stopped, blocked, sleeps bool
}

// stuck is for how many seconds a collective may not be completed before its rank counts as waiting. A training that goes on completes
// those that its ranks enter ahead of their GPUs.
const stuckFor = 120

// pending returns the operation for which a rank waits the longest, nil for none.
func pending(a agent.RankActivity) (oldest *agent.Collective) {
	for _, c := range a.Collectives {
		if c.Pending != nil && c.Pending.Entered >= stuckFor && (oldest == nil || c.Pending.Entered > oldest.Entered) {
			oldest = c.Pending
		}
	}
	return oldest
}

func callSiteOf(a agent.RankActivity) (site callSite) {
	site.sleeps = strings.Contains(a.Waits, "nanosleep")
	site.stopped, site.blocked, site.lock = strings.EqualFold(a.State, "T"), strings.EqualFold(a.State, "D"), a.Lock
	for _, f := range a.Frames {
		installed := pyerror.Installed(f.File)
		if installed && !site.waits && waitsIn(f, a.Collectives != nil) {
			site.function, site.waits = f.Function, true
		}
		if !installed {
			site.function, site.at = cmp.Or(site.function, f.Function), fmt.Sprintf("%s:%d", InTree(f.File), f.Line)
			break
		}
	}
	if site.at == "" && len(a.Frames) > 0 {
		f := a.Frames[0]
		site.function, site.at = cmp.Or(site.function, f.Function), fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	if site.at == "" && a.Waits != "" && !site.sleeps {
		site.function, site.at = a.Waits, "in the kernel"
	}
	// NCCL's collectives are asynchronous: their ranks wait wherever they need a result, with a processor at 100%.
	if c := pending(a); c != nil && !site.waits {
		site.function, site.waits = c.Operation, true
	}
	return site
}

// describe returns what ranks at the call site do; several is true for more than one.
func (site callSite) describe(several bool) string {
	verb := func(one, more string) string {
		if several {
			return more
		}
		return one
	}
	in := ""
	if site.function != "" {
		in = fmt.Sprintf(" in %s (%s)", site.function, site.at)
	}
	switch {
	case site.stopped:
		return verb("is", "are") + " stopped by a signal" + in
	case site.lock != "":
		return verb("waits", "wait") + " for the lock " + site.lock + ", which a process that was killed may have left," + in
	case site.blocked:
		return verb("waits", "wait") + " for storage or a device" + in
	case site.waits:
		return verb("waits", "wait") + in
	case site.sleeps:
		return verb("sleeps", "sleep") + in
	case in == "":
		return verb("does", "do") + " something unknown"
	}
	return verb("is", "are") + in
}

// DescribeActivity returns what a rank does, as a clause without its subject.
func DescribeActivity(a agent.RankActivity) string { return callSiteOf(a).describe(false) }

// byRank returns the statuses of all ranks that have started.
func byRank(statuses []agent.JobStatus) map[int]agent.RankStatus {
	known := map[int]agent.RankStatus{}
	for _, status := range statuses {
		for _, rank := range status.Ranks {
			known[rank.Rank] = rank
		}
	}
	return known
}

// Absent returns the ranks that have not reached the rendezvous and have not ended, and the number of those that have. Of ranks that
// have not started it has only the node.
func Absent(spec agent.JobSpec, statuses []agent.JobStatus) (absent []agent.RankStatus, arrived int) {
	known := byRank(statuses)
	for node := range spec.Nodes {
		for _, number := range spec.Ranks(node) {
			rank, started := known[number]
			switch {
			case !started:
				absent = append(absent, agent.RankStatus{Rank: number, Node: node})
			case rank.Rendezvous == agent.Arrived:
				arrived++
			case rank.Ended.IsZero():
				absent = append(absent, rank)
			}
		}
	}
	return absent, arrived
}

// DescribeHang returns the likely culprit of a training without progress, in one sentence: the ranks that have not started, have ended,
// have not reached the rendezvous, wait for a program such as a compiler, have entered fewer collectives than the others, are stopped, are
// in no collective while others wait in one, or are elsewhere than most. If all are at the same call site, it is that.
func DescribeHang(spec agent.JobSpec, statuses []agent.JobStatus, activities []agent.RankActivity) string {
	sentence, _ := Suspects(spec, statuses, activities)
	return sentence
}

// Suspects is DescribeHang with the ranks that the sentence names as the culprit, none if no rank differs from the others.
func Suspects(spec agent.JobSpec, statuses []agent.JobStatus, activities []agent.RankActivity) (sentence string, ranks []int) {
	known := byRank(statuses)
	at := map[callSite][]agent.RankActivity{}
	var missing, ended, late []int
	nodes := map[int]int{}
	doing := map[int]agent.RankActivity{}
	for _, a := range activities {
		doing[a.Rank] = a
	}
	for node := range spec.Nodes {
		for _, rank := range spec.Ranks(node) {
			nodes[rank] = node
			r, started := known[rank]
			a, asked := doing[rank]
			switch {
			case !started:
				missing = append(missing, rank)
			case !r.Ended.IsZero():
				ended = append(ended, rank)
			case asked:
				at[callSiteOf(a)] = append(at[callSiteOf(a)], a)
			}
			if r.Rendezvous != agent.Arrived {
				late = append(late, rank)
			}
		}
	}
	behind, slow := desync(activities, nodes)
	// The most ranks come last; of as many, those that wait.
	sites := slices.SortedFunc(maps.Keys(at), func(a, b callSite) int {
		return cmp.Or(flag(b.stopped)-flag(a.stopped), flag(b.blocked)-flag(a.blocked), flag(a.waits)-flag(b.waits), len(at[a])-len(at[b]),
			cmp.Compare(at[a][0].Rank, at[b][0].Rank))
	})
	others := ""
	if len(sites) > 0 {
		last := sites[len(sites)-1]
		others = fmt.Sprintf("%s %s", humanize.Count(len(at[last]), "rank"), last.describe(len(at[last]) > 1))
	}
	while := func(culprit string) string {
		if others == "" {
			return culprit
		}
		return culprit + " while " + others
	}
	leftBehind := leftBehindOf(statuses, activities)
	compiles := slices.IndexFunc(activities, func(a agent.RankActivity) bool { return a.Child != "" && a.ChildCPU >= workCPU })
	switch {
	case len(missing) > 0:
		return while(ranksOf(missing, nodes) + " " + hasHave(missing) + " not started"), missing
	case len(leftBehind) > 0:
		return fmt.Sprintf("%s %s although all other ranks have exited with 0", ranksOf(leftBehind, nodes),
			sites[0].describe(len(leftBehind) > 1)), leftBehind
	case len(ended) > 0:
		return while(ranksOf(ended, nodes) + " " + hasHave(ended) + " ended"), ended
	case compiles >= 0:
		a := activities[compiles]
		return while(fmt.Sprintf("rank %d on node %d waits for %s to compute", a.Rank, a.Node, a.Child)), []int{a.Rank}
	case len(late) > 0 && len(late) < len(nodes):
		culprit := fmt.Sprintf("%s %s not reached the rendezvous", ranksOf(late, nodes), hasHave(late))
		if a, asked := doing[late[0]]; asked && len(late) == 1 {
			culprit += ": it " + DescribeActivity(a)
		}
		return while(culprit), late
	case behind != "":
		return behind, slow
	case len(sites) == 0:
		return "no agent reported what its ranks do", nil
	case len(sites) == 1:
		if n := len(at[sites[0]]); n > 1 {
			return "all " + others, nil
		}
		only := at[sites[0]][0].Rank
		return fmt.Sprintf("rank %d %s", only, sites[0].describe(false)), []int{only}
	}
	first := sites[0]
	var culprits []int
	for _, a := range at[first] {
		culprits = append(culprits, a.Rank)
	}
	return while(ranksOf(culprits, nodes) + " " + first.describe(len(culprits) > 1)), culprits
}

func flag(set bool) int {
	if set {
		return 1
	}
	return 0
}

func hasHave(ranks []int) string {
	if len(ranks) > 1 {
		return "have"
	}
	return "has"
}

// ranksOf names ranks: rank 3 on node 1; ranks 3, 4 and 9 more.
func ranksOf(ranks []int, nodes map[int]int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d on node %d", ranks[0], nodes[ranks[0]])
	}
	var names []string
	for _, rank := range ranks {
		names = append(names, strconv.Itoa(rank))
	}
	return "ranks " + humanize.FirstAnd(names, 8)
}

// Bounds above which a rank works, in processors and bytes over the time of a request for stacks.
const (
	workCPU = 0.1
	workIO  = 256 << 10
)

// DoesOtherWork reports whether a silent rank of the job does something other than wait, such as loading, compiling or saving: it has
// entered further collectives since before, its descendants use processors, it reads or writes, perhaps in one long call that no counter
// shows yet (state D), or it uses a processor itself and its stack has changed since before, is not where most are, or is unknown.
// Processor time alone is no work: a rank that waits in NCCL uses it too.
func DoesOtherWork(before, now []agent.RankActivity) (rank int, works bool) {
	at, waiting := map[callSite]int{}, 0
	for _, a := range now {
		site := callSiteOf(a)
		at[site]++
		waiting += flag(site.waits)
	}
	for _, a := range now {
		site := callSiteOf(a)
		if site.stopped {
			continue
		}
		i := slices.IndexFunc(before, func(b agent.RankActivity) bool { return b.Rank == a.Rank })
		var earlier agent.RankActivity
		if i >= 0 {
			earlier = before[i]
		}
		if a.ChildCPU >= workCPU || a.IO >= workIO || site.blocked && !blockedSince(earlier, a) || i >= 0 && further(earlier, a) {
			return a.Rank, true
		}
		changed := i >= 0 && !slices.Equal(earlier.Frames, a.Frames)
		if pending(a) != nil { // a wait may look different each time, for example in a loop with a timeout
			changed = i >= 0 && callSiteOf(earlier).at != site.at
		}
		// With two ranks at two places neither is where most are, unless the other one is known to wait.
		alone := !site.waits && (len(now) == 1 || 2*at[site] < len(now) || at[site] < len(now) && at[site]+waiting == len(now))
		if a.CPU >= workCPU && (changed || alone || a.Frames == nil && !site.waits) {
			return a.Rank, true
		}
	}
	return 0, false
}

// blockedSince reports whether a rank waits for storage or a device in the same place as before, and has read and written nothing since.
func blockedSince(before, now agent.RankActivity) bool {
	return strings.EqualFold(before.State, "D") && strings.EqualFold(now.State, "D") && slices.Equal(before.Frames, now.Frames) &&
		before.Waits == now.Waits && now.AllIO-before.AllIO < workIO
}

// further reports whether a rank has entered more collectives of a group than before.
func further(before, now agent.RankActivity) bool {
	return slices.ContainsFunc(now.Collectives, func(c agent.Collective) bool {
		return slices.ContainsFunc(before.Collectives, func(b agent.Collective) bool {
			return b.ID == c.ID && b.Number >= 0 && c.Number > b.Number
		})
	})
}

// leftBehindOf returns the live ranks if all others have exited with 0 and none of these is in a collective: nothing of the job is left
// that could help them.
func leftBehindOf(statuses []agent.JobStatus, now []agent.RankActivity) (ranks []int) {
	over := 0
	for _, rank := range byRank(statuses) {
		if !rank.Ended.IsZero() && rank.Exit != (agent.Exit{}) {
			return nil
		}
		over += flag(!rank.Ended.IsZero())
	}
	for _, a := range now {
		if site := callSiteOf(a); over == 0 || site.waits && !leaves(site.function) {
			return nil
		}
		ranks = append(ranks, a.Rank)
	}
	return ranks
}

// stands reports whether a rank is where it was before, and does not sleep for a time of its own.
func stands(before, now agent.RankActivity) bool {
	return before.Rank == now.Rank && now.Frames != nil && slices.Equal(before.Frames, now.Frames) && !strings.Contains(now.Waits, "nanosleep")
}

// WaitsForOther reports whether a rank evidently waits for another one, or for what will not come: it is in a collective, one is stopped by
// a signal, waits for a lock, has waited for storage since before, or stands where it was although all other ranks have ended.
func WaitsForOther(statuses []agent.JobStatus, before, now []agent.RankActivity) bool {
	if len(leftBehindOf(statuses, now)) > 0 && !slices.ContainsFunc(now, func(a agent.RankActivity) bool {
		return !slices.ContainsFunc(before, func(b agent.RankActivity) bool { return stands(b, a) })
	}) {
		return true
	}
	return slices.ContainsFunc(now, func(a agent.RankActivity) bool {
		site := callSiteOf(a)
		return site.waits || site.stopped || site.lock != "" ||
			slices.ContainsFunc(before, func(b agent.RankActivity) bool { return b.Rank == a.Rank && blockedSince(b, a) })
	})
}
