// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// trainTask is the task of the training in the pipeline.
const trainTask = "train"

// States of a run in addition to the verdicts of receipts.
const (
	running    = "Running"
	cancelling = "Cancelling"
	cancelled  = "Cancelled"
)

// runInfo is what the cluster has of a run: its PipelineRun, its receipt, or both.
type runInfo struct {
	name string
	// run is nil if it was deleted; then there are no tasks either.
	run   *v1.PipelineRun
	tasks []run.TaskRun
	// receipt is nil if there is none yet. Without run it is what the steps have noted so far, if unfinished is true.
	receipt *receipt.Receipt
	// journal is what the steps have noted, nil for nothing.
	journal *receipt.Journal
	// at is where the run is or was.
	at provider
	// unfinished reports that the run has no receipt yet although its PipelineRun is not there, forbidden that the user may not read that.
	unfinished, forbidden bool
}

// setJournal takes what the run's ConfigMap holds.
func (r *runInfo) setJournal(m receipt.Journal) {
	r.journal, r.receipt = &m, m.Receipt
	r.forbidden = r.forbidden || m.Kept // there is nothing that would judge the run before its receipt does
	if r.run != nil || r.receipt != nil {
		return
	}
	left := r.receiptSoFar()
	left.Verdict, r.receipt, r.unfinished = "", &left, true
}

// standing returns how the run stands, by its receipt and what the user may read of Tekton's objects.
func (r runInfo) standing() receipt.Standing {
	seen := receipt.Seen{Tasks: r.tasks}
	switch {
	case r.run != nil:
		seen.Run = run.FromPipelineRun(r.run)
	case !r.forbidden:
		seen.End = &receipt.End{Reason: fail.Cancelled, Message: receipt.Deleted + "; the reaper writes its receipt within two minutes"}
	}
	return r.savedJournal().Verdict(seen)
}

// savedJournal returns what the run's ConfigMap holds, zero for nothing.
func (r runInfo) savedJournal() receipt.Journal {
	switch {
	case r.journal != nil:
		return *r.journal
	case r.receipt != nil:
		return receipt.Journal{Receipt: r.receipt}
	}
	return receipt.Journal{}
}

// receiptSoFar returns the receipt, or as much of it as the steps have noted.
func (r runInfo) receiptSoFar() receipt.Receipt {
	if r.receipt != nil {
		return *r.receipt
	}
	return r.savedJournal().ToReceipt(r.standing(), time.Time{})
}

// uid is also the ID of the run's job.
func (r runInfo) uid() string {
	if r.run != nil {
		return string(r.run.UID)
	}
	return r.receipt.RunUID
}

func (r runInfo) param(name string) string { return launch.ValueOf(r.run, name) }

// maxAttempts returns how often the training may be started, 0 if that is not known.
func (r runInfo) maxAttempts() int {
	if r.run == nil {
		return 0
	}
	restarts, _ := strconv.Atoi(r.param("max-restarts")) // an installed pipeline without the param restarts nothing
	return restarts + 1
}

func (r runInfo) environment() string {
	if r.receipt != nil {
		return r.receipt.Environment
	}
	if r.journal != nil && r.journal.Environment != "" {
		return r.journal.Environment
	}
	return cmp.Or(r.param("name"), "ml-dev-env")
}

// series returns the first of the runs that resume each other: the scripts of all of them read its checkpoints.
func (r runInfo) series() string {
	first := ""
	if r.receipt != nil && r.receipt.Training != nil {
		first = r.receipt.Training.ResumedFrom
	}
	if first == "" {
		given, _ := r.at.givenParams(r) // without them the run resumes nothing
		first = resumedFrom(given)
	}
	return cmp.Or(first, r.name)
}

// checkpoints returns the folder in which the documented scripts keep the checkpoints of r.
func (r runInfo) checkpoints() string { return "checkpoints/" + r.series() }

// resumeFrom changes values so that a run continues from the checkpoints of r: it sets agent.ResumeVariable, and the commit of r
// unless given names another one, or the folder of this machine is trained as it is now.
func (r runInfo) resumeFrom(values, given map[string][]string) {
	if given["revision"] == nil && given["repo-url"] == nil && !isFolder(values) {
		if commit := r.receiptSoFar().Commit; commit != "" {
			values["revision"] = []string{commit}
		}
	}
	first := cmp.Or(resumedFrom(values), r.name)
	env := slices.DeleteFunc(slices.Clone(values["env"]), isResumeVariable)
	values["env"] = append(env, agent.ResumeVariable+"="+first)
}

// resumedFrom returns the value of agent.ResumeVariable, "" for none.
func resumedFrom(values map[string][]string) string {
	if i := slices.IndexFunc(values["env"], isResumeVariable); i >= 0 {
		return strings.TrimPrefix(values["env"][i], agent.ResumeVariable+"=")
	}
	return ""
}

func isResumeVariable(item string) bool { return strings.HasPrefix(item, agent.ResumeVariable+"=") }

func (r runInfo) started() time.Time {
	switch {
	case r.run == nil:
		return r.receipt.Started
	case r.run.Status.StartTime != nil:
		return r.run.Status.StartTime.Time
	}
	return r.run.CreationTimestamp.Time
}

func (r runInfo) state() string {
	v := r.standing()
	stopped := r.run != nil && (r.run.IsCancelled() || r.run.IsGracefullyCancelled())
	switch {
	case r.unfinished && !r.forbidden, v.Verdict == "" && stopped:
		return cancelling
	case v.Verdict == "":
		return running
	case v.Verdict != receipt.Succeeded && (stopped || v.Reason == fail.Cancelled):
		return cancelled
	}
	return string(v.Verdict)
}

// nodes returns the number of nodes in the receipt, or else the one that provision noted, or else the requested one.
func (r runInfo) nodes() int {
	known := r.receiptSoFar()
	if len(known.Nodes) > 0 {
		return len(known.Nodes)
	}
	if part := r.savedJournal().EntryOf("provision"); part != nil && part.Nodes > 0 {
		return part.Nodes // 0 requests the number of the cluster file
	}
	if t := known.Training; t != nil {
		return t.Nodes
	}
	if r.run == nil {
		return 0
	}
	n, _ := strconv.Atoi(r.param("nodes"))
	return n
}

// provider is where a run is or was: a cluster, or this machine. What finds a run chooses it, and nothing else asks which one it is.
type provider interface {
	// namespace is "" on this machine, which has none; then local is true.
	namespace(r runInfo) (name string, local bool)
	// workspace is the path of the workspace, as the user of the run sees it.
	workspace() string
	// inProgress reports whether the run's script may still read and write files.
	inProgress(r runInfo) bool
	// givenParams returns the params of the run. Errors: InvalidInput if they are gone.
	givenParams(r runInfo) (map[string][]string, error)
	// nodes connects to the nodes of a run in progress.
	nodes(ctx context.Context, r runInfo) (nodes.Set, error)
	// claims returns what has the run's workspace.
	claims(ctx context.Context, r runInfo) ([]fetch.Claim, error)
	// showLogs shows the logs of the run.
	showLogs(cmd *cobra.Command, o *logsOptions, r runInfo) error
	// remove deletes what is left of a run that has ended, and names it.
	remove(ctx context.Context, r runInfo) (what string, err error)
	// writer reports who writes the receipt of the run, and when.
	writer(r runInfo) string
	// stop returns the command that ends the run, and resume the one that continues from its checkpoints.
	stop(r runInfo) string
	resume(r runInfo) string
}

// displayName names the run in messages.
func (r runInfo) displayName() string {
	if namespace, local := r.at.namespace(r); !local {
		return "run " + namespace + "/" + r.name
	}
	return "local run " + r.name
}

// namespaceFlag returns the flag that chooses the namespace of the run in a command, "" for a local run.
func (r runInfo) namespaceFlag() string {
	if namespace, local := r.at.namespace(r); !local {
		return " -n " + namespace
	}
	return ""
}

// isTraining reports whether the run is a training of mlenv train, which has no PipelineRun.
func (r runInfo) isTraining() bool { return r.journal != nil && r.journal.Kept }

type logsOptions struct {
	kube   kube.Flags
	follow bool
	rank   int
	task   string
	tail   int64
	// since is how old lines may be, 0 for any age.
	since time.Duration
	// again reports that the run was read again because no node had the rank.
	again bool
}

// record returns where the run's record lies, by its receipt or as the training has noted it; nil if none has started.
func (r runInfo) record() *receipt.Record {
	if r.receipt != nil && r.receipt.Record != nil {
		return r.receipt.Record
	}
	if r.journal != nil {
		return r.journal.Record()
	}
	return nil
}

// attempt returns the newest attempt of the training, 0 or 1 for the first.
func (r runInfo) attempt() int {
	if r.receipt != nil && len(r.receipt.Attempts) > 0 {
		return len(r.receipt.Attempts)
	}
	if r.journal != nil {
		if part := r.journal.EntryOf(trainTask); part != nil {
			return part.Attempt
		}
	}
	return 0
}

// nodeOf returns the node of a rank, -1 for a rank that the training does not have, and how many it has. A receipt leaves out healthy
// ranks of large trainings, and has none if nobody could ask the nodes.
func (r runInfo) nodeOf(rank int) (node, ranks int) {
	var training *receipt.Training
	order := []int(nil)
	if r.journal != nil {
		if part := r.journal.EntryOf(trainTask); part != nil {
			training, order = part.Training, part.Order
		}
	}
	if left := r.receipt; left != nil {
		if i := slices.IndexFunc(left.Ranks, func(one receipt.Rank) bool { return one.Rank == rank }); i >= 0 {
			return left.Ranks[i].Node, 0
		}
		ranks, training = len(left.Ranks), cmp.Or(left.Training, training)
	}
	if training == nil || training.Nodes <= 0 || training.RanksPerNode <= 0 {
		return -1, ranks
	}
	ranks = training.Nodes * training.RanksPerNode
	if rank >= ranks {
		return -1, ranks
	}
	node = rank / training.RanksPerNode
	if len(order) == training.Nodes {
		node = order[node]
	}
	return node, ranks
}

// askTime bounds the questions to the nodes.
const askTime = 10 * time.Second
