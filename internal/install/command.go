package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

type options struct {
	flags          kube.Flags
	stepsImage     string
	serviceAccount string
	admin, dryRun  bool
	output         step.OutputFlag
	carry          Carry
}

// Carry renders the objects of the namespace that another command created and that use the steps image, such as
// schedules, with a new image.
type Carry func(ctx context.Context, client dynamic.Interface, namespace, image string) ([]*unstructured.Unstructured, error)

// Command is mlenv install. files has tasks/ and pipelines/.
func Command(files fs.FS, carry Carry) *cobra.Command {
	o := &options{carry: carry}
	cmd := &cobra.Command{
		Use:   "install CLUSTER.yaml --steps-image=IMAGE",
		Short: "Install the Tasks, the Pipelines and the rights to train in a namespace",
		Long: `Install creates in a namespace the Tasks and Pipelines with the cluster's defaults, the cluster file, and a
ServiceAccount with one Role for all steps. Installing again updates them, including the namespace's schedules, and
deletes what an earlier version installed and this one does not have. It changes nothing unless you hold every right and
the API server accepts every object.

--steps-image is the steps image of a release, or the image that mlenv bundle steps-image prints.

--dry-run prints the changes as a diff of YAML. --output=yaml prints the objects for another user to apply and connects
to no cluster, so it omits schedules; it looks up a steps image by tag in its registry. --output=json prints the changes.

--admin adds rights for the whole cluster and needs a cluster administrator. Without it, they stay as they are.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv install clusters/cairo.yaml --steps-image=quay.io/me/steps:v1 --dry-run
  mlenv install clusters/cairo.yaml --steps-image=quay.io/me/steps:v1
  mlenv install clusters/cairo.yaml --steps-image=quay.io/me/steps@sha256:... --output=yaml | oc apply --server-side -f -`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.dryRun && o.output.Is(step.YAML) {
				return errors.New("--dry-run with --output=yaml, which changes nothing anyway: want one of the two")
			}
			return step.Arguments(1, 1, "one cluster file")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0], files) },
	}
	o.flags.AddNamespace(cmd.Flags(), "namespace (default: cluster.namespace of the file)")
	cmd.Flags().StringVar(&o.stepsImage, "steps-image", "", "steps image; a tag is resolved to its digest")
	cmd.Flags().StringVar(&o.serviceAccount, "service-account", DefaultServiceAccount,
		"ServiceAccount that gets the rights; runs need not name the namespace's default account of runs, on OpenShift pipeline")
	cmd.Flags().BoolVar(&o.admin, "admin", false, "also let the steps read nodes, storage classes, pods, claims, attachments and machine configurations of the whole cluster (a ClusterRole)")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print what would change, as the API server answers, and change nothing")
	o.output.AddUse(cmd.Flags(), "yaml prints the objects instead of applying them; json prints the changes", step.Text, step.YAML, step.JSON)
	_ = cmd.MarkFlagRequired("steps-image") // the flag is defined above
	return cmd
}

func (o *options) run(cmd *cobra.Command, clusterFile string, files fs.FS) error {
	content, file, err := clusterfile.Read(clusterFile)
	if err != nil {
		return err
	}
	request := Request{
		Cluster: file, ClusterFile: content, Namespace: cmp.Or(o.flags.Namespace, file.Cluster.Namespace),
		ServiceAccount: o.serviceAccount, ClusterRole: o.admin,
	}
	if request.StepsImage, err = byDigest(cmd.Context(), o.stepsImage); err != nil {
		return err
	}
	objects, err := Render(request, files)
	if err != nil {
		return err
	}
	if o.output.Is(step.YAML) {
		return step.WriteObjects(cmd.OutOrStdout(), objects)
	}
	clients, err := Connect(cmd.Context(), cmd.ErrOrStderr(), o.flags, request.Cluster.Cluster)
	if err != nil {
		return err
	}
	carried, err := o.carry(cmd.Context(), clients.Objects, request.Namespace, request.StepsImage)
	if err != nil {
		return err
	}
	objects = append(objects, carried...)
	report, err := Install(cmd.Context(), clients, request.Namespace, objects, o.dryRun)
	// After an error the report has the changes before it.
	if printErr := o.output.Print(cmd.OutOrStdout(), report, report.Print); err == nil {
		err = printErr
	}
	if err == nil && o.output.ForPeople() && !o.dryRun {
		printNext(cmd.OutOrStdout(), request)
	}
	return err
}

// Print writes the report as text: a line for each object, and its diff below.
func (r Report) Print(out io.Writer) error {
	for _, change := range r.Changes {
		fmt.Fprintf(out, "%s %s\n", change.Object, change.Outcome)
		if r.DryRun {
			fmt.Fprint(out, change.Diff)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintln(out, "note:", note)
	}
	if r.DryRun {
		fmt.Fprintln(out, "nothing was changed: this was a dry run")
	}
	return nil
}

// Connect makes the clients of the file's cluster. If it cannot find out which cluster this is, it prints a warning.
func Connect(ctx context.Context, warnings io.Writer, flags kube.Flags, file cluster.Cluster) (Clients, error) {
	clients, err := flags.Connect()
	if err != nil {
		return Clients{}, err
	}
	err = kube.CheckCluster(ctx, clients.Config, file.API)
	if errors.Is(err, kube.ErrClusterUnknown) {
		fmt.Fprintf(warnings, "warning: %v; assuming %s\n", err, file.Name)
	} else if err != nil {
		return Clients{}, err
	}
	return clientsOf(clients)
}

func clientsOf(clients *kube.Clients) (Clients, error) {
	objects, err := dynamic.NewForConfig(clients.Config)
	if err != nil {
		return Clients{}, fmt.Errorf("creating a client: %w", err)
	}
	return Clients{Kube: clients.Kube, Objects: objects}, nil
}

// printNext prints the command that starts a training.
func printNext(out io.Writer, request Request) {
	fmt.Fprintf(out, `
to train in namespace %s of cluster %s:

  tkn pipeline start train-multi-node --namespace=%s --serviceaccount=%s \
    --param=repo-url=URL --param=script=train.py --use-param-defaults --showlog
`, request.Namespace, request.Cluster.Cluster.Name, request.Namespace, request.ServiceAccount)
}
