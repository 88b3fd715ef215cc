package provision

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

// Command is the step provision.
func Command() *cobra.Command {
	var o Options
	var where kube.Flags
	var clusterFile string
	var noFile error
	cmd := &cobra.Command{
		Use:   "provision --cluster-file FILE",
		Short: "Create a training environment and wait until it can be used",
		Long: `Create a training environment and wait until every node of it answers, has its
GPUs, shares its storage and can be found by name.

Running it again changes nothing where the request is the same. All nodes are there
within --start-timeout, or all are released and what is in the way is named.`,
		Example: `  provision --cluster-file clusters/barcelona.yaml --nodes 4
  provision --cluster-file clusters/cairo.yaml --name h-kim --storage rwx --on-busy wait`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := step.FlagsOnly(args); err != nil {
				return err
			}
			o.Request.Cluster, noFile = clusterfile.Load(cmd.Context(), clusterFile, where)
			if err := o.Check(); err != nil {
				return errors.Join(err, noFile)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	where.AddTo(flags)
	o.AddFlags(flags)
	// What follows mlenv up has in another way, or is what only Tasks give.
	o.Run.AddTo(flags)
	flags.StringVar(&o.ClientCerts, "client-certs", "", "folder of the environment's mounted client Secret, of an earlier run of this step")
	flags.StringVar(&o.Request.Name, "name", objects.DefaultName, "name of the environment")
	flags.StringVar(&clusterFile, "cluster-file", "", "the cluster file")
	flags.StringVar(&o.Request.Image, "image", "", "training image (default: image.name of the cluster file)")
	flags.StringVar(&o.Request.StepsImage, "steps-image", "", "image that this program is in; the nodes get their agent from it")
	flags.DurationVar(&o.TrainingTimeout, "training-timeout", 0, "time that the training may take, to refuse a PipelineRun that would end before")
	flags.DurationVar(&o.KeepFor, "keep-for", 0, "how long the environment's lease lasts (default: while steps renew it)")
	environment := step.NewResult(cmd, "environment", "name of the environment")
	mode := step.NewResult(cmd, "mode", "how the nodes talk: tcp or rdma")
	storage := step.NewResult(cmd, "storage", "rwx or volumeClaimTemplates")
	nodes := step.NewResult(cmd, "nodes", "number of nodes")
	imageDigest := step.NewResult(cmd, "image-digest", "the training image by digest")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if noFile != nil {
			return noFile
		}
		clients, err := where.Connect()
		if err != nil {
			return err
		}
		clients.Namespace = where.NamespaceOf(clients, o.Request.Cluster.Cluster.Namespace)
		result, err := Run(cmd.Context(), Deps{Clients: clients, Log: step.Log(cmd)}, o)
		if err != nil {
			return err
		}
		return errors.Join(environment.Write(result.Name), mode.Write(string(result.Mode)), storage.Write(string(result.Storage)),
			nodes.Write(strconv.Itoa(result.Nodes)), imageDigest.Write(result.ImageDigest))
	}
	return cmd
}

// AddFlags adds the flags that the step and mlenv share, and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&o.Request.Nodes, "nodes", 0, "number of nodes (default: gpus.default_nodes of the cluster file)")
	flags.IntVar(&o.Request.GPUsPerNode, "gpus-per-node", 0, "GPUs on each node (default: gpus.per_node of the cluster file)")
	flags.StringVar(&o.Mode, "mode", preflight.Auto, "how the nodes talk: tcp, rdma, or auto for rdma where the cluster gives it")
	flags.StringVar((*string)(&o.Request.Storage), "storage", "", "rwx, volumeClaimTemplates, or auto for rwx where the class really gives it (default: storage.mode of the cluster file)")
	flags.StringVar(&o.Request.WorkspaceSize, "workspace-size", "", "size of new workspace claims, as in 100Gi (default: the cluster file's)")
	flags.StringVar(&o.Request.DatasetsSize, "datasets-size", "", "size of new datasets claims (default: the cluster file's)")
	flags.DurationVar(&o.StartTimeout, "start-timeout", 10*time.Minute, "time for all nodes to start, waiting for a busy environment included")
	flags.StringVar(&o.OnBusy, "on-busy", "fail", "when somebody else holds the environment: fail or wait")
	flags.StringVar(&o.OnChange, "on-change", "fail", "when the environment lives and differs from the request: fail, or recreate its pods")
	flags.StringVar(&o.Services, "services", objects.NoServices, "programs to develop with on node 0: code-server, jupyter and tensorboard, with commas, or all or none")
	flags.BoolVar(&o.Request.Routes, "routes", false, "make an OpenShift Route to each service, which is reached by its password or token only")
}

// Check finds every mistake that needs no cluster. If there is one it names what is wrong
// with the request for the cluster file too.
func (o *Options) Check() error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if o.OnBusy != "fail" && o.OnBusy != "wait" {
		wrong("--on-busy %q: want fail or wait", o.OnBusy)
	}
	if o.OnChange != "fail" && o.OnChange != "recreate" {
		wrong("--on-change %q: want fail or recreate", o.OnChange)
	}
	if o.Mode != preflight.Auto && o.Mode != string(objects.TCP) && o.Mode != string(objects.RDMA) {
		wrong("--mode %q: want auto, tcp or rdma", o.Mode)
	}
	if o.StartTimeout <= 0 {
		wrong("--start-timeout %s: want more than nothing", o.StartTimeout)
	}
	if o.TrainingTimeout < 0 {
		wrong("--training-timeout %s: want a duration, or 0s where nothing is trained", o.TrainingTimeout)
	}
	if o.KeepFor < 0 {
		wrong("--keep-for %s: want a duration, or 0s for as long as steps renew the lease", o.KeepFor)
	}
	err := errors.Join(append(problems, o.Run.Check())...)
	if err != nil && o.Request.Cluster.Cluster.Name != "" {
		_, more := o.request("namespace-of-the-run")
		err = errors.Join(err, more)
	}
	return err
}
