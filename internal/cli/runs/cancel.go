// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// CancelCommand returns the command mlenv cancel.
func CancelCommand() *cobra.Command {
	var flags kube.Flags
	var wait, now bool
	cmd := &cobra.Command{
		Use:   "cancel [RUN]",
		Short: "Cancel a run and release everything that it holds",
		Long: `Cancel a run (default: the only one in progress) so that its teardown runs: it stops the training, writes a receipt, and
releases pods and GPUs. Claims and their files stay.

The ranks get SIGTERM and have the time of the run's param stop-grace to save; with --now they have a few seconds, even in
a run that is being cancelled already.

Exit code 0: the run is cancelled, or has ended already; 1: it could not be cancelled; 2: wrong usage, no such run,
or several runs in progress and none named; 3: with --wait, its end could not be seen.`,
		Example: "  mlenv cancel train-multi-node-x7k2p\n  mlenv cancel train-multi-node-x7k2p --wait\n" +
			"  mlenv cancel train-multi-node-x7k2p --now   # does not wait for ranks that save",
		Args: command.Arguments(0, 1, "one run or none"),
	}
	onCluster := envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, args []string) error {
		r, err := toCancel(cmd.Context(), clients, args)
		if err != nil {
			return err
		}
		if r.isTraining() && r.unfinished {
			return fail.Advise(fail.Becausef(fail.InvalidInput, "cancelling run %s: it has no PipelineRun; end its mlenv train instead", r.name),
				"%s", r.at.stop(r))
		}
		if r.run == nil || r.run.IsDone() {
			fmt.Fprintf(cmd.OutOrStdout(), "Run %s has ended already: %s.\n", r.name, r.state())
			return nil
		}
		if err := launch.Cancel(cmd.Context(), clients, r.run, now); err != nil {
			return err
		}
		if !wait {
			released := "within minutes, once its ranks have saved"
			if now {
				released = "within minutes"
			}
			tellUser(cmd.OutOrStdout(), "Run %s is being cancelled; everything is released %s: mlenv status %s -n %s\n", r.name, released, r.name,
				r.run.Namespace)
			return nil
		}
		display := newDisplay(cmd.OutOrStdout(), len(r.tasks)+1)
		outcome, err := launch.Follow(cmd.Context(), clients, r.run, func(e launch.Event) {
			if e.Kind == launch.TaskEnded || e.Task == "teardown" {
				display.observe(e)
			}
		})
		display.end()
		if err != nil {
			return unfollowed(outcome.Run, err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "Run %s was cancelled%s.\n", r.name, durationText(outcome))
		return nil
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if of, ok := envflags.LocalRunOf(flags, args); ok {
			return cancelLocal(of)
		}
		return onCluster(cmd, args)
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().BoolVar(&now, "now", false, "leave the ranks only a few seconds to save")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until everything is released")
	return cmd
}

// cancelLocal returns an error with what ends a local run: it has no controller that this program could ask.
func cancelLocal(of local.Run) error {
	if !of.Running() {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "cancelling local run %s: it has ended already", of.Name), "mlenv receipt %s",
			of.Name)
	}
	return fail.Advise(fail.Becausef(fail.InvalidInput, "cancelling local run %s: end its mlenv run instead", of.Name), "%s", of.Stop())
}

// toCancel returns the named run, or else the only one in progress: nobody should cancel another run by an omission.
func toCancel(ctx context.Context, clients *kube.Clients, args []string) (runInfo, error) {
	if len(args) == 0 {
		names, err := runsInProgress(ctx, clients)
		switch {
		case err != nil:
			return runInfo{}, err
		case len(names) == 0:
			next := "mlenv runs -n " + clients.Namespace
			return runInfo{}, missing(ctx, clients, next, "looking for a run to cancel in %s: none is in progress", clients.Namespace)
		case len(names) > 1:
			err := fail.Becausef(fail.InvalidInput, "choosing a run to cancel in %s: in progress are %s: want one of them",
				clients.Namespace, strings.Join(names, ", "))
			return runInfo{}, command.Usage(fail.Advise(err, "mlenv cancel %s -n %s", names[0], clients.Namespace))
		}
		args = names
	}
	r, err := findRun(ctx, clients, args[0])
	if r.run != nil {
		err = nil // only words depend on its tasks and its receipt
	}
	return r, err
}
