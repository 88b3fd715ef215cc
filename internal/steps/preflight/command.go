package preflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
)

// Description is what the help of the step and of mlenv preflight says.
const Description = `Tell whether an environment can be had on the cluster, and whether its nodes can talk
over RDMA: permissions, admission of the very pod by a dry run, network attachments,
nodes with their GPUs and who holds them, storage, quotas, the image, the IOMMU.

Nothing is changed, and what may not be read is unknown.

Exit code 0: an environment can start, as far as is known; 1: none can, or mode is rdma and
only sockets are possible; 2: wrong usage.`

// Command is the step preflight.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	var clusterFile, pullSecretDir, caFile string
	cmd := &cobra.Command{
		Use:   "preflight --cluster-file FILE",
		Short: "Tell whether an environment can be had, and whether over RDMA",
		Long:  Description,
		Example: `  preflight --cluster-file clusters/barcelona.yaml --nodes 4
  preflight --cluster-file clusters/cairo.yaml --mode rdma --output=json`,
		Args: func(_ *cobra.Command, args []string) error { return errors.Join(step.FlagsOnly(args), o.Check()) },
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	flags.StringVar(&clusterFile, "cluster-file", "", "the cluster file")
	// What only Tasks give.
	flags.StringVar(&pullSecretDir, "pull-secret-dir", "", "where the pull secret is mounted, to ask the image's registry (default: the machine's own docker configuration)")
	flags.StringVar(&caFile, "ca-file", "", "certificates to trust when a registry is asked, beside the system's")
	mode := step.NewResult(cmd, "mode", "how the nodes will talk: tcp or rdma")
	why := step.NewResult(cmd, "why", "why so")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		clients, err := o.Connect(cmd.Context(), where, clusterFile)
		if err != nil {
			return err
		}
		registry, err := buildimage.RegistryFor(clients, pullSecretDir, caFile)
		if err != nil {
			return err
		}
		result, err := Run(cmd.Context(), Deps{Clients: clients, Registry: registry, Log: step.Log(cmd), Out: step.ReportOutput(cmd, o.Output)}, o)
		if err != nil {
			return err
		}
		decided, because := result.Mode()
		return errors.Join(mode.Write(string(decided)), why.Write(because))
	}
	return cmd
}

// AddFlags adds the flags that the step shares with mlenv preflight and mlenv plan, and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Request.Name, "name", objects.DefaultName, "name of the environment")
	flags.IntVar(&o.Request.Nodes, "nodes", 0, "number of nodes (default: gpus.default_nodes of the cluster file)")
	flags.IntVar(&o.Request.GPUsPerNode, "gpus-per-node", 0, "GPUs on each node (default: gpus.per_node of the cluster file)")
	flags.StringVar(&o.Mode, "mode", Auto, "how the nodes are to talk: auto, rdma or tcp")
	flags.StringVar(&o.Request.Image, "image", "", "training image (default: image.name of the cluster file, or one that is yet to be built)")
	flags.StringVar(&o.Flavour, "flavour", "", "training image that will be built where none is named (default: image.flavour of the cluster file)")
	flags.StringVar((*string)(&o.Request.Storage), "storage", "", "rwx, volumeClaimTemplates or auto (default: storage.mode of the cluster file)")
	flags.StringVar(&o.Request.WorkspaceSize, "workspace-size", "", "size of new workspace claims, as in 100Gi (default: the cluster file's)")
	flags.StringVar(&o.Request.DatasetsSize, "datasets-size", "", "size of new datasets claims (default: the cluster file's)")
	flags.BoolVar(&o.Request.Routes, "routes", false, "whether OpenShift Routes to services will be asked for")
	flags.StringVar(&o.Request.StepsImage, "steps-image", "", "image of the steps, which the nodes get their agent from")
	flags.StringVar(&o.ServiceAccount, "service-account", "", "ServiceAccount of the steps, whose rights are checked (default: in a pod its own, else "+install.DefaultServiceAccount+")")
	o.Output.AddTo(flags, step.Text, step.JSON, step.YAML)
}

// Check finds every mistake that needs no cluster file.
func (o *Options) Check() error {
	var problems []error
	if o.Mode != Auto && o.Mode != string(objects.RDMA) && o.Mode != string(objects.TCP) {
		problems = append(problems, fmt.Errorf("--mode %q: want auto, rdma or tcp", o.Mode))
	}
	return errors.Join(problems...)
}

// Connect reads the cluster file into the request and connects to the cluster that is meant. It
// chooses the namespace and the account whose rights are checked.
func (o *Options) Connect(ctx context.Context, where kube.Flags, clusterFile string) (*kube.Clients, error) {
	file, err := clusterfile.Load(ctx, clusterFile, where)
	if err != nil {
		return nil, err
	}
	clients, err := where.Connect()
	if err != nil {
		return nil, err
	}
	clients.Namespace = where.NamespaceOf(clients, file.Cluster.Namespace)
	o.Request.Cluster, o.Request.Namespace = file, clients.Namespace
	if !clients.InCluster && o.ServiceAccount == "" {
		o.ServiceAccount = install.DefaultServiceAccount
	}
	return clients, nil
}
