package runs

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// CancelCommand is mlenv cancel.
func CancelCommand() *cobra.Command {
	var flags kube.Flags
	var wait bool
	cmd := &cobra.Command{
		Use:   "cancel RUN",
		Short: "Cancel a run and release everything that it holds",
		Long: `Cancel a run so that its teardown runs: it stops the training, writes a receipt, and releases pods and GPUs.
Claims and their files stay.

Exit code 0: the run is cancelled, or has ended already; 1: it could not be cancelled; 2: wrong usage.`,
		Example: "  mlenv cancel train-multi-node-x7k2p\n  mlenv cancel train-multi-node-x7k2p --wait",
		Args:    step.Arguments(1, 1, "one run"),
		RunE: onRun(&flags, func(cmd *cobra.Command, clients *kube.Clients, r entry, _ []string) error {
			if r.run == nil || r.run.IsDone() {
				fmt.Fprintf(cmd.OutOrStdout(), "Run %s has ended already: %s.\n", r.name, r.state())
				return nil
			}
			if err := launch.Cancel(cmd.Context(), clients, r.run); err != nil {
				return err
			}
			if !wait {
				say(cmd.OutOrStdout(), "Run %s is being cancelled; everything is released within minutes: mlenv status %s -n %s\n", r.name, r.name, r.run.Namespace)
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
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Run %s was cancelled%s.\n", r.name, took(outcome))
			return nil
		}),
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until everything is released")
	return cmd
}
