package install

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// UninstallCommand is mlenv uninstall.
func UninstallCommand() *cobra.Command {
	var (
		flags   kube.Flags
		removal Removal
		output  step.OutputFlag
	)
	cmd := &cobra.Command{
		Use:   "uninstall [CLUSTER.yaml]",
		Short: "Take back what install gave a namespace, but claims and receipts",
		Long: `Uninstall deletes what mlenv install made in a namespace (Tasks, Pipelines, Role, ServiceAccount, cluster files, schedules)
and what builds left there (BuildConfigs, ImageStreams with their images). It says what stays: claims, which only
"oc delete pvc" deletes; receipts, the accounts of runs, unless --receipts; what an administrator did with mlenv admin, and,
unless --admin, with mlenv install --admin. It can be repeated.

It refuses while runs go on or environments are there. --end-runs ends them at once: runs are cancelled without their
teardown, which would lose its rights half way, and environments are deleted with their pods. Their claims stay; they get
no receipt.

The namespace is that of --namespace, else the cluster file's, else the kubeconfig's. With a cluster file it is checked
that this is its cluster.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv uninstall clusters/cairo.yaml --dry-run
  mlenv uninstall -n nccl-test
  mlenv uninstall -n nccl-test --receipts --end-runs`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			clients, namespace, err := where(cmd, flags, args)
			if err != nil {
				return err
			}
			removal.Namespace = namespace
			report, err := Uninstall(cmd.Context(), clients, removal)
			if printErr := output.Print(cmd.OutOrStdout(), report, report.Print); err == nil {
				err = printErr
			}
			if err == nil && output.ForPeople() && len(report.Changes) == 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "nothing of ml-dev-env is installed in namespace %s\n", namespace)
			}
			return err
		},
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().Lookup("namespace").Usage = "namespace (default: cluster.namespace of the file, else the kubeconfig's)"
	cmd.Flags().BoolVar(&removal.Receipts, "receipts", false, "delete the receipts of runs too")
	cmd.Flags().BoolVar(&removal.Admin, "admin", false, "delete what install --admin made too, which wants a cluster administrator")
	cmd.Flags().BoolVar(&removal.EndRuns, "end-runs", false, "cancel runs that go on, without their teardown, and delete environments; claims stay")
	cmd.Flags().BoolVar(&removal.DryRun, "dry-run", false, "show what would be deleted, and change nothing")
	output.AddTo(cmd.Flags(), step.Text, step.JSON, step.YAML)
	return cmd
}

// where is the cluster and the namespace that are meant.
func where(cmd *cobra.Command, flags kube.Flags, args []string) (Clients, string, error) {
	var file cluster.Cluster
	if len(args) == 1 {
		whole, err := clusterfile.Load(cmd.Context(), args[0], flags)
		if err != nil {
			return Clients{}, "", fail.Because(fail.InvalidInput, err)
		}
		file = whole.Cluster
		namespace := flags.Namespace
		if namespace == "" {
			namespace = file.Namespace
		}
		clients, err := Connect(cmd.Context(), cmd.ErrOrStderr(), flags, file)
		return clients, namespace, err
	}
	clients, err := flags.Connect()
	if err != nil {
		return Clients{}, "", err
	}
	both, err := clientsOf(clients)
	return both, clients.Namespace, err
}
