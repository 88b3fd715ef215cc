// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/trend"
)

// TrendCommand returns the command mlenv trend.
func TrendCommand() *cobra.Command {
	var (
		flags    kube.Flags
		name     string
		schedule string
		like     string
		picture  string
		output   command.OutputFlag
	)
	cmd := &cobra.Command{
		Use:   "trend",
		Short: "Show bandwidth, step time, loss, goodput and the speed of devices from run to run",
		Long: `Show bandwidth, step time, final loss and goodput of all runs of one kind whose receipts are kept: the same script of the same
repository with the same arguments, nodes and ranks in one environment. The newest run sets the kind, unless --like
names another run; mlenv lists the other kinds. It compares the newest run with the median of the ten that succeeded
before it.

MATRIX PRODUCT is the rate of the slowest device. SLOWEST DEVICE is the lowest rate of a device, of products and of
copies, in percent of the median of its kind.

Exit code 0: shown; 1: the receipts cannot be read; 2: wrong usage.`,
		Example: `  mlenv trend
  mlenv trend --schedule=nightly --svg=nightly.svg
  mlenv trend --output=json | jq '.runs[] | {run, values}'`,
		Args: func(_ *cobra.Command, args []string) error { return command.FlagsOnly(args) },
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().StringVar(&name, "name", objects.DefaultName, "name of the environment of the runs")
	cmd.Flags().StringVar(&schedule, "schedule", "", "show only runs that this schedule has started")
	cmd.Flags().StringVar(&like, "like", "", "runs of the same kind as this one (default: the newest)")
	cmd.Flags().StringVar(&picture, "svg", "", "write a picture to this file, as SVG")
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML)
	tolerances := trend.AddTolerances(cmd.Flags())
	cmd.RunE = envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, _ []string) error {
		all, err := receipt.List(cmd.Context(), clients.Kube, clients.Namespace, name)
		if err != nil {
			if len(all) == 0 {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", err)
		}
		t, err := trend.Select(all, schedule, like, tolerances)
		if err != nil {
			return err
		}
		if picture != "" {
			if err := os.WriteFile(picture, []byte(t.SVG()), 0o644); err != nil { //nolint:gosec // a picture that others may read
				return fmt.Errorf("writing the picture: %w", err)
			}
		}
		return output.Print(cmd.OutOrStdout(), t, t.Print)
	})
	return cmd
}
