// Package cli is the command line for people.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/action"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/datasets"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/dev"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/initcluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/render"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/runs"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/schedule"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/install/admin"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
	"github.com/ml-dev-env/ml-dev-env/internal/install/release"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/trend"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/checkfabric"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
	"github.com/ml-dev-env/ml-dev-env/internal/version"
)

// Main runs the command line and returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 cancelled.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return step.RunCommands(ctx, newRoot(), args, stdout, stderr)
}

// newRoot is the whole command line.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:     "mlenv",
		Short:   "Train on the GPU nodes of an OpenShift cluster",
		Version: version.String(),
	}
	root.AddCommand(runs.RunCommand(mldevenv.Bundle), runs.SmokeCommand(mldevenv.Bundle, mldevenv.Example()), runs.ListCommand(), runs.StatusCommand(), runs.LogsCommand(), runs.CancelCommand(), runs.ReceiptCommand(), runs.FetchCommand())
	root.AddCommand(dev.Commands()...)
	root.AddCommand(initcluster.Command(), validateCommand(), render.Command(), install.Command(mldevenv.Bundle, schedule.Carry), install.UninstallCommand(), admin.Command())
	root.AddCommand(buildCommand(), preflightCommand(), preflight.PlanCommand(), rdmaCommand(), checkFabricCommand(), doctorCommand())
	root.AddCommand(schedule.Command(), trend.Command(), action.Command(), datasets.Command())
	root.AddCommand(bundle.Command(mldevenv.Bundle), release.Command())
	return root
}

// buildCommand is the step build-image under the name that people look for.
func buildCommand() *cobra.Command {
	cmd := buildimage.Command(mldevenv.Images())
	cmd.Use = strings.Replace(cmd.Use, "build-image", "build", 1)
	cmd.Example = strings.ReplaceAll(cmd.Example, "build-image", "mlenv build")
	return step.ForPeople(cmd)
}

// preflightCommand is the step preflight.
func preflightCommand() *cobra.Command {
	cmd := preflight.Command()
	cmd.Example = strings.ReplaceAll(cmd.Example, "  preflight", "  mlenv preflight")
	return step.ForPeople(cmd)
}

// checkFabricCommand is the step for people.
func checkFabricCommand() *cobra.Command {
	cmd := checkfabric.Command()
	cmd.Example = strings.ReplaceAll(cmd.Example, "check-fabric", "mlenv check-fabric")
	return step.ForPeople(cmd)
}

func validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check cluster files and say every mistake with its line",
		Long: `Check cluster files: what is written in them, not whether the cluster has it, which mlenv preflight tells.
Of a mistake it says file, line and column, the key, what is there and what was wanted, and what was probably meant.

Exit code 0: all are valid; 1: one is not; 2: wrong usage.`,
		Example: "  mlenv validate clusters/barcelona.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			valid := true
			for _, name := range files {
				content, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				file, err := cluster.Load(name, content)
				if err != nil {
					fmt.Fprintln(cmd.ErrOrStderr(), err)
					valid = false
					continue
				}
				describe(cmd.OutOrStdout(), name, file)
			}
			if !valid {
				return &step.Exit{Code: step.Failed}
			}
			return nil
		},
	}
}

func describe(out io.Writer, name string, f cluster.File) {
	nodes := "any node with GPUs"
	if f.Nodes.GPUNodes != nil {
		nodes = fmt.Sprintf("%d nodes", len(f.Nodes.GPUNodes))
	}
	fmt.Fprintf(out, "%s: valid: %s at %s, %s, %d GPUs each, storage %s\n",
		name, f.Cluster.Name, f.Cluster.API, nodes, f.GPUs.PerNode, f.Storage.Mode)
	for line := range strings.Lines(strings.TrimSpace(f.Notes)) {
		fmt.Fprintf(out, "  %s\n", strings.TrimSpace(line))
	}
}
