package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Command is mlenv install. files is the bundle.
func Command(files fs.FS) *cobra.Command {
	var (
		flags          kube.Flags
		stepsImage     string
		serviceAccount string
		admin          bool
		dryRun         bool
		output         string
	)
	cmd := &cobra.Command{
		Use:   "install CLUSTER.yaml --steps-image=IMAGE",
		Short: "Give a namespace the Tasks, the Pipelines and the rights to train",
		Long: `Install gives a namespace of a cluster the Tasks and Pipelines with the cluster's defaults filled in, the cluster
file, and a ServiceAccount with one Role that is enough for every step. Installing again brings it up to date.`,
		Example: `  mlenv install clusters/cairo.yaml --steps-image=quay.io/me/steps:v1
  mlenv install clusters/cairo.yaml --steps-image=quay.io/me/steps@sha256:... --output=yaml | oc apply -f -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := read(args[0])
			if err != nil {
				return err
			}
			if flags.Namespace != "" {
				request.Namespace = flags.Namespace
			}
			request.ServiceAccount, request.ClusterRole = serviceAccount, admin
			if request.StepsImage, err = byDigest(cmd.Context(), stepsImage); err != nil {
				return err
			}
			objects, err := Render(request, files)
			if err != nil {
				return err
			}
			if output == "yaml" {
				return WriteYAML(cmd.OutOrStdout(), objects)
			}
			if err := apply(cmd.Context(), cmd, flags, request, objects, dryRun); err != nil {
				return err
			}
			explain(cmd.OutOrStdout(), request, dryRun)
			return nil
		},
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().Lookup("namespace").Usage = "namespace (default: cluster.namespace of the file)"
	cmd.Flags().StringVar(&stepsImage, "steps-image", "", "image of the steps; a tag is turned into its digest")
	cmd.Flags().StringVar(&serviceAccount, "service-account", DefaultServiceAccount,
		"ServiceAccount to give the rights to; with that of the namespace's runs, on OpenShift pipeline, runs need not name it")
	cmd.Flags().BoolVar(&admin, "admin", false, "let the steps read nodes, storage classes, pods, claims, attachments and machine configurations of the whole cluster too (a ClusterRole)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "let the API server check everything and change nothing")
	cmd.Flags().Var((*outputFormat)(&output), "output", "yaml prints the objects instead of applying them")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "output")
	if err := cmd.MarkFlagRequired("steps-image"); err != nil {
		panic(err) // the flag is made above
	}
	return cmd
}

// outputFormat is a flag that knows one word.
type outputFormat string

func (o *outputFormat) String() string { return string(*o) }
func (o *outputFormat) Type() string   { return "yaml" }
func (o *outputFormat) Set(s string) error {
	if s != "yaml" {
		return errors.New("want yaml")
	}
	*o = outputFormat(s)
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

// WriteYAML prints objects as oc apply takes them.
func WriteYAML(out io.Writer, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			return fmt.Errorf("printing %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		if _, err := fmt.Fprintf(out, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}

func apply(ctx context.Context, cmd *cobra.Command, flags kube.Flags, request Request, objects []*unstructured.Unstructured, dryRun bool) error {
	clients, err := flags.Connect()
	if err != nil {
		return err
	}
	err = kube.CheckCluster(ctx, clients.Config, request.Cluster.Cluster.API)
	if errors.Is(err, kube.ErrClusterUnknown) {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v; it is taken for %s\n", err, request.Cluster.Cluster.Name)
	} else if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(clients.Config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	for _, object := range objects {
		outcome, err := Apply(ctx, client, object, dryRun)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s/%s %s\n", strings.ToLower(object.GetKind()), object.GetName(), outcome)
	}
	return nil
}

// explain says how to go on.
func explain(out io.Writer, request Request, dryRun bool) {
	if dryRun {
		fmt.Fprintf(out, "nothing was changed: this was a dry run\n")
		return
	}
	fmt.Fprintf(out, `
namespace %s of cluster %s can train:

  tkn pipeline start train-multi-node --namespace=%s --serviceaccount=%s \
    --param=repo-url=URL --param=script=train.py --use-param-defaults --showlog
`, request.Namespace, request.Cluster.Cluster.Name, request.Namespace, request.ServiceAccount)
}
