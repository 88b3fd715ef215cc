// SPDX-License-Identifier: Apache-2.0

// Package ops has the commands that check clusters, cluster files, environments and networks, and build the training
// image.
package ops

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/checkfabric"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

// BuildCommand returns the command mlenv build, the step build-image. images has a folder for each flavour.
func BuildCommand(images fs.FS) *cobra.Command {
	var o buildimage.Options
	var where fileFlags
	load := func(ctx context.Context) error {
		var err error
		o.Cluster, err = where.load(ctx)
		return errors.Join(err, o.Check(images))
	}
	cmd := &cobra.Command{
		Use:   "build [KEY=VALUE...]",
		Short: "Build the training image on the cluster, unless it exists",
		Long:  buildimage.Description,
		Example: `  mlenv build --flavour pytorch-2.9-numpy2
  mlenv build --cluster-file clusters/cairo.yaml --folder ./my-image --flavour mine`,
		Args: func(cmd *cobra.Command, args []string) error {
			o.BuildArgs = append(o.BuildArgs, args...)
			if where.file == "" {
				return nil // mistakes in the installed file are no wrong usage
			}
			return load(cmd.Context())
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if where.file == "" {
				if err := load(cmd.Context()); err != nil {
					return err
				}
			}
			_, err := buildimage.Run(cmd.Context(), buildimage.Deps{Connect: buildimage.Connect(where.Flags, o.Cluster, "", ""), Images: images,
				Log: command.Log(cmd), Out: command.Output(cmd)}, o)
			return err
		},
	}
	where.addTo(cmd)
	o.AddFlags(cmd.Flags())
	command.AddLogFormat(cmd)
	return cmd
}

// fileFlags name a cluster, and a cluster file or an installed one.
type fileFlags struct {
	kube.Flags
	file, installed string
}

func (f *fileFlags) addTo(cmd *cobra.Command) {
	f.AddTo(cmd.Flags())
	cmd.Flags().StringVar(&f.file, "cluster-file", "", "cluster file (default: the installed one)")
	cmd.Flags().StringVar(&f.installed, "cluster", "", "name of the installed cluster file (default: the only one)")
	cmd.MarkFlagsMutuallyExclusive("cluster", "cluster-file")
}

// load reads the cluster file, or else the installed one; then it sets Namespace to the file's namespace.
func (f *fileFlags) load(ctx context.Context) (cluster.File, error) {
	if f.file != "" {
		return clusterfile.Load(ctx, f.file, f.Flags)
	}
	clients, err := f.Connect()
	if err != nil {
		return cluster.File{}, err
	}
	f.Namespace = clients.Namespace
	return clusterfile.LoadInstalled(ctx, clients, f.installed)
}

// PreflightCommand returns the command mlenv preflight.
func PreflightCommand() *cobra.Command {
	cmd := preflightCommand(func(cmd *cobra.Command, d preflight.Deps, o preflight.Options) error {
		d.Log, d.Out = command.Log(cmd), command.ReportOutput(cmd, o.Output)
		_, err := preflight.Run(cmd.Context(), d, o)
		return err
	})
	cmd.Use = "preflight"
	cmd.Short = "Check whether an environment would start, and whether it could use RDMA"
	cmd.Long = preflight.Description
	cmd.Example = `  mlenv preflight --nodes 4
  mlenv preflight --cluster-file clusters/cairo.yaml --mode rdma --output=json`
	command.AddLogFormat(cmd)
	return cmd
}

// PlanCommand returns the command mlenv plan.
func PlanCommand() *cobra.Command {
	cmd := preflightCommand(func(cmd *cobra.Command, d preflight.Deps, o preflight.Options) error {
		report := preflight.Examine(cmd.Context(), d, o)
		plan := preflight.PlanOf(cmd.Context(), d.Clients.Kube, report)
		err := o.Output.PrintAs("Plan", cmd.OutOrStdout(), plan, func(out io.Writer) error {
			plan.Print(out)
			return nil
		})
		if err != nil {
			return err
		}
		return report.Err()
	})
	cmd.Use = "plan"
	cmd.Short = "Show what a run would create, on which nodes, and over which network"
	cmd.Long = `Show what a run or mlenv up would create on the cluster as it is now: the objects, the nodes, the transport between them
and the reason for it, the expected bandwidth, and what keeps it from starting. mlenv preflight prints every check with
its evidence.

Exit code 0: nothing is known that keeps it from starting; 1: it would not start; 2: wrong usage.`
	cmd.Example = `  mlenv plan --nodes=4
  mlenv plan --cluster-file=clusters/cairo.yaml --mode=rdma --output=json`
	return cmd
}

// preflightCommand returns a command with preflight's flags that calls run.
func preflightCommand(run func(cmd *cobra.Command, d preflight.Deps, o preflight.Options) error) *cobra.Command {
	var o preflight.Options
	var where fileFlags
	cmd := &cobra.Command{
		Args: func(_ *cobra.Command, args []string) error { return command.FlagsOnly(args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, err := where.load(cmd.Context())
			if err != nil {
				return err
			}
			clients, err := o.Connect(cmd.Context(), where.Flags, file)
			if err != nil {
				return err
			}
			registry, err := buildimage.RegistryFor(clients, "", "")
			if err != nil {
				return err
			}
			return run(cmd, preflight.Deps{Clients: clients, Registry: registry}, o)
		},
	}
	where.addTo(cmd)
	o.AddFlags(cmd.Flags())
	return cmd
}

// CheckFabricCommand returns the command mlenv check-fabric.
func CheckFabricCommand() *cobra.Command {
	var o checkfabric.Options
	var env envflags.Flags
	cmd := &cobra.Command{
		Use:   "check-fabric [ENVIRONMENT]",
		Short: "Measure the network between the nodes of an environment",
		Long:  checkfabric.Description,
		Example: `  mlenv check-fabric h-kim
  mlenv check-fabric --mode rdma --bandwidth fail`,
		Args: func(cmd *cobra.Command, args []string) error { return envflags.ParseName(cmd.Flags(), args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := env.Connect(cmd.Context(), command.TextLog(cmd.ErrOrStderr()))
			if err != nil {
				return err
			}
			_, err = checkfabric.Run(cmd.Context(), checkfabric.Deps{Clients: clients, Log: command.Log(cmd),
				Out: command.ReportOutput(cmd, o.Output)}, o)
			return err
		},
	}
	o.AddFlags(cmd.Flags())
	env.AddTo(cmd.Flags(), envflags.OnlyNamespace)
	command.AddLogFormat(cmd)
	return cmd
}
