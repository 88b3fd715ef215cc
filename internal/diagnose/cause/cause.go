// Package cause finds the rank whose own error ended a training.
package cause

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// collateral matches what a rank prints because another one went away, as gloo,
// NCCL, torch.distributed and the kernel say it.
var collateral = regexp.MustCompile(`(?i)connection (was )?(closed|reset|refused|aborted)( by peer)?|remote process exited|ncclRemoteError|` +
	`ncclSystemError|broken pipe|socket ?timeout|timed out waiting|watchdog caught collective operation timeout|` +
	`NCCL communicator was aborted|collective operation timeout|DistNetworkError|connectFullMesh failed|` +
	`Timed out after \d+ms|peer closed|EOFError: .*store|ChildFailedError|SignalException|TCPStore|heartbeat monitor`)

// tree is the folder of a synced tree.
var tree = regexp.MustCompile(regexp.QuoteMeta(agent.Trees) + "/[0-9a-f]{64}/")

// InTree is text in which files of a synced tree are named as the repository names them.
func InTree(text string) string { return tree.ReplaceAllString(text, "") }

// Cause is the rank that failed first by a fault of its own.
type Cause struct {
	Rank agent.RankStatus
	// Known is false where only consequences are seen.
	Known bool
}

// Find is the earliest failed rank whose error is not collateral: not the
// consequence of a peer's end or of a signal of ours. ok is false where no rank failed.
//
// Times are those of the first line of a Python error, else of the exit: a rank
// that prints its error and is slow to end must not be blamed later than the peers
// that its silence ended.
func Find(statuses []agent.JobStatus) (cause Cause, ok bool) {
	var own, others []agent.RankStatus
	for _, status := range statuses {
		for _, rank := range status.Ranks {
			switch {
			case rank.Ended.IsZero() || rank.Exit == (agent.Exit{}):
			case isOwn(rank):
				own = append(own, rank)
			default:
				others = append(others, rank)
			}
		}
	}
	byTime := func(a, b agent.RankStatus) int {
		return cmp.Or(failedAt(a).Compare(failedAt(b)), cmp.Compare(a.Rank, b.Rank))
	}
	if len(own) > 0 {
		return Cause{Rank: slices.MinFunc(own, byTime), Known: true}, true
	}
	// A rank that ended by itself says more than one that we ended.
	if i := slices.IndexFunc(others, func(r agent.RankStatus) bool { return !r.Stopped }); i >= 0 {
		others = slices.DeleteFunc(others, func(r agent.RankStatus) bool { return r.Stopped })
	}
	if len(others) > 0 {
		return Cause{Rank: slices.MinFunc(others, byTime)}, true
	}
	return Cause{}, false
}

func failedAt(rank agent.RankStatus) time.Time {
	if rank.Python != nil && !rank.Python.Seen.IsZero() {
		return rank.Python.Seen
	}
	return rank.Ended
}

// isOwn is true of a failure that is the rank's own.
func isOwn(rank agent.RankStatus) bool {
	if rank.Exit.OutOfMemory || rank.Exit.Error != "" {
		return true
	}
	if rank.Python != nil {
		said := rank.Python.Type + ": " + rank.Python.Message
		if collateral.MatchString(said) || rank.Python.Type == "KeyboardInterrupt" || rank.Python.Type == "SystemExit" {
			return false
		}
		return true
	}
	// The last words of a rank that no exception ended, as of an abort in NCCL.
	const words = 8
	return !rank.Stopped && !collateral.MatchString(strings.Join(rank.Tail[max(0, len(rank.Tail)-words):], "\n"))
}

// Err is the cause as an error: which rank, how it ended, where in the code, and its last
// lines as the error's tail. record is the folder of the rank's log.
func (c Cause) Err(record string) error {
	reason := fail.RankFailed
	if c.Rank.Exit.OutOfMemory {
		reason = fail.OutOfMemory
	}
	var text strings.Builder
	fmt.Fprintf(&text, "training: rank %d on node %d %s, want exit code 0", c.Rank.Rank, c.Rank.Node, Describe(c.Rank.Exit))
	if p := c.Rank.Python; p != nil {
		fmt.Fprintf(&text, ": %s", strings.TrimSuffix(p.Type+": "+p.Message, ": "))
		if p.File != "" {
			fmt.Fprintf(&text, " (%s:%d)", p.File, p.Line)
		}
	}
	if !c.Known {
		text.WriteString("; it lost its peers, and no rank shows an error of its own")
	}
	// People know the files of the repository by their paths in it.
	err := fail.Because(reason, errors.New(InTree(text.String())))
	if len(c.Rank.Tail) > 0 {
		tail := make([]string, len(c.Rank.Tail))
		for i, line := range c.Rank.Tail {
			tail[i] = InTree(line)
		}
		err = fail.WithTail(err, tail)
	}
	if reason == fail.OutOfMemory {
		return fail.Advise(err, "raise resources.limits.memory in the cluster file, or use a smaller batch, fewer workers or offloading")
	}
	return fail.Advise(err, "the whole log of the rank is %s/rank-%d.log on node %d", record, c.Rank.Rank, c.Rank.Node)
}

// Describe is how a process ended, as in "exited with 1".
func Describe(exit agent.Exit) string {
	switch {
	case exit.Error != "":
		return "could not be started: " + exit.Error
	case exit.OutOfMemory:
		return "was killed for memory"
	case exit.Signal != "":
		return "was ended by " + exit.Signal
	}
	return fmt.Sprintf("exited with %d", exit.Code)
}
