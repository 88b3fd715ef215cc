// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// rawLog returns the output for a log as the rank or the run wrote it, without control characters on a terminal. flush ends it.
func rawLog(cmd *cobra.Command) (out io.Writer, flush func()) {
	if terminal := command.RawTerminal(cmd.OutOrStdout()); terminal != nil {
		plain := plainLog(terminal)
		return plain, plain.Flush
	}
	return cmd.OutOrStdout(), func() {}
}

// isNew reports whether an event is not older than --since. What has no time is new.
func (o *logsOptions) isNew(e launch.Event) bool {
	return o.since == 0 || e.Time.IsZero() || time.Since(e.Time) <= o.since
}

func (c onCluster) showLogs(cmd *cobra.Command, o *logsOptions, r runInfo) error {
	switch {
	case o.rank >= 0:
		out, flush := rawLog(cmd)
		defer flush()
		return o.rankLog(cmd.Context(), out, cmd.ErrOrStderr(), c.clients, r)
	case o.follow && r.run != nil && !r.run.IsDone():
		return o.followTasks(cmd, c.clients, r)
	}
	return o.taskLogs(cmd, c.clients, r)
}

// followTasks ends with the run. If ctx ends, the run continues.
func (o *logsOptions) followTasks(cmd *cobra.Command, clients *kube.Clients, r runInfo) error {
	display := newDisplay(cmd.OutOrStdout(), 0)
	display.width = nil // a log has no last line that changes
	outcome, err := launch.Follow(cmd.Context(), clients, r.run, func(e launch.Event) {
		if (o.task == "" || e.Task == o.task) && o.isNew(e) {
			display.observe(e)
		}
	})
	if err != nil {
		return unfollowed(outcome.Run, err)
	}
	how := humanize.OneLine(fmt.Sprint(runInfo{name: r.name, at: r.at, run: outcome.Run}.state(), " ", outcome.Reason), 100)
	fmt.Fprintf(cmd.ErrOrStderr(), "Run %s has ended: %s%s\n", r.name, how, cmp.Or(outcome.Receipt, &receipt.Receipt{}).WarningClause())
	return nil
}

// taskLogs shows the logs until now, or else the last lines of the failed ranks.
func (o *logsOptions) taskLogs(cmd *cobra.Command, clients *kube.Clients, r runInfo) error {
	out := cmd.OutOrStdout()
	var names []string
	some := false
	var problems []error // a node that does not answer hides no other task's log
	for _, task := range r.tasks {
		names = append(names, task.Task)
		if o.task != "" && task.Task != o.task {
			continue
		}
		err := launch.ReadTaskLog(cmd.Context(), clients, r.run, task, o.tail, func(e launch.Event) {
			if !o.isNew(e) {
				return
			}
			fmt.Fprintf(out, "[%s] %s\n", e.Task, humanize.PlainLine(e.Text))
		})
		switch {
		case err == nil:
			some = true
		case cmd.Context().Err() != nil:
			return err
		case !errors.Is(err, launch.ErrNoLog):
			problems = append(problems, fmt.Errorf("task %s: %w", task.Task, err))
		}
	}
	problem := errors.Join(problems...)
	switch {
	case o.task != "" && r.run != nil && !slices.Contains(names, o.task):
		return command.Usage(fail.Becausef(fail.InvalidInput, "looking for task %s of run %s: want one of those that have run: %s", o.task,
			r.name, strings.Join(names, ", ")))
	case some, problem != nil && r.receipt == nil:
		return problem
	case r.isTraining() && r.unfinished:
		return fail.Advise(fail.Becausef(fail.InvalidInput, "reading the log of run %s: its mlenv train prints it", r.name),
			"mlenv logs %s --rank 0 --follow%s", r.name, r.namespaceFlag())
	case r.receipt == nil:
		return fmt.Errorf("reading the logs of run %s: its pods are gone or have not started, and it has no receipt", r.name)
	}
	for _, rank := range r.receipt.Ranks {
		for _, line := range rank.Tail {
			fmt.Fprintf(out, "[%d %d] %s\n", rank.Node, rank.Rank, humanize.PlainLine(line))
		}
	}
	if problem != nil {
		return problem
	}
	tellUser(cmd.ErrOrStderr(),
		"The pods of the run's tasks are gone. Whole logs: mlenv logs %s --rank 0 -n %s, or mlenv fetch %s logs -n %s\n",
		r.name, clients.Namespace, r.name, clients.Namespace)
	return nil
}

// errReadAgain means that no node has the rank: the run may have ended meanwhile.
var errReadAgain = errors.New("the run has to be read again")

// rankLog copies the log of a rank from its node, or else from the claim.
func (o *logsOptions) rankLog(ctx context.Context, out, progress io.Writer, clients *kube.Clients, r runInfo) error {
	name := agent.RankLog + strconv.Itoa(o.rank)
	if r.at.inProgress(r) && !o.again {
		found, err := o.liveLog(ctx, out, progress, clients, r, name)
		if found || err != nil {
			return err
		}
		return errReadAgain
	}
	record := r.record()
	if record == nil || len(record.Claims) == 0 {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "reading the log of rank %d of run %s: no node has it, and no training has started "+
			"that would name its claim", o.rank, r.name),
			"mlenv status %s -n %s", r.name, clients.Namespace)
	}
	node, ranks := r.nodeOf(o.rank)
	if node < 0 {
		return o.noSuchRank(r, ranks)
	}
	claim := record.Claims[min(node, len(record.Claims)-1)]
	newest := path.Join(fetch.RecordOf(r.uid()), agent.AttemptFolder(r.attempt()))
	return fetch.File(ctx, clients, fetch.Claim{Name: claim, For: r.name, Notes: progress}, path.Join(newest, name+".log"), out)
}

// rankEvery is how often mlenv logs looks whether a rank has started.
const rankEvery = 5 * time.Second

// liveLog copies the log of a rank from its node. With --follow it waits for the rank, and continues until the rank
// ends. found is false if no node has the rank or the run has ended meanwhile.
func (o *logsOptions) liveLog(ctx context.Context, out, progress io.Writer, clients *kube.Clients, r runInfo,
	name string) (found bool, err error) {
	set, node, err := o.nodeOfRank(ctx, r)
	if err == nil && node < 0 && o.follow {
		fmt.Fprintf(progress, "Rank %d of run %s has not started yet.\n", o.rank, r.name)
	}
	for node < 0 && o.follow && (err == nil || kube.Transient(err)) && r.at.inProgress(r) && kube.SleepContext(ctx, rankEvery) {
		var again runInfo
		if again, err = findRun(ctx, clients, r.name); err == nil {
			set.Close()
			r = again
			set, node, err = o.nodeOfRank(ctx, r)
		}
	}
	defer set.Close()
	if err != nil || node < 0 {
		return false, err
	}
	if o.follow {
		if err := nodes.FollowLog(ctx, set[node], r.uid(), name, out, nodes.RetryUntilDone(ctx)); err != nil {
			if r.run == nil {
				return true, fail.Advise(err, "mlenv status %s%s", r.name, r.namespaceFlag())
			}
			return true, unfollowed(r.run, err)
		}
		return true, nil
	}
	log, err := set[node].Log(ctx, r.uid(), name, 0, false)
	if err != nil {
		return true, err
	}
	defer log.Close()
	_, err = io.Copy(out, log)
	return true, err
}

// nodeOfRank asks every node for the rank; the node is -1 if none has it. Errors: InvalidInput for a rank that the
// training does not have.
func (o *logsOptions) nodeOfRank(ctx context.Context, r runInfo) (set nodes.Set, node int, err error) {
	set, err = r.at.nodes(ctx, r)
	if fail.ReasonOf(err) == fail.EnvironmentMissing {
		return nil, -1, nil
	} else if err != nil {
		return nil, -1, err
	}
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for node, client := range set {
		job, err := client.Job(asking, r.uid())
		switch {
		case agent.IsNotFound(err), o.follow && fail.ReasonOf(err) == fail.AgentUnreachable:
			continue
		case err != nil:
			return set, -1, err
		case o.rank >= job.Spec.Nodes*job.Spec.RanksOfNode():
			return set, -1, o.noSuchRank(r, job.Spec.Nodes*job.Spec.RanksOfNode())
		case slices.ContainsFunc(job.Ranks, func(r agent.RankStatus) bool { return r.Rank == o.rank }):
			return set, node, nil
		}
	}
	return set, -1, nil
}

func (o *logsOptions) noSuchRank(r runInfo, ranks int) error {
	return command.Usage(fail.Becausef(fail.InvalidInput, "looking for rank %d of run %s: it has %s, from 0", o.rank, r.name,
		humanize.Count(ranks, "rank")))
}
