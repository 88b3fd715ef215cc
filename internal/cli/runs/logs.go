// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// LogsCommand returns the command mlenv logs.
func LogsCommand() *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs [RUN]",
		Short: "Show the logs of a run or of one rank, during the run or later",
		Long: `Show the logs of the tasks of a run (default: one in progress, or else the newest) as long as Kubernetes keeps
them, and then the last lines of the failed ranks from the receipt.

With --rank mlenv shows the whole log of that rank: from its node during the run, and later from the workspace's claim,
which a temporary pod reads. A terminal gets it without control characters, a file or a pipe as it is. With --follow it
waits for the rank and continues until the rank ends. A local run has the log of what mlenv run printed, and one of
each rank.

Exit code 0: shown; 1: the log cannot be read; 2: wrong usage, or no such run; 3: with --follow, the run continues unseen;
130: interrupted.`,
		Example: `  mlenv logs train-multi-node-x7k2p --follow
  mlenv logs train-multi-node-x7k2p --rank 3
  mlenv logs train-multi-node-x7k2p --task provision
  mlenv logs --since=10m`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(command.Arguments(0, 1, "one run or none")(cmd, args),
				command.Want(o.since >= 0, "--since %s: want 0s or more", o.since),
				command.Want(o.rank >= 0 || !cmd.Flags().Changed("rank"), "--rank %d: want 0 or more", o.rank),
				command.Want(o.tail >= 0, "--tail %d: want 0 or more", o.tail))
		},
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	flags.BoolVarP(&o.follow, "follow", "f", false, "continue until the run has ended")
	flags.IntVar(&o.rank, "rank", -1, "show the whole log of this rank (default: the logs of the tasks)")
	flags.StringVar(&o.task, "task", "", "show only this task, such as train or provision")
	flags.Int64Var(&o.tail, "tail", 0, "number of last lines of each task; 0 is all")
	flags.DurationVar(&o.since, "since", 0, "show only lines of this last time, such as 10m; 0s is all")
	cmd.MarkFlagsMutuallyExclusive("rank", "since")
	cmd.MarkFlagsMutuallyExclusive("rank", "task")
	cmd.MarkFlagsMutuallyExclusive("rank", "tail")
	cmd.MarkFlagsMutuallyExclusive("follow", "tail")
	cmd.RunE = onRun(&o.kube, func(cmd *cobra.Command, clients *kube.Clients, r runInfo, _ []string) error {
		if cmd.Flags().NArg() == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "Run %s.\n", r.name)
		}
		err := r.at.showLogs(cmd, &o, r)
		if errors.Is(err, errReadAgain) {
			o.again = true
			if r, err = findRun(cmd.Context(), clients, r.name); err == nil {
				err = r.at.showLogs(cmd, &o, r)
			}
		}
		if o.follow && cmd.Context().Err() != nil {
			return &command.Exit{Code: command.Interrupted}
		}
		return err
	})
	return cmd
}
