// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"errors"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
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
	param.Name.AddTo(flags, &o.Request.Name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&clusterFile, "cluster-file", "", "the cluster file")
	param.Image.AddTo(flags, &o.Request.Image, "image", "", "training image (default: image.name of the cluster file)")
	param.Image.AddTo(flags, &o.Request.StepsImage, "steps-image", "", "image that contains this program; the nodes get their agent from it")
	param.Duration.AddTo(flags, &o.TrainingTimeout, "training-timeout", 0, "how long the training may run, to refuse a PipelineRun that "+
		"would end before")
	param.Mode.AddTo(flags, &o.RequestedMode, "requested-mode", "", "requested mode, before preflight decided: with auto, nodes that cannot "+
		"use RDMA use TCP (default: --mode)")
	param.Duration.AddTo(flags, &o.KeepFor, "keep-for", 0, "how long the environment's lease lasts (default: as long as steps renew it)")
	param.StopGrace.AddTo(flags, &o.Request.StopGrace, "stop-grace", agent.DefaultStopGrace, StopGraceUsage)
	param.IdleTimeout.AddTo(flags, &o.IdleTimeout, "idle-timeout", "", IdleTimeoutUsage)
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

// IdleTimeoutUsage describes the flag.
const IdleTimeoutUsage = "how long a user's environment may be unused before it is released; 0 for ever (default: " +
	"development.idle_timeout of the cluster file)"

// ServicesUsage describes the flag.
const ServicesUsage = "programs to develop with on node 0: code-server, jupyter and tensorboard, with commas, or all or none"

// StopGraceUsage describes the flag.
const StopGraceUsage = "how long ranks have to save after SIGTERM when they are stopped; it is the pods' termination grace"

// AddFlags adds the flags that the step and mlenv share, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	param.Count.AddTo(flags, &o.Request.Nodes, "nodes", 0, "number of nodes (default: gpus.default_nodes of the cluster file)")
	param.GPUs.AddTo(flags, &o.Request.GPUsPerNode, "gpus-per-node", nil, "GPUs on each node, 0 for none (default: gpus.per_node of the "+
		"cluster file)")
	param.KubernetesNodes.AddTo(flags, &o.Request.ExcludeNodes, "exclude-nodes", nil, "Kubernetes nodes that the environment must not use, "+
		"separated by commas")
	param.Queue.AddTo(flags, &o.Request.Queue, "queue", "", "LocalQueue of Kueue that admits the environment (default: nodes.queue of the "+
		"cluster file)")
	param.QueuePriority.AddTo(flags, &o.Request.QueuePriority, "queue-priority", "", "WorkloadPriorityClass of Kueue for the environment in "+
		"its queue")
	param.Mode.AddTo(flags, &o.Mode, "mode", agent.Auto, "transport between the nodes: tcp, rdma, or auto for rdma if the cluster provides it")
	param.Storage.AddTo(flags, &o.Request.Storage, "storage", "", "rwx, volumeClaimTemplates, or auto for rwx if the class provides it "+
		"(default: storage.mode of the cluster file)")
	param.Size.AddTo(flags, &o.Request.WorkspaceSize, "workspace-size", "",
		"size of the workspace claims, as in 100Gi; smaller ones are expanded if their class allows it (default: the cluster file's)")
	param.Size.AddTo(flags, &o.Request.DatasetsSize, "datasets-size", "",
		"size of the datasets claims, in the same way (default: the cluster file's)")
	param.Duration.AddTo(flags, &o.StartTimeout, "start-timeout", 20*time.Minute, "time for all nodes to start, waiting for a busy "+
		"environment included")
	param.OnBusy.AddTo(flags, &o.OnBusy, "on-busy", "fail", "if another user or run holds the environment: fail or wait")
	param.OnChange.AddTo(flags, &o.OnChange, "on-change", "fail", "if the environment exists and differs from the request: fail, or "+
		"recreate its pods")
	flags.StringVar(&o.Services, "services", objects.NoServices, ServicesUsage)
	param.Truth.AddTo(flags, &o.Request.Routes, "routes", false, "create an OpenShift Route to each service, which requires its password "+
		"or token")
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
