// SPDX-License-Identifier: Apache-2.0

// Package render is mlenv render, which prints the objects of an environment without a cluster.
package render

import (
	"cmp"
	"errors"
	"slices"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
)

// leaseUID stands for the UID that the API server will assign to the Lease.
const leaseUID = "00000000-0000-0000-0000-000000000000"

type options struct {
	cluster, namespace, name string
	mode                     agent.Mode
	services                 string
	output                   command.OutputFlag
	request                  objects.Request
}

// Command returns the command mlenv render.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "render [ENVIRONMENT] --cluster-file=FILE",
		Short: "Print the objects of an environment",
		Long: `Print the objects that mlenv up or a run would apply for an environment, without a cluster. The Secrets with
certificates are left out, and the UID of the Lease, which owns the other objects, is a placeholder.

provision decides some settings by what it finds on the cluster. Here --mode=auto means rdma if the cluster file enables
it, else tcp; --storage=auto means rwx if the file has a class for it.

Exit code 0: printed; 1: the request is invalid; 2: wrong usage.`,
		Example: `  mlenv render --cluster-file=clusters/barcelona.yaml --nodes=4 --steps-image=quay.io/me/steps:v1 --image=quay.io/me/train:v1
  mlenv render h-kim --cluster-file=clusters/cairo.yaml --image=IMAGE --steps-image=IMAGE | oc apply --dry-run=server -f -`,
		Args: o.parse,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.namespace, "namespace", "n", "", "namespace (default: cluster.namespace of the file)")
	param.Name.AddTo(flags, &o.name, envflags.NameFlag, objects.DefaultName, "name of the environment")
	flags.StringVar(&o.cluster, "cluster-file", "", "the cluster file")
	param.Count.AddTo(flags, &o.request.Nodes, "nodes", 0, "number of nodes (default: gpus.default_nodes of the file)")
	param.GPUs.AddTo(flags, &o.request.GPUsPerNode, "gpus-per-node", nil, "GPUs on each node, 0 for none (default: gpus.per_node of the file)")
	param.KubernetesNodes.AddTo(flags, &o.request.ExcludeNodes, "exclude-nodes", nil, "Kubernetes nodes that the environment must not use, "+
		"separated by commas")
	param.Queue.AddTo(flags, &o.request.Queue, "queue", "", "LocalQueue of Kueue that admits the environment (default: nodes.queue of "+
		"the file)")
	param.QueuePriority.AddTo(flags, &o.request.QueuePriority, "queue-priority", "", "WorkloadPriorityClass of Kueue for the environment in "+
		"its queue")
	param.StopGrace.AddTo(flags, &o.request.StopGrace, "stop-grace", 0,
		"how long ranks have to save when they are stopped (default: nodes.stop_grace of the file)")
	param.Mode.AddTo(flags, &o.mode, "mode", agent.Auto, "transport: tcp, rdma, or auto for what the file enables")
	param.Storage.AddTo(flags, &o.request.Storage, "storage", "", "rwx, volumeClaimTemplates or auto (default: storage.mode of the file)")
	param.Size.AddTo(flags, &o.request.WorkspaceSize, "workspace-size", "", "size of the workspace claim (default: the file's)")
	param.Size.AddTo(flags, &o.request.DatasetsSize, "datasets-size", "", "size of the datasets claim (default: the file's)")
	param.Image.AddTo(flags, &o.request.Image, "image", "", "training image (default: image.name of the file)")
	param.Image.AddTo(flags, &o.request.StepsImage, "steps-image", "", "image of the steps, which contains the agent")
	flags.StringVar(&o.services, "services", objects.NoServices, "services on node 0: code-server, jupyter and tensorboard, separated by "+
		"commas, or all or none")
	param.Truth.AddTo(flags, &o.request.Routes, "routes", false, "add an OpenShift Route for each service")
	o.output.AddUse(flags, "yaml, or json for one list", command.YAML, command.JSON)
	return cmd
}

func (o *options) parse(cmd *cobra.Command, args []string) error {
	return errors.Join(envflags.ParseName(cmd.Flags(), args),
		command.FlagMistakes(cmd.Flags()),
		command.Want(o.cluster != "", "--cluster-file is missing: want a file as in clusters/"))
}

func (o *options) run(cmd *cobra.Command) error {
	file, err := clusterfile.Load(cmd.Context(), o.cluster, kube.Flags{})
	if err != nil {
		return err
	}
	all, err := o.objects(file)
	if err != nil {
		return err
	}
	if o.output.Is(command.JSON) {
		return command.WriteJSON(cmd.OutOrStdout(), map[string]any{"apiVersion": "v1", "kind": "List", "items": all})
	}
	return command.WriteObjects(cmd.OutOrStdout(), all)
}

// objects returns the objects of the environment, the Lease first. Errors: InvalidInput.
func (o *options) objects(file cluster.File) ([]objects.Object, error) {
	r := o.request
	r.Cluster, r.Name, r.Namespace = file, o.name, cmp.Or(o.namespace, file.Cluster.Namespace)
	r.Services = objects.ParseServices(o.services)
	r.Mode = o.mode
	r = r.WithDefaults()
	if o.mode == agent.Auto {
		r.Mode = agent.TCP
		if file.Network.RDMA.Enabled {
			r.Mode = agent.RDMA
		}
	}
	if r.Storage == cluster.AutoStorage {
		r.Storage = cluster.NodeStorage
		if file.Storage.ClassRWX != "" {
			r.Storage = cluster.SharedStorage
		}
	}
	made, err := objects.Build(r, objects.LeaseReference(r.Names().Lease, leaseUID), objects.Certificates{})
	if err != nil {
		return nil, err
	}
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: r.Names().Lease, Namespace: r.Namespace, Labels: objects.Labels(r.Name)},
	}
	all := slices.Concat([]objects.Object{lease}, made.Services.All(), made.InOrder())
	if made.PodMonitor != nil {
		all = append(all, made.PodMonitor)
	}
	return all, nil
}
