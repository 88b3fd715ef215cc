// SPDX-License-Identifier: Apache-2.0

// Package ops has the commands that check clusters, cluster files, environments and networks, and build the training
// image.
package ops

import (
	"context"
	"errors"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/checkfabric"
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

// CheckFabricCommand returns the command mlenv check-fabric.
func CheckFabricCommand() *cobra.Command {
	var o checkfabric.Options
	var env envflags.Flags
	cmd := &cobra.Command{
		Use:   "check-fabric [ENVIRONMENT]",
		Short: "Measure the network between the nodes of an environment",
		Long:  checkfabric.Description,
		Example: `  mlenv check-fabric h-kim
  mlenv check-fabric --mode rdma --fabric-bandwidth fail`,
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
