// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Command returns the command line of the program reap.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	cmd := &cobra.Command{
		Use:   "reap",
		Short: "Release the abandoned and the idle environments of a namespace",
		Long: `Release the abandoned environments of a namespace: those of runs that have ended without
releasing them, were deleted, or were cancelled without their finally tasks, and those whose lease has expired and is
not renewed. reap also releases environments of persons that were not used for their idle-timeout, by the answers of
their nodes, and warns ten minutes before. Other environments with a holder, claims and receipts stay.

mlenv install runs reap every minute.`,
		Example: `  reap
  reap --dry-run   # print what reap would release, and why`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := where.Connect()
			if err != nil {
				return err
			}
			return Run(cmd.Context(), clients, command.Log(cmd), o)
		},
	}
	where.AddTo(cmd.Flags())
	o.Notify.AddTo(cmd.Flags())
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "print what would be released, and change nothing")
	return cmd
}
