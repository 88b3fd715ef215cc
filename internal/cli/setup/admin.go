// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/install/admin"
)

// AdminCommand returns the command mlenv admin.
func AdminCommand() *cobra.Command {
	o := &admin.Options{}
	cmd := &cobra.Command{
		Use:   "admin [CLUSTER.yaml]",
		Short: "Print the one-time set-up for RDMA, for an administrator to apply",
		Long: `Admin prints the manifests with which an administrator lets the pods of a namespace use RDMA: service account,
security context constraint and the right to use it, network attachments, MachineConfigs for locked memory and IOMMU.
Comments explain for each why it is needed, what it costs, and how to check it. Without a cluster file mlenv uses the one
that is installed in the namespace.

Review the output, then pipe it into oc apply -f -. Admin itself changes nothing, and connects to a cluster only to find
the installed cluster file, or the attachments to copy. The MachineConfigs, which reboot nodes, are comments unless
--reboot-pool names their pool. mlenv preflight shows whether all is in place.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv admin clusters/barcelona.yaml
  mlenv admin clusters/barcelona.yaml | oc apply -f -
  mlenv admin clusters/h-kim.yaml -n my-team --attachments=copy | oc apply -f -
  mlenv admin clusters/cairo.yaml --reboot-pool=worker | oc apply -f -`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.Request.Reboot = cmd.Flags().Changed("reboot-pool"); !o.Request.Reboot {
				o.Request.Pool = admin.DefaultPool
			}
			return o.Read(cmd.Context(), args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Print(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	o.Kube.AddNamespace(flags, "namespace (default: cluster.namespace of the file)")
	flags.StringVar(&o.Request.ServiceAccount, "pod-account", "",
		"service account of the pods (default: security.service_account of the file)")
	flags.StringVar(&o.Request.SCC, "scc", "",
		"existing constraint to allow (default: security.scc of the file, otherwise privileged or "+admin.OwnSCC+" if the pods need it)")
	flags.StringVar(&o.Attachments, "attachments", "none", "copy prints copies of the file's network attachments in the namespace")
	flags.StringVar(&o.Request.Pool, "reboot-pool", "",
		"MachineConfigPool of the MachineConfigs: includes them, and EVERY NODE OF THE POOL REBOOTS, one after the other, once they are applied")
	return cmd
}
