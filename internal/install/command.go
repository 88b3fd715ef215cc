package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// options are the flags.
type options struct {
	flags          kube.Flags
	stepsImage     string
	serviceAccount string
	admin, dryRun  bool
	output         step.OutputFlag
	carry          Carry
}

// Carry makes those objects again, with this image of the steps, that something else than install has
// put into the namespace and that go on without it, as schedules do.
type Carry func(ctx context.Context, client dynamic.Interface, namespace, image string) ([]*unstructured.Unstructured, error)

// Command is mlenv install. files is the bundle.
func Command(files fs.FS, carry Carry) *cobra.Command {
	o := &options{carry: carry}
	cmd := &cobra.Command{
		Use:   "install CLUSTER.yaml --steps-image=IMAGE",
		Short: "Give a namespace the Tasks, the Pipelines and the rights to train",
		Long: `Install gives a namespace of a cluster the Tasks and Pipelines with the cluster's defaults filled in, the cluster
file, and a ServiceAccount with one Role that is enough for every step. Installing again brings it up to date, the
namespace's schedules included, and deletes what an earlier version installed and this one does not have. Nothing is
changed unless every right is there and the API server accepts every object.

--steps-image is the steps' image of a release, or what mlenv bundle steps-image prints in a checkout.

--dry-run shows what would change, as a diff of YAML, and changes nothing. --output=yaml prints the objects for somebody
else to apply and asks no cluster, so schedules are not among them; a steps image by tag is looked up in its registry. --output=json tells what was, or
with --dry-run would be, changed.

What --admin adds is for the whole cluster and wants an administrator. Installing without it leaves it as it is.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv install clusters/cairo.yaml --steps-image=quay.io/me/steps:v1 --dry-run
  mlenv install clusters/cairo.yaml --steps-image=quay.io/me/steps:v1
  mlenv install clusters/cairo.yaml --steps-image=quay.io/me/steps@sha256:... --output=yaml | oc apply --server-side -f -`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.dryRun && o.output.Is(step.YAML) {
				return errors.New("--dry-run with --output=yaml: the latter prints the objects and changes nothing anyway: want one of the two")
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0], files) },
	}
	o.flags.AddTo(cmd.Flags())
	cmd.Flags().Lookup("namespace").Usage = "namespace (default: cluster.namespace of the file)"
	cmd.Flags().StringVar(&o.stepsImage, "steps-image", "", "image of the steps; a tag is turned into its digest")
	cmd.Flags().StringVar(&o.serviceAccount, "service-account", DefaultServiceAccount,
		"ServiceAccount to give the rights to; with that of the namespace's runs, on OpenShift pipeline, runs need not name it")
	cmd.Flags().BoolVar(&o.admin, "admin", false, "let the steps read nodes, storage classes, pods, claims, attachments and machine configurations of the whole cluster too (a ClusterRole)")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would change, by the API server's own answer, and change nothing")
	o.output.AddUse(cmd.Flags(), "yaml prints the objects instead of applying them; json prints the changes", step.Text, step.YAML, step.JSON)
	if err := cmd.MarkFlagRequired("steps-image"); err != nil {
		panic(err) // the flag is made above
	}
	return cmd
}

func (o *options) run(cmd *cobra.Command, clusterFile string, files fs.FS) error {
	request, err := read(clusterFile)
	if err != nil {
		return err
	}
	if o.flags.Namespace != "" {
		request.Namespace = o.flags.Namespace
	}
	request.ServiceAccount, request.ClusterRole = o.serviceAccount, o.admin
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
	// After an error the report has what was done before it.
	if printErr := o.output.Print(cmd.OutOrStdout(), report, report.Print); err == nil {
		err = printErr
	}
	if err == nil && o.output.ForPeople() && !o.dryRun {
		explain(cmd.OutOrStdout(), request)
	}
	return err
}

// Print writes the report for people: a line an object, and below it its diff.
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

func read(name string) (Request, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return Request{}, fail.Becausef(fail.InvalidInput, "reading the cluster file: %w", err)
	}
	file, err := cluster.Load(name, content)
	if err != nil {
		return Request{}, fail.Because(fail.InvalidInput, err)
	}
	return Request{Cluster: file, ClusterFile: content, Namespace: file.Cluster.Namespace}, nil
}

// Connect makes the clients of the cluster that the file is about. That it cannot be
// told which cluster this is is a warning.
func Connect(ctx context.Context, warnings io.Writer, flags kube.Flags, file cluster.Cluster) (Clients, error) {
	clients, err := flags.Connect()
	if err != nil {
		return Clients{}, err
	}
	err = kube.CheckCluster(ctx, clients.Config, file.API)
	if errors.Is(err, kube.ErrClusterUnknown) {
		fmt.Fprintf(warnings, "warning: %v; it is taken for %s\n", err, file.Name)
	} else if err != nil {
		return Clients{}, err
	}
	return clientsOf(clients)
}

// clientsOf are those that are made of others.
func clientsOf(clients *kube.Clients) (Clients, error) {
	objects, err := dynamic.NewForConfig(clients.Config)
	if err != nil {
		return Clients{}, fmt.Errorf("making a client: %w", err)
	}
	return Clients{Kube: clients.Kube, Objects: objects}, nil
}

// explain says how to go on.
func explain(out io.Writer, request Request) {
	fmt.Fprintf(out, `
namespace %s of cluster %s can train:

  tkn pipeline start train-multi-node --namespace=%s --serviceaccount=%s \
    --param=repo-url=URL --param=script=train.py --use-param-defaults --showlog
`, request.Namespace, request.Cluster.Cluster.Name, request.Namespace, request.ServiceAccount)
}
