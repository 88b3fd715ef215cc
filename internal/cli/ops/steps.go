// Package ops are the commands about clusters and environments: check a cluster and its
// file, build the training image, look for what is wrong with an environment and its network.
package ops

import (
	"errors"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/checkfabric"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

// BuildCommand is mlenv build, the step build-image. images holds the flavours, a folder each.
func BuildCommand(images fs.FS) *cobra.Command {
	var o buildimage.Options
	var where kube.Flags
	var clusterFile string
	cmd := &cobra.Command{
		Use:   "build --cluster-file FILE [KEY=VALUE...]",
		Short: "Build the training image on the cluster, unless it is there",
		Long:  buildimage.Description,
		Example: `  mlenv build --cluster-file clusters/barcelona.yaml --flavour pytorch-2.9-numpy2
  mlenv build --cluster-file clusters/cairo.yaml --folder ./my-image --flavour mine`,
		Args: func(cmd *cobra.Command, args []string) error {
			o.BuildArgs = append(o.BuildArgs, args...)
			var err error
			o.Cluster, err = clusterfile.Load(cmd.Context(), clusterFile, where)
			return errors.Join(err, o.Check(images))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := buildimage.Run(cmd.Context(), buildimage.Deps{Connect: buildimage.Connect(where, o.Cluster, "", ""), Images: images, Log: step.Log(cmd), Out: step.Output(cmd)}, o)
			return err
		},
	}
	where.AddTo(cmd.Flags())
	o.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&clusterFile, "cluster-file", "", "the cluster file")
	step.AddLogFormat(cmd)
	return cmd
}

// PreflightCommand is mlenv preflight.
func PreflightCommand() *cobra.Command {
	cmd := examining(func(cmd *cobra.Command, d preflight.Deps, o preflight.Options) error {
		d.Log, d.Out = step.Log(cmd), step.ReportOutput(cmd, o.Output)
		_, err := preflight.Run(cmd.Context(), d, o)
		return err
	})
	cmd.Use = "preflight --cluster-file FILE"
	cmd.Short = "Tell whether an environment can be had, and whether over RDMA"
	cmd.Long = preflight.Description
	cmd.Example = `  mlenv preflight --cluster-file clusters/barcelona.yaml --nodes 4
  mlenv preflight --cluster-file clusters/cairo.yaml --mode rdma --output=json`
	step.AddLogFormat(cmd)
	return cmd
}

// PlanCommand is mlenv plan.
func PlanCommand() *cobra.Command {
	cmd := examining(func(cmd *cobra.Command, d preflight.Deps, o preflight.Options) error {
		report := preflight.Examine(cmd.Context(), d, o)
		plan := preflight.PlanOf(cmd.Context(), d.Clients.Kube, report)
		err := o.Output.Print(cmd.OutOrStdout(), plan, func(out io.Writer) error {
			plan.Print(out)
			return nil
		})
		if err != nil {
			return err
		}
		return report.Err()
	})
	cmd.Use = "plan --cluster-file FILE"
	cmd.Short = "Say what a run would make, whether it would start, where, and how its nodes would talk"
	cmd.Long = `Say what a run, or mlenv up, would make on the cluster as it is now: the objects, the nodes, how these would talk and
why, what bandwidth is expected between them and how that is known, and what keeps it from starting. mlenv preflight has
every check with its evidence. Nothing is changed.

Exit code 0: it would start, as far as is known; 1: it would not; 2: wrong usage.`
	cmd.Example = `  mlenv plan --cluster-file=clusters/barcelona.yaml --nodes=4
  mlenv plan --cluster-file=clusters/cairo.yaml --mode=rdma --output=json`
	return cmd
}

// examining is a command with preflight's flags, for run.
func examining(run func(cmd *cobra.Command, d preflight.Deps, o preflight.Options) error) *cobra.Command {
	var o preflight.Options
	var where kube.Flags
	var clusterFile string
	cmd := &cobra.Command{
		Args: func(_ *cobra.Command, args []string) error { return errors.Join(step.FlagsOnly(args), o.Check()) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := o.Connect(cmd.Context(), where, clusterFile)
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
	where.AddTo(cmd.Flags())
	o.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&clusterFile, "cluster-file", "", "the cluster file")
	return cmd
}

// CheckFabricCommand is mlenv check-fabric.
func CheckFabricCommand() *cobra.Command {
	var o checkfabric.Options
	var where kube.Flags
	cmd := &cobra.Command{
		Use:   "check-fabric",
		Short: "Prove that the network between an environment's nodes does what it should",
		Long:  checkfabric.Description,
		Example: `  mlenv check-fabric --name ml-dev-env
  mlenv check-fabric --compare tcp --bandwidth fail
  mlenv check-fabric --pods=h-kim-0,h-kim-1 -n nccl-test
  mlenv check-fabric --pods=app=my-training --container=trainer`,
		Args: func(_ *cobra.Command, args []string) error { return errors.Join(step.FlagsOnly(args), o.Check()) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := where.Connect()
			if err != nil {
				return err
			}
			_, err = checkfabric.Run(cmd.Context(), checkfabric.Deps{Clients: clients, Log: step.Log(cmd), Out: step.ReportOutput(cmd, o.Output)}, o)
			return err
		},
	}
	where.AddTo(cmd.Flags())
	o.AddFlags(cmd.Flags())
	step.AddLogFormat(cmd)
	return cmd
}
