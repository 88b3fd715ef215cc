package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// logsOptions are the flags of mlenv logs.
type logsOptions struct {
	kube   kube.Flags
	follow bool
	rank   int
	task   string
	tail   int64
}

// LogsCommand is mlenv logs.
func LogsCommand() *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs RUN",
		Short: "Show what a run has printed, or one rank of it, also after it has ended",
		Long: `Show the logs of a run's tasks, as long as Kubernetes keeps them; where it does not any more, the last lines of the
ranks that failed, from the receipt.

With --rank it is the whole log of that rank: from its node while the environment is there, and afterwards from the
workspace's claim, by a pod that lives as long as that takes. With --follow too it waits for the rank, and goes on until
that ends.

Exit code 0: it is shown; 1: it cannot be had; 2: wrong usage, or no such run.`,
		Example: `  mlenv logs train-multi-node-x7k2p --follow
  mlenv logs train-multi-node-x7k2p --rank 3
  mlenv logs train-multi-node-x7k2p --task provision`,
		ValidArgsFunction: completeRun(&o.kube),
		Args: func(cmd *cobra.Command, args []string) error {
			var problems []error
			if len(args) != 1 {
				problems = append(problems, fmt.Errorf("arguments %q: want one run", args))
			}
			if cmd.Flags().Changed("rank") && o.rank < 0 {
				problems = append(problems, fmt.Errorf("--rank %d: want 0 or more", o.rank))
			}
			if o.tail < 0 {
				problems = append(problems, fmt.Errorf("--tail %d: want 0 or more", o.tail))
			}
			return errors.Join(problems...)
		},
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	flags.BoolVarP(&o.follow, "follow", "f", false, "go on until the run has ended")
	flags.IntVar(&o.rank, "rank", -1, "this rank alone, its whole log (default: the logs of the tasks)")
	flags.StringVar(&o.task, "task", "", "this task alone, as train or provision")
	flags.Int64Var(&o.tail, "tail", 0, "the last so many lines of each task; 0 is all")
	cmd.MarkFlagsMutuallyExclusive("rank", "task")
	cmd.MarkFlagsMutuallyExclusive("rank", "tail")
	cmd.MarkFlagsMutuallyExclusive("follow", "tail")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		clients, err := o.kube.Connect()
		if err != nil {
			return err
		}
		k, err := find(cmd.Context(), clients, args[0])
		if err != nil {
			return err
		}
		switch {
		case o.rank >= 0:
			return o.rankLog(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), clients, k)
		case o.follow && k.run != nil && !k.run.IsDone():
			return o.followTasks(cmd, clients, k)
		}
		return o.taskLogs(cmd, clients, k)
	}
	return cmd
}

// followTasks ends with the run, or with ctx, which the run does not notice.
func (o *logsOptions) followTasks(cmd *cobra.Command, clients *kube.Clients, k known) error {
	shown := newDisplay(cmd.OutOrStdout(), 0)
	shown.width = nil // a log is often piped, and never has a last line that changes
	outcome, err := launch.Follow(cmd.Context(), clients, k.run, func(e launch.Event) {
		if o.task == "" || e.Task == o.task {
			shown.observe(e)
		}
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Run %s has ended: %s\n", k.name, strings.TrimSpace(fmt.Sprint(known{name: k.name, run: outcome.Run}.state(), " ", outcome.Reason)))
	return nil
}

// taskLogs shows what there is now.
func (o *logsOptions) taskLogs(cmd *cobra.Command, clients *kube.Clients, k known) error {
	out := cmd.OutOrStdout()
	if o.task != "" && k.run != nil && !slices.ContainsFunc(k.tasks, func(t run.TaskRun) bool { return t.Task == o.task }) {
		return wrongUsage(fail.Becausef(fail.InvalidInput, "looking for task %s of run %s: want one of those that have run: %s", o.task, k.name, strings.Join(k.taskNames(), ", ")))
	}
	some := false
	for _, task := range k.tasks {
		if o.task != "" && task.Task != o.task {
			continue
		}
		err := launch.Logs(cmd.Context(), clients, k.run, task, o.tail, func(e launch.Event) {
			fmt.Fprintf(out, "[%s] %s\n", e.Task, e.Text)
		})
		switch {
		case err == nil:
			some = true
		case !errors.Is(err, launch.ErrNoLog):
			return err
		}
	}
	if some {
		return nil
	}
	if k.receipt == nil {
		return fmt.Errorf("reading the logs of run %s: no pod of it is left or has begun, and there is no receipt", k.name)
	}
	printTails(out, *k.receipt)
	fmt.Fprintf(cmd.ErrOrStderr(), "The pods of the run's tasks are gone. Whole logs: mlenv logs %s --rank 0 -n %s, or mlenv fetch %s logs -n %s\n",
		k.name, clients.Namespace, k.name, clients.Namespace)
	return nil
}

func (k known) taskNames() (names []string) {
	for _, task := range k.tasks {
		names = append(names, task.Task)
	}
	return names
}

// printTails shows what a receipt has of logs: the ends of ranks that failed.
func printTails(out io.Writer, r receipt.Receipt) {
	for _, rank := range r.Ranks {
		for _, line := range rank.Tail {
			fmt.Fprintf(out, "[%d %d] %s\n", rank.Node, rank.Rank, line)
		}
	}
}

// rankLog is from the rank's node, or from the claim.
func (o *logsOptions) rankLog(ctx context.Context, out, progress io.Writer, clients *kube.Clients, k known) error {
	name := agent.RankLog + strconv.Itoa(o.rank)
	if k.run != nil && !k.run.IsDone() {
		found, err := o.liveLog(ctx, out, progress, clients, k, name)
		if found || err != nil {
			return err
		}
		if k, err = find(ctx, clients, k.name); err != nil { // it may have ended meanwhile
			return err
		}
	}
	if k.receipt == nil || k.receipt.Record == nil || len(k.receipt.Record.Claims) == 0 {
		return fail.Advise(fmt.Errorf("reading the log of rank %d of run %s: no node has it, and no receipt says where it lies", o.rank, k.name),
			"mlenv status %s -n %s", k.name, clients.Namespace)
	}
	node := slices.IndexFunc(k.receipt.Ranks, func(r receipt.Rank) bool { return r.Rank == o.rank })
	if node < 0 {
		return o.noSuchRank(k, len(k.receipt.Ranks))
	}
	claim := k.receipt.Record.Claims[min(k.receipt.Ranks[node].Node, len(k.receipt.Record.Claims)-1)]
	return fetch.File(ctx, clients, fetch.Claim{Name: claim, For: k.name}, fetch.RecordOf(k.uid())+"/"+name+".log", out)
}

// liveLog is the log of a rank that runs. With --follow it waits until the rank does, and ends
// with its log. found is false where no node has the rank, and of a run that has ended meanwhile.
func (o *logsOptions) liveLog(ctx context.Context, out, progress io.Writer, clients *kube.Clients, k known, name string) (found bool, err error) {
	set, node, err := o.nodeOfRank(ctx, clients, k)
	if err == nil && node < 0 && o.follow {
		fmt.Fprintf(progress, "Rank %d of run %s does not run yet.\n", o.rank, k.name)
		runs := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace)
		err = kube.Until(ctx, "run "+k.name, runs, metav1.ListOptions{FieldSelector: "metadata.name=" + k.name}, func(left []*v1.PipelineRun) (bool, error) {
			if len(left) == 0 || left[0].IsDone() {
				return true, nil
			}
			set.Close()
			set, node, err = o.nodeOfRank(ctx, clients, k)
			return node >= 0, err
		})
	}
	defer set.Close()
	if err != nil || node < 0 {
		return false, err
	}
	if o.follow {
		err := nodes.FollowLog(ctx, set[node], k.uid(), name, out, nodes.RetryUntilDone(ctx))
		if errors.Is(err, context.Canceled) {
			return true, nil
		}
		return true, err
	}
	log, err := set[node].Log(ctx, k.uid(), name, 0, false)
	if err != nil {
		return true, err
	}
	defer log.Close()
	_, err = io.Copy(out, log)
	return true, err
}

// nodeOfRank asks every node for the rank, because only they know where it is. The node is -1
// where none has it. Errors: InvalidInput for a rank that the training has not.
func (o *logsOptions) nodeOfRank(ctx context.Context, clients *kube.Clients, k known) (set nodes.Set, node int, err error) {
	set, err = nodes.Connect(ctx, clients, k.environment(), "")
	if fail.ReasonOf(err) == fail.EnvironmentMissing {
		return nil, -1, nil
	} else if err != nil {
		return nil, -1, err
	}
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for node, client := range set {
		job, err := client.Job(asking, k.uid())
		switch {
		case agent.IsNotFound(err), o.follow && fail.ReasonOf(err) == fail.AgentUnreachable:
			continue
		case err != nil:
			return set, -1, err
		case o.rank >= job.Spec.Nodes*job.Spec.RanksOfNode():
			return set, -1, o.noSuchRank(k, job.Spec.Nodes*job.Spec.RanksOfNode())
		case slices.ContainsFunc(job.Ranks, func(r agent.RankStatus) bool { return r.Rank == o.rank }):
			return set, node, nil
		}
	}
	return set, -1, nil
}

func (o *logsOptions) noSuchRank(k known, ranks int) error {
	return wrongUsage(fail.Becausef(fail.InvalidInput, "looking for rank %d of run %s: it has %s, from 0", o.rank, k.name, humanize.Count(ranks, "rank")))
}
