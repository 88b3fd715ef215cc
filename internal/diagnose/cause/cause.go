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
	`timed? ?out after \d+ ?(ms|seconds)|timeout caused pair closure|peer closed|EOFError: .*store|ChildFailedError|SignalException|TCPStore|heartbeat monitor`)

var (
	// inUse matches an error of the rank that should listen, in words that otherwise mean a lost peer.
	inUse = regexp.MustCompile(`(?i)EADDRINUSE|address already in use`)
	// fromTorch matches the types of the errors that torch raises on a rank that lost a peer. Errors of other types are about
	// connections of the training's own, to services or to its processes.
	fromTorch = regexp.MustCompile(`^(RuntimeError|EOFError|torch\.[\w.]+|\w*(Dist\w*Error|ChildFailedError|SignalException))$`)
	// waited matches the error of a rank that waited for another one in vain.
	waited = regexp.MustCompile(`(?i)timed? ?out`)
	// diskFull matches the errors of programs on a full disk.
	diskFull = regexp.MustCompile(`\b(No space left on device|Disk quota exceeded)\b`)
	// gpuMemory matches the errors of torch, CUDA and cuBLAS on a full GPU.
	// noGPU matches what torch reports if it is built without CUDA or NCCL, or sees no GPU (distributed_c10d.py,
	// ProcessGroupNCCL.cpp, torch/cuda/__init__.py, CUDAFunctions.cpp).
	noGPU = regexp.MustCompile(`doesn't have NCCL built in|only supported with GPUs, no GPUs found|not compiled with CUDA enabled|` +
		`No CUDA GPUs are available|Found no NVIDIA driver`)
	gpuMemory = regexp.MustCompile(`^torch\.(cuda\.)?OutOfMemoryError\b|(CUDA|HIP)( error:)? out of memory|CUBLAS_STATUS_ALLOC_FAILED`)
)

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
	// Waiting is the first rank that waited for Rank until a timeout, if Rank alone shows no error; else nil.
	Waiting *agent.RankStatus
}

// Culprit is the rank of a cause as Leases and receipts have it.
type Culprit struct {
	Rank   int                `json:"rank"`
	Node   int                `json:"node"`
	Exit   agent.Exit         `json:"exit"`
	Python *agent.PythonError `json:"python,omitempty"`
}

// mostTraceback is the longest traceback that an agent keeps, in bytes. All annotations of a Lease have 256 KiB.
const mostTraceback = 20 << 10

// Culprit is the rank alone. It omits a traceback that no agent wrote: ranks can forge what an agent answers.
func (c Cause) Culprit() *Culprit {
	culprit := &Culprit{Rank: c.Rank.Rank, Node: c.Rank.Node, Exit: c.Rank.Exit, Python: c.Rank.Python}
	if p := culprit.Python; p != nil && len(strings.Join(p.Traceback, "")) > mostTraceback {
		python := *p
		python.Traceback, culprit.Python = nil, &python
	}
	return culprit
}

// Find is the failed rank with the earliest error that is not the consequence of a peer's end or of the agent's signal. ok is false if no
// rank failed. A Python error counts from its first line: a rank may print it and end after the peers that it brought down.
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
		return Cause{Rank: *first(func(r agent.RankStatus) bool { return originOf(r) == best }), Known: true}, true
	}
	lost := first(func(r agent.RankStatus) bool { return !r.Stopped })
	if lost == nil { // the agent stopped all of them
		lost = first(func(agent.RankStatus) bool { return true })
	}
	cause = Cause{Rank: *lost, Left: leftBefore(statuses, failedAt(*lost))}
	if cause.Left != nil {
		return cause, true
	}
	waiting := first(func(r agent.RankStatus) bool { return waited.MatchString(lastWords(r)) })
	silent := slices.DeleteFunc(failed, func(r agent.RankStatus) bool {
		return !r.Stopped || ends(r) || collateral.MatchString(lastWords(r))
	})
	// If some of them were seen at the rendezvous, the others wait for the rest.
	if absent := func(r agent.RankStatus) bool { return r.Rendezvous != agent.Arrived }; slices.ContainsFunc(silent, absent) {
		silent = slices.DeleteFunc(silent, func(r agent.RankStatus) bool { return !absent(r) })
	}
	if waiting != nil && len(silent) == 1 {
		cause = Cause{Rank: silent[0], Waiting: waiting}
	}
	return cause, true
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
	if ends(rank) && !rank.Python.Seen.IsZero() {
		return rank.Python.Seen
	}
	return rank.Ended
}

// origin is where a rank's failure comes from.
type origin int

const (
	// consequence of another rank's end, or of the agent's signal.
	consequence origin = iota
	// doubtful is an error of the rank's own next to a lost connection: either may have come of the other.
	doubtful
	own
)

// originOf judges a failed rank by its last words. The error with which a chain of exceptions began counts more than the last
// one: trainings wrap a lost peer in an error of their own, and lose their peers while they clean up after one.
func originOf(rank agent.RankStatus) origin {
	if rank.Exit.OutOfMemory || rank.Exit.Error != "" {
		return own
	}
	p := rank.Python
	if !ends(rank) {
		if rank.Stopped || collateral.MatchString(lastWords(rank)) {
			return consequence
		}
		return own
	}
	if rank.Stopped && (p.Type == "KeyboardInterrupt" || p.Type == "SystemExit") {
		return consequence
	}
	last := originOfError(p.Type, text(p))
	if p.First == "" {
		return last
	}
	kind, _, _ := strings.Cut(p.First, ": ")
	first := originOfError(kind, p.First)
	if first == consequence {
		return consequence
	}
	return max(doubtful, min(first, last))
}

func originOfError(kind, text string) origin {
	switch {
	case !collateral.MatchString(text) || inUse.MatchString(text):
		return own
	case fromTorch.MatchString(kind):
		return consequence
	}
	return doubtful
}

// ends reports whether the Python error ended the rank. A rank that printed other lines since then had handled it, unless it
// exited as an uncaught error does: the lines belong to its message.
func ends(rank agent.RankStatus) bool {
	p := rank.Python
	return p != nil && (rank.Exit.Code == 1 && !rank.Stopped || len(rank.Tail) == 0 ||
		slices.ContainsFunc(rank.Tail, func(line string) bool { return strings.Contains(line, p.Type) }))
}

func text(p *agent.PythonError) string { return strings.TrimSuffix(p.Type+": "+p.Message, ": ") }

// lastWords are the error that ended a rank, or the last lines of one without an exception, for example after an abort in NCCL.
func lastWords(rank agent.RankStatus) string {
	if ends(rank) {
		return text(rank.Python)
	}
	const words = 8
	return strings.Join(rank.Tail[max(0, len(rank.Tail)-words):], "\n")
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
	if j.Run != "" {
		return fmt.Sprintf("mlenv logs %s --rank=%d -n %s", j.Run, rank, j.Namespace)
	}
	return j.Log(node, fmt.Sprintf("rank-%d.log", rank))
}

// Log is the command that shows a log in the record, from anywhere.
func (j Job) Log(node int, name string) string {
	switch {
	case j.Run != "": // the nodes will be gone
		return fmt.Sprintf("mlenv fetch %s %s/%s -n %s   # the whole log", j.Run, j.Record, name, j.Namespace)
	case j.Environment != "":
		return fmt.Sprintf("mlenv shell %d --name=%s -n %s -- cat %s/%s   # the whole log", node, j.Environment, j.Namespace, j.Record, name)
	}
	return fmt.Sprintf("the whole log is %s/%s on node %d", j.Record, name, node)
}

// Symptom is how the rank ended, and its Python error: "exited with 1, want exit code 0: ValueError: ...".
func (c Cause) Symptom() string {
	var text strings.Builder
	text.WriteString(Describe(c.Rank.Exit) + ", want exit code 0")
	describePython(&text, c.Rank.Python)
	return InTree(text.String())
}

// Error is the error of a training that Cause ended.
type Error struct {
	Cause
	error
}

// Err is the cause as an Error with the rank, its exit, the place in the code, and its last lines as the error's tail.
func (c Cause) Err(job Job) error {
	reason, next := fail.RankFailed, job.log(c.Rank.Node, c.Rank.Rank)
	var said strings.Builder
	if w := c.Waiting; w != nil {
		fmt.Fprintf(&said, "training: the others waited for rank %d on node %d, which showed no error and had to be stopped; rank %d on node %d %s", c.Rank.Rank, c.Rank.Node, w.Rank, w.Node, Describe(w.Exit))
		describePython(&said, w.Python)
	} else {
		fmt.Fprintf(&said, "training: rank %d on node %d %s", c.Rank.Rank, c.Rank.Node, c.Symptom())
	}
	switch {
	case c.Rank.Exit.OutOfMemory:
		reason, next = fail.OutOfMemory, "raise resources.limits.memory in the cluster file, or use a smaller batch, fewer workers or offloading"
	case c.Known && c.Rank.Python != nil && gpuMemory.MatchString(text(c.Rank.Python)):
		reason, next = fail.OutOfMemory, "use a smaller batch, activation checkpointing, a higher ZeRO stage or offloading, or more GPUs"
	case c.Known && diskFull.MatchString(lastWords(c.Rank)):
		reason, next = fail.DiskFull, "delete obsolete files, such as old checkpoints, or have the claim expanded"
	case c.Known && c.Rank.Python != nil && noGPU.MatchString(text(c.Rank.Python)):
		next = "torch sees no GPU, as check-fabric's log says too: give the nodes GPUs, use an image whose torch is built for CUDA and fits " +
			"the driver, or have the script use gloo"
	case c.Known && c.Rank.Python != nil && c.Rank.Python.InTree != "":
		next = fmt.Sprintf("name the script as a module, -m PACKAGE.MODULE, or give the ranks the variable PYTHONPATH=%s", c.Rank.Python.InTree)
	case c.Left != nil:
		said.WriteString("; " + c.Leaving())
		next = fmt.Sprintf("let every rank take the same number of steps; why rank %d ended: %s", c.Left.Rank, job.log(c.Left.Node, c.Left.Rank))
	case !c.Known && c.Waiting == nil:
		said.WriteString("; it lost its peers, and no rank shows an error of its own")
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

func describePython(out *strings.Builder, p *agent.PythonError) {
	if p == nil {
		return
	}
	out.WriteString(": " + text(p))
	if p.File != "" {
		fmt.Fprintf(out, " (%s:%d)", p.File, p.Line)
	}
	switch p.InTree {
	case "":
	case ".":
		out.WriteString("; the repository's top folder has that module, and Python looks in the script's folder")
	default:
		fmt.Fprintf(out, "; the repository has that module in %s, where Python does not look", p.InTree)
	}
	if p.First != "" {
		out.WriteString(", which began with " + p.First)
	}
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
