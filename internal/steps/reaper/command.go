package reaper

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// Command is the program reap.
func Command() *cobra.Command {
	var flags kube.Flags
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "reap",
		Short: "Give back the environments of a namespace that nobody holds any more",
		Long: `Give back the environments of a namespace that nobody holds any more: those of runs that have ended without giving
them back, were deleted, or were cancelled without their finally tasks, and those whose lease has ended and is not renewed.
What somebody holds, claims and receipts stay.

mlenv install has it run every minute.`,
		Example: `  reap
  reap --dry-run   # say what would be given back, and why`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := flags.Connect()
			if err != nil {
				return err
			}
			r := &reaper{clients: clients, log: step.Log(cmd), now: time.Now, dryRun: dryRun}
			return r.pass(cmd.Context())
		},
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be given back, and change nothing")
	return cmd
}
