package reaper

import (
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// Command is the program reap.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
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
			clients, err := where.Connect()
			if err != nil {
				return err
			}
			return Run(cmd.Context(), Deps{Clients: clients, Log: step.Log(cmd)}, o)
		},
	}
	where.AddTo(cmd.Flags())
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "say what would be given back, and change nothing")
	return cmd
}
