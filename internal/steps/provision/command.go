package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	routeclient "github.com/openshift/client-go/route/clientset/versioned/typed/route/v1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

// options are the flags of the command.
type options struct {
	kube            kube.Flags
	run             run.Flags
	certs           string
	clusterFile     string
	request         objects.Request
	mode, storage   string
	services        string
	startTimeout    time.Duration
	onBusy          string
	onChange        string
	trainingTimeout time.Duration
	keepFor         time.Duration
}

// Command is the step provision.
func Command() *cobra.Command {
	var o options
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
			if len(args) > 0 {
				return fmt.Errorf("argument %q: want flags only", args[0])
			}
			if err := o.check(); err != nil {
				// With what else is wrong, as far as the cluster file tells.
				_, wrong := o.checked(cmd.Context(), "namespace-of-the-run")
				return errors.Join(err, wrong)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	o.run.AddTo(flags)
	flags.StringVar(&o.certs, "client-certs", "", "folder of the environment's mounted client Secret, of an earlier run of this step")
	flags.StringVar(&o.clusterFile, "cluster-file", "", "the cluster file")
	flags.StringVar(&o.request.Name, "name", objects.DefaultName, "name of the environment")
	flags.IntVar(&o.request.Nodes, "nodes", 0, "number of nodes (default: gpus.default_nodes of the cluster file)")
	flags.IntVar(&o.request.GPUsPerNode, "gpus-per-node", 0, "GPUs on each node (default: gpus.per_node of the cluster file)")
	flags.StringVar(&o.mode, "mode", "auto", "how the nodes talk: tcp, rdma, or auto for rdma where the cluster gives it")
	flags.StringVar(&o.request.Image, "image", "", "training image (default: image.name of the cluster file)")
	flags.StringVar(&o.storage, "storage", "", "rwx, volumeClaimTemplates, or auto for rwx where the class really gives it (default: storage.mode of the cluster file)")
	flags.StringVar(&o.request.WorkspaceSize, "workspace-size", "", "size of new workspace claims, as in 100Gi (default: the cluster file's)")
	flags.StringVar(&o.request.DatasetsSize, "datasets-size", "", "size of new datasets claims (default: the cluster file's)")
	flags.StringVar(&o.request.StepsImage, "steps-image", "", "image that this program is in; the nodes get their agent from it")
	flags.DurationVar(&o.startTimeout, "start-timeout", 10*time.Minute, "time for all nodes to start, waiting for a busy environment included")
	flags.StringVar(&o.onBusy, "on-busy", "fail", "when somebody else holds the environment: fail or wait")
	flags.StringVar(&o.onChange, "on-change", "fail", "when the environment lives and differs from the request: fail, or recreate its pods")
	flags.DurationVar(&o.trainingTimeout, "training-timeout", 0, "time that the training may take, to refuse a PipelineRun that would end before")
	flags.DurationVar(&o.keepFor, "keep-for", 0, "how long the environment's lease lasts (default: while steps renew it)")
	flags.StringVar(&o.services, "services", objects.NoServices, "programs to develop with on node 0: code-server, jupyter and tensorboard, with commas, or all or none")
	flags.BoolVar(&o.request.Routes, "routes", false, "make an OpenShift Route to each service, which is reached by its password or token only")
	results := results{
		environment: step.NewResult(cmd, "environment", "name of the environment"),
		mode:        step.NewResult(cmd, "mode", "how the nodes talk: tcp or rdma"),
		storage:     step.NewResult(cmd, "storage", "rwx or volumeClaimTemplates"),
		nodes:       step.NewResult(cmd, "nodes", "number of nodes"),
		imageDigest: step.NewResult(cmd, "image-digest", "the training image by digest"),
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := o.provisioner(cmd)
		if err != nil {
			return err
		}
		outcome, err := p.run(cmd.Context())
		if err != nil {
			return err
		}
		return results.write(outcome)
	}
	return cmd
}

// check finds every mistake of flags that no cluster file is needed for.
func (o *options) check() error {
	var problems []error
	if o.onBusy != "fail" && o.onBusy != "wait" {
		problems = append(problems, fmt.Errorf("--on-busy %q: want fail or wait", o.onBusy))
	}
	if o.onChange != "fail" && o.onChange != "recreate" {
		problems = append(problems, fmt.Errorf("--on-change %q: want fail or recreate", o.onChange))
	}
	if o.mode != preflight.Auto && o.mode != string(objects.TCP) && o.mode != string(objects.RDMA) {
		problems = append(problems, fmt.Errorf("--mode %q: want auto, tcp or rdma", o.mode))
	}
	if o.startTimeout <= 0 {
		problems = append(problems, fmt.Errorf("--start-timeout %s: want more than nothing", o.startTimeout))
	}
	if o.trainingTimeout < 0 {
		problems = append(problems, fmt.Errorf("--training-timeout %s: want a duration, or 0s where nothing is trained", o.trainingTimeout))
	}
	if o.keepFor < 0 {
		problems = append(problems, fmt.Errorf("--keep-for %s: want a duration, or 0s for as long as steps renew the lease", o.keepFor))
	}
	return errors.Join(append(problems, o.run.Check())...)
}

// checked is the request with the cluster file's defaults. The cluster is asked only
// where that file is missing. An empty namespace is the file's.
func (o *options) checked(ctx context.Context, namespace string) (objects.Request, error) {
	request := o.request
	var err error
	if request.Cluster, err = clusterfile.Load(ctx, o.clusterFile, o.kube); err != nil {
		return request, err
	}
	request.Namespace = cmp.Or(namespace, request.Cluster.Cluster.Namespace)
	request.Mode, request.Storage = objects.Mode(o.mode), cluster.StorageMode(o.storage)
	if o.mode == preflight.Auto {
		request.Mode = objects.TCP // until it is decided
	}
	request.Services = objects.ParseServices(o.services)
	request = request.WithDefaults()
	return request, request.Validate()
}

// provisioner checks the whole request before anything is asked of the cluster.
func (o *options) provisioner(cmd *cobra.Command) (*provisioner, error) {
	clients, err := o.kube.Connect()
	if err != nil {
		return nil, err
	}
	namespace := clients.Namespace
	if o.kube.Namespace == "" && !clients.InCluster {
		namespace = ""
	}
	request, err := o.checked(cmd.Context(), namespace)
	if err != nil {
		return nil, err
	}
	clients.Namespace = request.Namespace
	routes, err := routeclient.NewForConfig(clients.Config)
	if err != nil {
		return nil, inputError("making a client for Routes: %w", err)
	}
	log := step.Log(cmd)
	return &provisioner{
		options: *o, clients: clients, request: request, log: log, now: time.Now, routes: routes, hosts: map[string]string{},
		leases: lease.Client{Kube: clients.Kube, Tekton: clients.Tekton, Namespace: clients.Namespace, Now: time.Now, Log: log},
	}, nil
}

// holder is the PipelineRun, or the person at the keyboard.
func (o *options) holder() lease.Holder {
	if o.run.UID != "" {
		return lease.Holder{ID: o.run.UID, Display: o.run.Name, Run: true}
	}
	return lease.Person()
}

func (p *provisioner) leaseRequest() lease.Request {
	r := lease.Request{Name: p.request.Name, Holder: p.options.holder(), Duration: lease.Duration}
	if p.options.keepFor > 0 {
		r.Duration = p.options.keepFor
	}
	if p.options.run.UID != "" {
		owner := run.OwnerReference(p.options.run.Name, types.UID(p.options.run.UID))
		r.Owner = &owner
	}
	return r
}

type results struct {
	environment, mode, storage, nodes, imageDigest *step.Result
}

func (r results) write(o outcome) error {
	return errors.Join(
		r.environment.Write(o.name), r.mode.Write(string(o.mode)), r.storage.Write(string(o.storage)),
		r.nodes.Write(fmt.Sprint(o.nodes)), r.imageDigest.Write(o.imageDigest))
}
