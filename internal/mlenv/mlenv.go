// Package mlenv is the command line for people.
package mlenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/action"
	"github.com/ml-dev-env/ml-dev-env/internal/admin"
	"github.com/ml-dev-env/ml-dev-env/internal/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/bundle"
	"github.com/ml-dev-env/ml-dev-env/internal/checkfabric"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/preflight"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// errInvalid has been told already.
var errInvalid = errors.New("a cluster file is not valid")

// Main runs the command line and returns the exit code: 0 done, 1 failed, 2 wrong usage.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	usage := true
	root := &cobra.Command{
		Use:           "mlenv",
		Short:         "Train on the GPU nodes of an OpenShift cluster",
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			// cobra would look at these later, when it is no wrong usage any more.
			if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
				return err
			}
			usage = false
			return nil
		},
	}
	root.AddCommand(validateCommand(), install.Command(mldevenv.Bundle), bundle.Command(), buildCommand(), preflightCommand(), rdmaCommand(), checkFabricCommand(), doctorCommand(), admin.Command())
	root.AddCommand(action.Command())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errInvalid), errors.Is(err, errFaulty), errors.Is(err, admin.ErrIncomplete), errors.Is(err, action.ErrFailed):
		return 1
	}
	fmt.Fprintln(stderr, "mlenv:", err)
	if next := fail.NextOf(err); next != "" {
		fmt.Fprintln(stderr, "  next:", strings.ReplaceAll(next, "\n", "\n        "))
	}
	if usage {
		return 2
	}
	return 1
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
	return cmd
}

// checkFabricCommand is the step for people.
func checkFabricCommand() *cobra.Command {
	cmd := checkfabric.Command()
	cmd.Example = strings.ReplaceAll(cmd.Example, "check-fabric", "mlenv check-fabric")
	return step.ForPeople(cmd)
}

func validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "validate FILE...",
		Short:   "Check cluster files and say every mistake with its line",
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
				return errInvalid
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
