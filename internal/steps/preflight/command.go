// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/secretdir"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
)

// Description is the help of the step and of mlenv preflight.
const Description = `Check whether an environment can start on the cluster, and whether its nodes can use
RDMA: who holds it, permissions, a dry run of the exact pod, network attachments, nodes with
their GPUs and who holds them, storage, quotas, the image, the IOMMU. In a run, the step also
checks all params, timeouts, Secrets, and that the repository has the commit and the script.

Preflight changes nothing. It reports what it may not read as unknown.

Exit code 0: an environment can start, as far as is known; 1: none can, or mode is rdma and
only sockets are possible; 2: wrong usage.`

// Command returns the step preflight.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	var clusterFile, pullSecretDir, authDir, envSecretDir, caFile string
	cmd := &cobra.Command{
		Use:   "preflight --cluster-file FILE",
		Short: "Check whether an environment can start, and whether over RDMA",
		Long:  Description,
		Example: `  preflight --cluster-file clusters/barcelona.yaml --nodes 4
  preflight --cluster-file clusters/cairo.yaml --mode rdma`,
		Args: func(cmd *cobra.Command, args []string) error {
			invalid := command.FlagMistakes(cmd.Flags())
			if o.Run.Name != "" {
				o.Invalid, invalid = invalid, nil
			}
			return errors.Join(command.FlagsOnly(args), invalid, o.Run.Check())
		},
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	flags.StringVar(&clusterFile, "cluster-file", "", "the cluster file")
	// Flags that only Tasks set.
	flags.StringVar(&pullSecretDir, "pull-secret-dir", "", "folder of the mounted pull secret for the image's registry (default: the "+
		"machine's docker configuration)")
	flags.StringVar(&authDir, "auth-dir", "", "folder of the mounted Secret for the run's git repository")
	flags.StringVar(&envSecretDir, "env-secret-dir", "", "folder of the mounted Secret whose keys become variables of the ranks")
	flags.StringVar(&caFile, "ca-file", "", "certificates of registries and git servers to trust in addition to the system's")
	flags.StringVar(&o.Scratch, "scratch", "", "folder for what git fetches (default: a temporary one)")
	o.Run.AddTo(flags)
	mode := command.NewResult(cmd, "mode", "transport between the nodes: tcp or rdma")
	why := command.NewResult(cmd, "why", "reason for the mode")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		file, err := clusterfile.Load(cmd.Context(), clusterFile, where)
		if err != nil {
			return errors.Join(err, o.Invalid)
		}
		clients, err := o.Connect(cmd.Context(), where, file)
		if err != nil {
			return err
		}
		registry, noRegistry := buildimage.RegistryFor(clients, pullSecretDir, caFile)
		secrets := readSecrets(authDir, envSecretDir, caFile, noRegistry)
		result, err := Run(cmd.Context(), Deps{
			Clients: clients, Registry: registry, Secrets: secrets, Log: command.Log(cmd), Out: command.Output(cmd),
		}, o)
		if err != nil {
			return err
		}
		decided, because := result.Mode()
		return errors.Join(mode.Write(string(decided)), why.Write(because))
	}
	return cmd
}

// readSecrets reads the mounted Secrets except the registry's, which the caller has read with the error noRegistry.
func readSecrets(authDir, envSecretDir, caFile string, noRegistry error) (s Secrets) {
	var noGit error
	if s.Git, noGit = git.AuthFromDir(authDir); noGit == nil {
		s.Git, noGit = s.Git.WithCAFile(caFile)
	}
	s.GitUnread = noGit != nil
	variables, noVariables := secretdir.Read(envSecretDir)
	s.Problems = slices.DeleteFunc([]error{noGit, noVariables, noRegistry}, func(err error) bool { return err == nil })
	s.Variables = slices.Sorted(maps.Keys(variables))
	return s
}

// AddRequest adds the flags of an environment's request that Tasks preflight and provision share.
func AddRequest(flags *pflag.FlagSet, r *objects.Request, task string) {
	param.Flag(flags, &r.Nodes, task, "nodes")
	param.Flag(flags, &r.GPUsPerNode, task, "gpus-per-node")
	param.Flag(flags, &r.ExcludeNodes, task, "exclude-nodes")
	param.Flag(flags, &r.Queue, task, "queue")
	param.Flag(flags, &r.QueuePriority, task, "queue-priority")
	param.Flag(flags, &r.Storage, task, "storage")
	param.Flag(flags, &r.WorkspaceSize, task, "workspace-size")
	param.Flag(flags, &r.DatasetsSize, task, "datasets-size")
	param.Flag(flags, &r.Routes, task, "routes")
}

// AddFlags adds the flags that the step shares with mlenv preflight, and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	const task = "preflight"
	r := &o.Request
	param.Flag(flags, &r.Name, task, "name")
	AddRequest(flags, r, task)
	param.Flag(flags, &o.Mode, task, "mode")
	param.Flag(flags, &r.Image, task, "image")
	param.Flag(flags, &o.Flavour, task, "flavour")
	param.Flag(flags, &r.StepsImage, task, "steps-image")
	flags.StringVar(&o.ServiceAccount, "service-account", "", "ServiceAccount of the steps, whose rights are checked (default: in a pod its "+
		"own, else the one of mlenv install)")
}

// Connect connects to the cluster of the cluster file, which it puts into the request. It
// chooses the namespace and the account whose rights are checked.
func (o *Options) Connect(ctx context.Context, where kube.Flags, file cluster.File) (*kube.Clients, error) {
	clients, err := where.Connect()
	if err != nil {
		return nil, err
	}
	clients.Namespace = where.NamespaceOf(clients, file.Cluster.Namespace)
	o.Request.Cluster, o.Request.Namespace = file, clients.Namespace
	if !clients.InCluster && o.ServiceAccount == "" {
		o.ServiceAccount = launch.Account(ctx, clients)
	}
	return clients, nil
}
