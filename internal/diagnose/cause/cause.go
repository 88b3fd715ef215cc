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

// collateral matches what gloo, NCCL, torch.distributed and the kernel print on a rank that lost a peer.
var collateral = regexp.MustCompile(`(?i)connection (was )?(closed|reset|refused|aborted)( by peer)?|remote process exited|ncclRemoteError|` +
	`ncclSystemError|broken pipe|socket ?timeout|timed out waiting|watchdog caught collective operation timeout|` +
	`NCCL communicator was aborted|collective operation timeout|DistNetworkError|connectFullMesh failed|` +
	`Timed out after \d+ms|peer closed|EOFError: .*store|ChildFailedError|SignalException|TCPStore|heartbeat monitor`)

// tree matches the folder of a synced tree.
var tree = regexp.MustCompile(regexp.QuoteMeta(agent.Trees) + "/[0-9a-f]{64}/")

// InTree shortens the paths of a synced tree to those of the repository.
func InTree(text string) string { return tree.ReplaceAllString(text, "") }

// Cause is the rank whose own error came first.
type Cause struct {
	Rank agent.RankStatus
	// Known is false if only consequences are visible.
	Known bool
	// Left is the first rank that exited with 0 although Rank still needed it, nil if there is none or if the cause is known.
	Left *agent.RankStatus
}

// Find is the failed rank with the earliest error that is not the consequence of a peer's end or of the agent's signal. ok
// is false if no rank failed.
//
// The time of a Python error is that of its first line, otherwise that of the exit, because a rank may print its error
// and end after the peers that it brought down.
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
	// Ranks that the agent did not stop come first.
	if i := slices.IndexFunc(others, func(r agent.RankStatus) bool { return !r.Stopped }); i >= 0 {
		others = slices.DeleteFunc(others, func(r agent.RankStatus) bool { return r.Stopped })
	}
	if len(others) > 0 {
		first := slices.MinFunc(others, byTime)
		return Cause{Rank: first, Left: leftBefore(statuses, failedAt(first))}, true
	}
	return Cause{}, false
}

// closing is how long a rank may take to exit after it has closed its connections, for example to release its GPU.
const closing = 5 * time.Second

// leftBefore is the first rank that exited with 0 before another one failed for want of it, nil for none.
func leftBefore(statuses []agent.JobStatus, failed time.Time) (left *agent.RankStatus) {
	for _, status := range statuses {
		for _, rank := range status.Ranks {
			if !rank.Ended.IsZero() && rank.Exit == (agent.Exit{}) && !rank.Stopped && rank.Ended.Before(failed.Add(closing)) && (left == nil || rank.Ended.Before(left.Ended)) {
				left = &rank
			}
		}
	}
	return left
}

// Leaving is a clause about Left.
func (c Cause) Leaving() string {
	return fmt.Sprintf("rank %d on node %d exited with 0 after %s, although the others still needed it",
		c.Left.Rank, c.Left.Node, c.Left.Ended.Sub(c.Left.Started).Round(time.Second))
}

func failedAt(rank agent.RankStatus) time.Time {
	if rank.Python != nil && !rank.Python.Seen.IsZero() {
		return rank.Python.Seen
	}
	return rank.Ended
}

// isOwn reports whether a failure is the rank's own.
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
	// The last lines of a rank without an exception, for example after an abort in NCCL.
	const words = 8
	return !rank.Stopped && !collateral.MatchString(strings.Join(rank.Tail[max(0, len(rank.Tail)-words):], "\n"))
}

// Job is where a failed rank ran.
type Job struct {
	// Run is "" for a user's training in a kept environment; Environment is "" for pods of others.
	Run, Environment, Namespace string
	// Record is the folder of the job's logs on its nodes.
	Record string
}

// log is the command that shows the whole log of the rank.
func (j Job) log(node, rank int) string {
	switch {
	case j.Run != "": // the nodes will be gone
		return fmt.Sprintf("mlenv logs %s --rank=%d -n %s", j.Run, rank, j.Namespace)
	case j.Environment != "":
		return fmt.Sprintf("mlenv shell %d --name=%s -n %s -- cat %s/rank-%d.log", node, j.Environment, j.Namespace, j.Record, rank)
	}
	return fmt.Sprintf("the whole log of the rank is %s/rank-%d.log on node %d", j.Record, rank, node)
}

// Err is the cause as an error with the rank, its exit, the place in the code, and its last lines as the error's tail.
func (c Cause) Err(job Job) error {
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
	switch {
	case c.Left != nil:
		text.WriteString("; " + c.Leaving())
	case !c.Known:
		text.WriteString("; it lost its peers, and no rank shows an error of its own")
	}
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
	if c.Left != nil {
		return fail.Advise(err, "let every rank take the same number of steps; why rank %d ended: %s", c.Left.Rank, job.log(c.Left.Node, c.Left.Rank))
	}
	return fail.Advise(err, "%s", job.log(c.Rank.Node, c.Rank.Rank))
}

// Describe is how a process ended, for example "exited with 1".
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
