// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/trend"
)

// trendOptions are the flags of mlenv runs --trend.
type trendOptions struct {
	on                            bool
	name, schedule, like, picture string
	tolerances                    trend.Tolerance
	// flags are those that need --trend.
	flags *pflag.FlagSet
}

func (o *trendOptions) addTo(flags *pflag.FlagSet) {
	flags.BoolVar(&o.on, "trend", false, "show how the numbers of the runs of one kind change from run to run")
	o.flags = pflag.NewFlagSet("trend", pflag.ContinueOnError)
	o.flags.StringVar(&o.name, "name", objects.DefaultName, "with --trend: name of the environment of the runs")
	o.flags.StringVar(&o.schedule, "schedule", "", "with --trend: only runs that this schedule has started")
	o.flags.StringVar(&o.like, "like", "", "with --trend: runs of the same kind as this one (default: the newest)")
	o.flags.StringVar(&o.picture, "svg", "", "with --trend: write a picture to this file, as SVG")
	o.tolerances = trend.AddTolerances(o.flags)
	flags.AddFlagSet(o.flags)
}

// check returns the mistakes in the flags.
func (o *trendOptions) check(output command.OutputFlag) error {
	if o.on {
		return command.Want(!output.Is(command.Names), "--trend with --output=name: want text, json or yaml")
	}
	var problems []error
	o.flags.VisitAll(func(flag *pflag.Flag) {
		problems = append(problems, command.Want(!flag.Changed, "--%s: want --trend with it", flag.Name))
	})
	return errors.Join(problems...)
}

// run compares the runs of one kind by their receipts.
func (o *trendOptions) run(cmd *cobra.Command, clients *kube.Clients, output command.OutputFlag) error {
	all, err := receipt.List(cmd.Context(), clients.Kube, clients.Namespace, o.name)
	if err != nil {
		if len(all) == 0 {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", err)
	}
	t, err := trend.Select(all, o.schedule, o.like, o.tolerances)
	if err != nil {
		return err
	}
	if o.picture != "" {
		if err := os.WriteFile(o.picture, []byte(t.SVG()), 0o644); err != nil { //nolint:gosec // a picture that others may read
			return fmt.Errorf("writing the picture: %w", err)
		}
	}
	return output.Print(cmd.OutOrStdout(), t, t.Print)
}
