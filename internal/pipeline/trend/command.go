package trend

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// AddTolerances adds a flag for each measure.
func AddTolerances(flags *pflag.FlagSet) Tolerance {
	t := DefaultTolerance()
	for _, of := range []struct {
		flag    string
		measure Measure
	}{{"bandwidth-tolerance", Bandwidth}, {"step-time-tolerance", StepTime}, {"loss-tolerance", Loss}} {
		flags.Var(&tolerance{all: t, measure: of.measure}, of.flag, fmt.Sprintf("by how much the %s may be worse than the median of the last ten runs", of.measure))
	}
	return t
}

// tolerance is the flag of one measure.
type tolerance struct {
	all     Tolerance
	measure Measure
}

func (t *tolerance) String() string {
	if t.all == nil {
		return ""
	}
	return t.all[t.measure].String()
}
func (t *tolerance) Type() string { return "percent" }
func (t *tolerance) Set(text string) error {
	var p Percent
	if err := p.Set(text); err != nil {
		return err
	}
	t.all[t.measure] = p
	return nil
}

// Command is mlenv trend.
func Command() *cobra.Command {
	var (
		flags    kube.Flags
		name     string
		schedule string
		like     string
		picture  string
		output   step.OutputFlag
	)
	cmd := &cobra.Command{
		Use:   "trend",
		Short: "Show how bandwidth, step time and loss went from run to run",
		Long: `Show, from the receipts that are kept, how bandwidth, step time and final loss went from run to run of one kind: the
same script of the same repository, with the same arguments, nodes and ranks, in one environment. The kind is that of the
newest run, unless --like names another; what other kinds there are is said below. The newest one is compared with the
median of the ten that succeeded before it.

Exit code 0: shown; 1: it cannot be read; 2: wrong usage.`,
		Example: `  mlenv trend
  mlenv trend --schedule=nightly --svg=nightly.svg
  mlenv trend --output=json | jq '.runs[] | {run, values}'`,
		Args: func(_ *cobra.Command, args []string) error {
			var problems []error
			if len(args) > 0 {
				problems = append(problems, fmt.Errorf("arguments %q: want flags only", args))
			}
			return errors.Join(problems...)
		},
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().StringVar(&name, "name", objects.DefaultName, "name of the environment that the runs had")
	cmd.Flags().StringVar(&schedule, "schedule", "", "only runs that this schedule has started")
	cmd.Flags().StringVar(&like, "like", "", "runs of the same kind as this one (default: the newest)")
	cmd.Flags().StringVar(&picture, "svg", "", "write the picture into this file, as SVG")
	output.AddTo(cmd.Flags(), step.Text, step.JSON, step.YAML)
	tolerances := AddTolerances(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		clients, err := flags.Connect()
		if err != nil {
			return err
		}
		all, err := receipt.History(cmd.Context(), clients.Kube, clients.Namespace, name)
		if err != nil {
			if len(all) == 0 {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", err)
		}
		t, err := Of(all, schedule, like, tolerances)
		if err != nil {
			return err
		}
		if picture != "" {
			if err := os.WriteFile(picture, []byte(t.SVG()), 0o644); err != nil { //nolint:gosec // a picture for everybody
				return fmt.Errorf("writing the picture: %w", err)
			}
		}
		return output.Print(cmd.OutOrStdout(), t, t.Print)
	}
	return cmd
}
