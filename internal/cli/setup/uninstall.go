// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// UninstallCommand returns the command mlenv uninstall.
func UninstallCommand() *cobra.Command {
	var (
		flags   kube.Flags
		removal install.Removal
		output  command.OutputFlag
	)
	cmd := &cobra.Command{
		Use:   "uninstall [CLUSTER.yaml]",
		Short: "Delete what install created in a namespace, except claims and receipts",
		Long: `Uninstall deletes what mlenv install created in a namespace (Tasks, Pipelines, Role, ServiceAccount, cluster files,
schedules) and what builds left there (BuildConfigs, ImageStreams with their images). It never deletes claims, nor what
mlenv admin printed; it deletes receipts only with --receipts, and what mlenv install --admin created only with --admin.
It prints what is kept, such as the PipelineRuns of the past with their pods, from which mlenv fetch knows its image. You
can run it again.

It fails if runs are in progress or environments exist. --end-runs ends them at once: it cancels runs without their
teardown, which would lose its rights midway, and deletes environments. Their claims stay; the runs get no receipt.

--namespace names the namespace, otherwise the cluster file does, otherwise the kubeconfig. With a cluster file
uninstall checks that this is its cluster.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv uninstall clusters/cairo.yaml --dry-run
  mlenv uninstall -n nccl-test
  mlenv uninstall -n nccl-test --receipts --end-runs`,
		Args: command.Arguments(0, 1, "one cluster file or none"),
		RunE: func(cmd *cobra.Command, args []string) error {
			clients, namespace, err := connect(cmd, flags, args)
			if err != nil {
				return err
			}
			removal.Namespace = namespace
			report, err := install.Uninstall(cmd.Context(), clients, removal)
			if printErr := output.Print(cmd.OutOrStdout(), report, report.Print); err == nil {
				err = printErr
			}
			if err == nil && output.ForPeople() && len(report.Changes) == 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "nothing of ml-dev-env is installed in namespace %s\n", namespace)
			}
			return err
		},
	}
	flags.AddNamespace(cmd.Flags(), "namespace (default: cluster.namespace of the file, otherwise the kubeconfig's)")
	cmd.Flags().BoolVar(&removal.Receipts, "receipts", false, "also delete the receipts of runs")
	cmd.Flags().BoolVar(&removal.Admin, "admin", false, "also delete what install --admin created, which needs a cluster administrator")
	cmd.Flags().BoolVar(&removal.EndRuns, "end-runs", false, "cancel runs without their teardown, and delete environments; claims stay")
	cmd.Flags().BoolVar(&removal.DryRun, "dry-run", false, "show what would be deleted, and change nothing")
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML)
	return cmd
}

// where returns the cluster's clients and the namespace.
func connect(cmd *cobra.Command, flags kube.Flags, args []string) (*kube.Clients, string, error) {
	if len(args) == 1 {
		file, err := clusterfile.Load(cmd.Context(), args[0], flags)
		if err != nil {
			return nil, "", fail.Because(fail.InvalidInput, err)
		}
		clients, err := install.Connect(cmd.Context(), cmd.ErrOrStderr(), flags, file.Cluster)
		return clients, cmp.Or(flags.Namespace, file.Cluster.Namespace), err
	}
	clients, err := flags.Connect()
	if err != nil {
		return nil, "", err
	}
	return clients, clients.Namespace, nil
}
