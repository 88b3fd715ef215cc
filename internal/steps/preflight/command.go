package preflight

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/step/secretdir"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
)

// options are the flags of the command.
type options struct {
	kube           kube.Flags
	clusterFile    string
	request        objects.Request
	mode, storage  string
	flavour        string
	pullSecretDir  string
	caFile         string
	serviceAccount string
	output         string
}

// Command is the step preflight.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "preflight --cluster-file FILE",
		Short: "Tell whether an environment can be had, and whether over RDMA",
		Long: `Tell whether an environment can be had on the cluster, and whether its nodes can talk
over RDMA: permissions, admission of the very pod by a dry run, network attachments,
nodes with their GPUs and who holds them, storage, quotas, the image, the IOMMU.

Nothing is changed, and what may not be read is unknown.

Exit code 0: an environment can start, as far as is known; 1: none can, or mode is rdma and
only sockets are possible; 2: wrong usage.`,
		Example: `  preflight --cluster-file clusters/barcelona.yaml --nodes 4
  preflight --cluster-file clusters/cairo.yaml --mode rdma --output=json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("argument %q: want flags only", args[0])
			}
			return o.check()
		},
	}
	o.addTo(cmd.Flags())
	results := results{
		mode: step.NewResult(cmd, "mode", "how the nodes will talk: tcp or rdma"),
		why:  step.NewResult(cmd, "why", "why so"),
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		report, err := o.run(cmd.Context())
		if err != nil {
			return err
		}
		if err := o.show(cmd, report); err != nil {
			return err
		}
		if err := report.Err(); err != nil {
			return err
		}
		return results.write(report)
	}
	return cmd
}

// addTo adds the flags that say what is asked for.
func (o *options) addTo(flags *pflag.FlagSet) {
	o.kube.AddTo(flags)
	flags.StringVar(&o.clusterFile, "cluster-file", "", "the cluster file")
	flags.StringVar(&o.request.Name, "name", objects.DefaultName, "name of the environment")
	flags.IntVar(&o.request.Nodes, "nodes", 0, "number of nodes (default: gpus.default_nodes of the cluster file)")
	flags.IntVar(&o.request.GPUsPerNode, "gpus-per-node", 0, "GPUs on each node (default: gpus.per_node of the cluster file)")
	flags.StringVar(&o.mode, "mode", Auto, "how the nodes are to talk: auto, rdma or tcp")
	flags.StringVar(&o.request.Image, "image", "", "training image (default: image.name of the cluster file, or one that is yet to be built)")
	flags.StringVar(&o.flavour, "flavour", "", "training image that will be built where none is named (default: image.flavour of the cluster file)")
	flags.StringVar(&o.storage, "storage", "", "rwx, volumeClaimTemplates or auto (default: storage.mode of the cluster file)")
	flags.StringVar(&o.request.WorkspaceSize, "workspace-size", "", "size of new workspace claims, as in 100Gi (default: the cluster file's)")
	flags.StringVar(&o.request.DatasetsSize, "datasets-size", "", "size of new datasets claims (default: the cluster file's)")
	flags.BoolVar(&o.request.Routes, "routes", false, "whether OpenShift Routes to services will be asked for")
	flags.StringVar(&o.request.StepsImage, "steps-image", "", "image of the steps, which the nodes get their agent from")
	flags.StringVar(&o.pullSecretDir, "pull-secret-dir", "", "where the pull secret is mounted, to ask the image's registry (default: the machine's own docker configuration)")
	flags.StringVar(&o.caFile, "ca-file", "", "certificates to trust when a registry is asked, beside the system's")
	flags.StringVar(&o.serviceAccount, "service-account", "", "ServiceAccount of the steps, whose rights are checked (default: in a pod its own, else "+install.DefaultServiceAccount+")")
	flags.StringVar(&o.output, "output", "text", "text for people, json for machines")
}

// check finds every mistake of flags that no cluster file is needed for.
func (o *options) check() error {
	var problems []error
	if o.mode != Auto && o.mode != string(objects.RDMA) && o.mode != string(objects.TCP) {
		problems = append(problems, fmt.Errorf("--mode %q: want auto, rdma or tcp", o.mode))
	}
	if o.output != "text" && o.output != "json" {
		problems = append(problems, fmt.Errorf("--output %q: want text or json", o.output))
	}
	return errors.Join(problems...)
}

func (o *options) run(ctx context.Context) (Report, error) {
	options, err := o.connect(ctx)
	if err != nil {
		return Report{}, err
	}
	return Run(ctx, options), nil
}

// connect reads what the flags name.
func (o *options) connect(ctx context.Context) (Options, error) {
	file, err := clusterfile.Load(ctx, o.clusterFile, o.kube)
	if err != nil {
		return Options{}, err
	}
	clients, err := o.kube.Connect()
	if err != nil {
		return Options{}, err
	}
	clients.Namespace = o.kube.NamespaceOf(clients, file.Cluster.Namespace)
	secret, err := secretdir.Read(o.pullSecretDir)
	if err != nil {
		return Options{}, err
	}
	token, account := "", o.serviceAccount
	if clients.InCluster {
		token = clients.Config.BearerToken
	} else if account == "" {
		account = install.DefaultServiceAccount
	}
	registry, err := buildimage.NewRegistry(secret, token, o.caFile)
	if err != nil {
		return Options{}, fail.Because(fail.InvalidInput, err)
	}
	request := o.request
	request.Cluster, request.Namespace, request.Storage = file, clients.Namespace, cluster.StorageMode(o.storage)
	return Options{
		Clients: clients, Request: request, Mode: o.mode, Flavour: o.flavour, ServiceAccount: account, Registry: registry,
	}, nil
}

// show writes the report for people, as a document, or as records of the step's log.
func (o *options) show(cmd *cobra.Command, report Report) error {
	switch {
	case o.output == "json":
		return step.WriteJSON(cmd.OutOrStdout(), report)
	case step.IsJSON(cmd):
		log := step.Log(cmd)
		for _, check := range report.Checks {
			log.Info("checked "+check.Name, slog.String("verdict", string(check.Verdict)), slog.String("evidence", check.Seen), slog.String("fix", check.Fix))
		}
		log.Info("Verdict: " + report.Verdict() + ".")
	default:
		report.Print(cmd.OutOrStdout())
	}
	return nil
}

type results struct{ mode, why *step.Result }

func (r results) write(report Report) error {
	mode, why := report.Mode()
	return errors.Join(r.mode.Write(string(mode)), r.why.Write(why))
}
