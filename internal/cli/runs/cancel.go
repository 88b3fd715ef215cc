package runs

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// CancelCommand is mlenv cancel.
func CancelCommand() *cobra.Command {
	var flags kube.Flags
	var wait bool
	cmd := &cobra.Command{
		Use:   "cancel RUN",
		Short: "Cancel a run so that everything is given back",
		Long: `Cancel a run by the kind of cancellation that runs its teardown: the training is stopped, a receipt is written,
and pods and GPUs are given back. Claims and what is on them stay. A run that has ended is left as it is.

Exit code 0: the run is cancelled, or had ended; 1: it could not be; 2: wrong usage.`,
		Example:           "  mlenv cancel train-multi-node-x7k2p\n  mlenv cancel train-multi-node-x7k2p --wait",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeRun(&flags),
		RunE: func(cmd *cobra.Command, args []string) error {
			clients, k, err := named(cmd.Context(), flags, args[0])
			if err != nil {
				return err
			}
			if k.run == nil || k.run.IsDone() {
				fmt.Fprintf(cmd.OutOrStdout(), "Run %s has ended already: %s.\n", k.name, k.state())
				return nil
			}
			if err := launch.Cancel(cmd.Context(), clients, k.run); err != nil {
				return err
			}
			if !wait {
				fmt.Fprintf(cmd.OutOrStdout(), "Run %s is being cancelled; everything is given back within minutes: mlenv status %s -n %s\n", k.name, k.name, k.run.Namespace)
				return nil
			}
			shown := newDisplay(cmd.OutOrStdout(), len(k.tasks)+1)
			outcome, err := launch.Follow(cmd.Context(), clients, k.run, func(e launch.Event) {
				if e.Kind == launch.TaskEnded || e.Task == "teardown" {
					shown.observe(e)
				}
			})
			shown.end()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Run %s was cancelled%s.\n", k.name, took(outcome))
			return nil
		},
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until everything is given back")
	return cmd
}
