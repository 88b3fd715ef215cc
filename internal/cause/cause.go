// SPDX-License-Identifier: Apache-2.0

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
	"github.com/ml-dev-env/ml-dev-env/internal/known"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// tree matches the folder of a synced tree or of a job, on a claim or in the folder of a local run in place of one.
// Behind a quote or a bracket its path may contain spaces, but a quoted command has several paths.
var tree = regexp.MustCompile(`(?:(File "|\()/[^"'(),:;<>\n]*|(["'])/(?:[^"'(),:;<>\s]| [^/"'(),:;<>\s])*|/[^\s"'(),:;<>]*)?` +
	`/\.mlenv/(?:trees/[0-9a-f]{64}|work/[A-Za-z0-9][\w.-]{0,127})/`)

// InTree shortens paths in a synced tree, and in a job's working directory, to paths in the repository.
func InTree(text string) string { return tree.ReplaceAllString(text, "$1$2") }

// Cause is the rank whose own error came first.
type Cause struct {
	Rank agent.RankStatus
	// Known is false if only consequences are visible.
	Known bool
	// Left is the first rank that exited with 0 although Rank still needed it, nil if there is none or if the cause is known.
	Left *agent.RankStatus
	// Waiting is the first rank that waited for Rank until a timeout, if Rank alone shows no error or was behind; else nil.
	Waiting *agent.RankStatus
	// Behind is what shows which ranks the others waited for in a collective, or that ranks waited in two, "" if nothing does.
	Behind string
	// Stalled says that all ranks waited in the same collective, "" if they did not.
	Stalled string
}

// Culprit is the rank of a cause as receipts have it.
type Culprit struct {
	Rank   int                `json:"rank"`
	Node   int                `json:"node"`
	Exit   agent.Exit         `json:"exit"`
	Python *agent.PythonError `json:"python,omitempty"`
}

// mostTraceback is the longest traceback that an agent keeps, in bytes.
const mostTraceback = 20 << 10

// Culprit returns the rank alone, with the error that ended it. It omits a traceback that no agent wrote: ranks can forge what an agent
// answers.
func (c Cause) Culprit() *Culprit {
	culprit := &Culprit{Rank: c.Rank.Rank, Node: c.Rank.Node, Exit: c.Rank.Exit}
	if endedByError(c.Rank) {
		culprit.Python = c.Rank.Python
	}
	if p := culprit.Python; p != nil && len(strings.Join(p.Traceback, "")) > mostTraceback {
		python := *p
		python.Traceback, culprit.Python = nil, &python
	}
	return culprit
}

// HowFailed returns how the culprit failed: by its own error, even if a signal ended it then.
func (c Culprit) HowFailed() string {
	if c.Python != nil && c.Exit.Signal == "SIGTERM" {
		return "failed"
	}
	return Describe(c.Exit)
}

// Find returns the failed rank with the earliest error that is not the consequence of a peer's end or of the agent's signal. ok is false
// if no rank failed. A Python error counts from its first line: a rank may print it and end after the peers that it brought down. Of
// ranks with one and the same error, one that was not stopped comes first, and of those whose errors name each other the one that most
// of them name.
func Find(statuses []agent.JobStatus) (cause Cause, ok bool) {
	var failed []agent.RankStatus
	best := consequence
	for _, status := range statuses {
		for _, rank := range status.Ranks {
			if rank.Ended.IsZero() || rank.Exit == (agent.Exit{}) {
				continue
			}
			failed = append(failed, rank)
			best = max(best, originOf(rank))
		}
	}
	if len(failed) == 0 {
		return Cause{}, false
	}
	byTime := func(a, b agent.RankStatus) int {
		return cmp.Or(failedAt(a).Compare(failedAt(b)), cmp.Compare(a.Rank, b.Rank))
	}
	first := func(choose func(agent.RankStatus) bool) *agent.RankStatus {
		chosen := slices.DeleteFunc(slices.Clone(failed), func(r agent.RankStatus) bool { return !choose(r) })
		if len(chosen) == 0 {
			return nil
		}
		return new(slices.MinFunc(chosen, byTime))
	}
	if best > consequence {
		found := first(func(r agent.RankStatus) bool { return originOf(r) == best })
		if alike := first(func(r agent.RankStatus) bool {
			return found.Stopped && !r.Stopped && originOf(r) == best && lastWords(r) == lastWords(*found)
		}); alike != nil {
			found = alike
		}
		if names, _ := known.Words().Names(lastWords(*found)); names != "" {
			odd := blamed(failed, false)
			found = cmp.Or(first(func(r agent.RankStatus) bool { return originOf(r) == best && slices.Contains(odd, r.Rank) }), found)
		}
		return Cause{Rank: *found, Known: true}, true
	}
	lost := first(func(r agent.RankStatus) bool { return !r.Stopped })
	if lost == nil { // the agent stopped all of them
		lost = first(func(agent.RankStatus) bool { return true })
	}
	cause = Cause{Rank: *lost, Left: leftBefore(statuses, failedAt(*lost))}
	if cause.Left != nil {
		return cause, true
	}
	waiting := first(waitTimedOut)
	if waiting == nil {
		return cause, true
	}
	behind, late := absent(failed)
	if behind == "" {
		behind, late = desync(lastActivities(statuses))
	}
	behind = cmp.Or(behind, waitedApart(failed))
	cause.Behind = behind
	if len(late) == 1 {
		at := func(r agent.RankStatus) bool { return r.Rank == late[0] }
		others := first(func(r agent.RankStatus) bool { return !at(r) && waitTimedOut(r) })
		if rank := first(at); rank != nil && others != nil {
			return Cause{Rank: *rank, Waiting: others, Behind: behind}, true
		}
	}
	if behind != "" {
		return cause, true
	}
	if cause.Stalled = together(statuses); cause.Stalled != "" {
		return cause, true
	}
	silent := slices.DeleteFunc(failed, func(r agent.RankStatus) bool {
		return !r.Stopped || endedByError(r) || originOfAbort(lastWords(r)) == consequence
	})
	// If some of them were seen at the rendezvous, the others wait for the rest.
	if unseen := func(r agent.RankStatus) bool { return r.Rendezvous != agent.Arrived }; slices.ContainsFunc(silent, unseen) {
		silent = slices.DeleteFunc(silent, func(r agent.RankStatus) bool { return !unseen(r) })
	}
	if len(silent) == 1 {
		cause = Cause{Rank: silent[0], Waiting: waiting}
	}
	return cause, true
}

// closing is how long a rank may take to exit after it has closed its connections, for example to release its GPU.
const closing = 5 * time.Second

// leftBefore returns the first rank that exited with 0 before another one failed for want of it, nil for none.
func leftBefore(statuses []agent.JobStatus, failed time.Time) (left *agent.RankStatus) {
	for _, status := range statuses {
		for _, rank := range status.Ranks {
			if !rank.Ended.IsZero() && rank.Exit == (agent.Exit{}) && !rank.Stopped && rank.Ended.Before(failed.Add(closing)) &&
				(left == nil || rank.Ended.Before(left.Ended)) {
				left = &rank
			}
		}
	}
	return left
}

// Leaving returns a clause about Left. A program that logs its error may exit with 0 all the same.
func (c Cause) Leaving() string {
	said := fmt.Sprintf("rank %d on node %d exited with 0 after %s, although the others still needed it",
		c.Left.Rank, c.Left.Node, c.Left.Ended.Sub(c.Left.Started).Round(time.Second))
	if endedByError(*c.Left) {
		said += "; its last error is " + strings.TrimPrefix(describe(*c.Left), ": ")
	}
	return said
}

func failedAt(rank agent.RankStatus) time.Time {
	if endedByError(rank) && !rank.Python.Seen.IsZero() {
		return rank.Python.Seen
	}
	return rank.Ended
}

// HeldAfterError returns how long the process of a rank that had failed by an error of its own still ran when the job was stopped: for
// example a non-daemon thread, or a wait for peers at exit, holds it. ok is false if its error is not the last thing that it printed
// before that.
func (c Cause) HeldAfterError(stopped time.Time) (held time.Duration, ok bool) {
	p := c.Rank.Python
	if !c.Known || !c.Rank.Stopped || p == nil || len(p.Traceback) == 0 || p.Seen.IsZero() || !p.Seen.Before(stopped) {
		return 0, false
	}
	tail := slices.DeleteFunc(slices.Clone(c.Rank.Tail), func(line string) bool { return logged.MatchString(line) })
	end := p.Traceback[len(p.Traceback)-1]
	return stopped.Sub(p.Seen), len(tail) > 0 && strings.HasSuffix(tail[len(tail)-1], end)
}

// Job is where a failed rank ran.
type Job struct {
	// Run is "" for a user's training in a kept environment; Environment is "" in a check of the network, Namespace on the user's own
	// machine.
	Run, Environment, Namespace string
	// Record is the folder of the job's logs on its nodes.
	Record string
}

// NamespaceFlag returns the flag that chooses the namespace in a command, "" on the user's own machine.
func (j Job) NamespaceFlag() string {
	if j.Namespace == "" {
		return ""
	}
	return " -n " + j.Namespace
}

// log returns the command that shows the whole log of the rank.
func (j Job) log(node, rank int) string {
	if j.Run != "" {
		return fmt.Sprintf("mlenv logs %s --rank=%d%s", j.Run, rank, j.NamespaceFlag())
	}
	return j.LogCommand(node, fmt.Sprintf("rank-%d.log", rank))
}

// LogCommand returns the command that shows a log in the record, from anywhere.
func (j Job) LogCommand(node int, name string) string {
	switch {
	case j.Run != "": // the nodes will be gone
		return fmt.Sprintf("mlenv fetch %s %s/%s%s   # the whole log", j.Run, j.Record, name, j.NamespaceFlag())
	case j.Environment != "":
		return fmt.Sprintf("mlenv shell %d --name=%s -n %s -- cat %s/%s   # the whole log", node, j.Environment, j.Namespace, j.Record, name)
	}
	return fmt.Sprintf("the whole log is %s/%s on node %d", j.Record, name, node)
}

// Symptom returns how the rank ended, and its error: "exited with 1, want exit code 0: ValueError: ...". A rank that was stopped after its
// own error failed by that.
func (c Cause) Symptom() string {
	how := c.Culprit().HowFailed()
	if how != "failed" {
		how += ", want exit code 0"
	}
	return InTree(how + describe(c.Rank))
}

// NodeFault returns the words of the rank if they show a fault of its Kubernetes node, "" if they do not.
func (c Cause) NodeFault() string {
	words := lastWords(c.Rank)
	if row, ok := known.Words().Find(words); !c.Known || !ok || row.Whose != known.Node {
		return ""
	}
	return fmt.Sprintf("rank %d on it reports: %s", c.Rank.Rank, plainly(words))
}

// Guessed reports whether the reason is only the most probable one.
func (c Cause) Guessed() bool {
	row, _ := known.Words().Find(lastWords(c.Rank))
	return c.Known && row.Probable
}

// Error is the error of a training that Cause ended.
type Error struct {
	Cause
	error
}

// Err returns the cause as an Error with the rank, its exit, the place in the code, and its last lines as the error's tail.
func (c Cause) Err(job Job) error {
	reason, next := fail.RankFailed, job.log(c.Rank.Node, c.Rank.Rank)
	var said strings.Builder
	if w := c.Waiting; w != nil {
		how := "showed no error and had to be stopped"
		if !c.Rank.Stopped {
			how = Describe(c.Rank.Exit)
		}
		fmt.Fprintf(&said, "training: the others waited for rank %d on node %d, which %s; rank %d on node %d %s%s",
			c.Rank.Rank, c.Rank.Node, how, w.Rank, w.Node, Describe(w.Exit), describe(*w))
	} else {
		fmt.Fprintf(&said, "training: rank %d on node %d %s%s", c.Rank.Rank, c.Rank.Node, c.Symptom(), c.lastLine())
	}
	words := ""
	if c.Known {
		words = lastWords(c.Rank)
	}
	found, fromNCCL := nccl.FromError(words, c.Rank.Tail)
	meant := words
	switch p := c.Rank.Python; { // a kill by the kernel leaves no words; it means the same as these
	case c.Rank.Exit.OutOfMemory:
		meant = "std::bad_alloc"
	case c.Known && c.Rank.Exit.Signal == "SIGBUS":
		meant = c.Rank.Exit.Signal
	case c.Known && p != nil && words == errorText(p):
		meant += "\n" + raisedIn(p)
		if p.Message == "" {
			meant += "\n" + p.First
		}
	}
	row, isKnown := known.Words().Find(meant)
	host := unreachable(c.Rank, words)
	here := job.Namespace == "" // on the user's own machine
	advice := row.Next
	if here {
		advice = cmp.Or(row.NextHere, row.Next)
	}
	switch {
	case fromNCCL && row.Reason == "":
		said.WriteString(": " + found.Cause)
		next = found.Next
	case isKnown && advice != "":
		reason, next = cmp.Or(row.Reason, reason), advice
		if row.Means != "" {
			said.WriteString("; " + row.Means)
		}
	case tooMany(words) != "":
		said.WriteString("; " + tooMany(words))
		next = "let the script take RANK, WORLD_SIZE and MASTER_PORT from the launcher, or start it with launcher command"
	case host != "":
		fmt.Fprintf(&said, "; it could not reach %s", host)
		next = "connect this machine with the internet, or have the script read a copy"
		if !here {
			next = fmt.Sprintf("copy what it downloads to /datasets first, in an environment without GPUs (docs/operate/storage.md#copying-data); "+
				"or let the nodes reach %s: network.proxy in the cluster file", host)
		}
	case c.Known && c.Rank.Python != nil && c.Rank.Python.InTree != "":
		next = "give the ranks the variable PYTHONPATH=" + c.Rank.Python.InTree
		if c.Rank.Python.InTree == "." { // the only folder that -m adds
			next = "name the script as a module, -m PACKAGE.MODULE, or " + next
		}
	case c.Rank.Exit.Code == notFound && lastLineOf(c.Rank) != "":
		where := "use an image that has the program"
		if here {
			where = "install the program"
		}
		next = where + ", or name its path; the whole log: " + next
	case c.Left != nil:
		said.WriteString("; " + c.Leaving())
		next = fmt.Sprintf("let every rank take the same number of steps; why rank %d ended: %s", c.Left.Rank, job.log(c.Left.Node, c.Left.Rank))
	case c.Behind != "":
		said.WriteString("; " + c.Behind)
	case c.Stalled != "":
		said.WriteString("; " + c.Stalled)
		next = "NCCL_P2P_DISABLE=1 shows whether the links between the GPUs of a node are broken, and mlenv check-fabric whether the network is"
	case !c.Known && c.Waiting == nil:
		said.WriteString("; it lost its peers, and no rank shows an error of its own")
	}
	if file := c.Rank.TailFile; file != "" {
		fmt.Fprintf(&said, "; it printed nothing, and its last lines are those of %s", file)
		if job.Run != "" && next == job.log(c.Rank.Node, c.Rank.Rank) {
			next = fmt.Sprintf("mlenv fetch %s %s%s", job.Run, file, job.NamespaceFlag())
		}
	}
	err := fail.Because(reason, Error{c, errors.New(InTree(said.String()))})
	if len(c.Rank.Tail) > 0 {
		tail := make([]string, len(c.Rank.Tail))
		for i, line := range c.Rank.Tail {
			tail[i] = InTree(line)
		}
		err = fail.WithTail(err, tail)
	}
	return fail.Advise(err, "%s", next)
}

// Describe returns how a process ended, for example "exited with 1".
func Describe(exit agent.Exit) string {
	switch {
	case exit.Error != "":
		return "could not be started: " + exit.Error
	case exit.OutOfMemory && exit.MemoryLimit > 0:
		return fmt.Sprintf("was killed for memory: all processes on its node share %.1f GiB", float64(exit.MemoryLimit)/(1<<30))
	case exit.OutOfMemory:
		return "was killed for memory"
	case exit.Signal != "":
		return "was ended by " + exit.Signal
	}
	return fmt.Sprintf("exited with %d", exit.Code)
}
