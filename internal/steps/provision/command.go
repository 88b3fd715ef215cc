// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"errors"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

// Command returns the step provision.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	var clusterFile string
	var noFile error
	cmd := &cobra.Command{
		Use:   "provision --cluster-file FILE",
		Short: "Create a training environment and wait until it can be used",
		Long: `Create a training environment and wait until every node answers, has its GPUs, shares its storage and is
found by name.

Running it again with the same request changes nothing. If not all nodes are ready within --start-timeout, provision
releases all of them and names the cause.`,
		Example: `  provision --cluster-file clusters/barcelona.yaml --nodes 4
  provision --cluster-file clusters/cairo.yaml --name h-kim --storage rwx --on-busy wait`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := command.FlagsOnly(args); err != nil {
				return err
			}
			o.Request.Cluster, noFile = clusterfile.Load(cmd.Context(), clusterFile, where)
			if err := o.AlsoRequest(errors.Join(command.FlagMistakes(cmd.Flags()), o.Run.Check())); err != nil {
				return errors.Join(err, noFile)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	// The flags below are the step's alone: mlenv has other ways for them.
	o.Run.AddTo(flags)
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret, of an earlier run of this step")
	param.Flag(flags, &o.Request.Name, task, "name")
	flags.StringVar(&clusterFile, "cluster-file", "", "the cluster file")
	param.Flag(flags, &o.Request.Image, task, "image")
	param.Flag(flags, &o.Request.StepsImage, task, "steps-image")
	param.Flag(flags, &o.TrainingTimeout, task, "training-timeout")
	param.Flag(flags, &o.RequestedMode, task, "requested-mode")
	param.Flag(flags, &o.KeepFor, task, "keep-for")
	param.Flag(flags, &o.Request.StopGrace, task, "stop-grace")
	param.Flag(flags, &o.IdleTimeout, task, "idle-timeout")
	environment := command.NewResult(cmd, "environment", "name of the environment")
	mode := command.NewResult(cmd, "mode", "how the nodes talk: tcp or rdma")
	why := command.NewResult(cmd, "why", "reason for the mode, if this step decided it")
	storage := command.NewResult(cmd, "storage", "rwx or volumeClaimTemplates")
	nodes := command.NewResult(cmd, "nodes", "number of nodes")
	imageDigest := command.NewResult(cmd, "image-digest", "the training image by digest")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if noFile != nil {
			return noFile
		}
		clients, err := where.Connect()
		if err != nil {
			return err
		}
		clients.Namespace = where.NamespaceOf(clients, o.Request.Cluster.Cluster.Namespace)
		result, err := Run(cmd.Context(), Deps{Clients: clients, Log: command.Log(cmd)}, o)
		if err != nil {
			return err
		}
		return errors.Join(environment.Write(result.Name), mode.Write(string(result.Mode)), why.Write(result.Why),
			storage.Write(string(result.Storage)), nodes.Write(strconv.Itoa(result.Nodes)), imageDigest.Write(result.ImageDigest))
	}
	return cmd
}

const task = "provision"

// AddFlags adds the flags that the step and mlenv share, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	preflight.AddRequest(flags, &o.Request, task)
	param.Flag(flags, &o.Mode, task, "mode")
	param.Flag(flags, &o.StartTimeout, task, "start-timeout")
	param.Flag(flags, &o.OnBusy, task, "on-busy")
	param.Flag(flags, &o.OnChange, task, "on-change")
	param.Flag(flags, &o.Services, task, "services")
}

// AlsoRequest adds the mistakes in the request for the cluster file to those in flags, if there are any. Without any, Run reports
// those in the request.
func (o *Options) AlsoRequest(inFlags error) error {
	if inFlags == nil || o.Request.Cluster.Cluster.Name == "" {
		return inFlags
	}
	_, more := o.request("namespace-of-the-run")
	return errors.Join(inFlags, more)
}
