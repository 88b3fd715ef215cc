package setup

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/install/admin"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// rolloutTime is how long the nodes of a pool may take: about ten minutes each.
const rolloutTime = 2 * time.Hour

// AdminCommand is mlenv admin.
func AdminCommand() *cobra.Command {
	o := &admin.Options{}
	apply := false
	cmd := &cobra.Command{
		Use:   "admin [CLUSTER.yaml]",
		Short: "Print or apply the one-time set-up for RDMA",
		Long: `Admin prints the objects and commands with which an administrator lets the pods of a namespace use RDMA: service
account, security context constraint and the right to use it, network attachments, MachineConfigs for locked memory
and IOMMU. docs/rdma.md explains why each is needed and what it costs. Without a cluster file mlenv uses the one that is
installed in the namespace.

Without --apply admin changes nothing, and connects to a cluster only for the attachments to copy. Nodes reboot only
with --apply and --reboot-pool.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv admin clusters/barcelona.yaml
  mlenv admin clusters/barcelona.yaml -n my-team --service-account=h-kim-sa --scc=nccl-scc --attachments=copy --apply
  mlenv admin clusters/cairo.yaml --output=yaml > for-the-administrator.yaml
  mlenv admin clusters/cairo.yaml --apply --reboot-pool=worker && mlenv admin status clusters/cairo.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if apply && o.Output.Is(step.YAML) {
				return errors.New("--apply with --output=yaml, which prints the objects and changes nothing: want one of the two")
			}
			if o.Request.Reboot = cmd.Flags().Changed("reboot-pool"); !o.Request.Reboot {
				o.Request.Pool = admin.DefaultPool
			}
			return o.Read(cmd.Context(), args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if apply {
				return o.Apply(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			return o.Print(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	addAdminFlags(cmd, o)
	o.Output.AddUse(cmd.Flags(), "text, json for programs, or yaml for the objects alone", step.Text, step.JSON, step.YAML)
	cmd.Flags().StringVar(&o.Request.Pool, "reboot-pool", "",
		"MachineConfigPool of the MachineConfigs: --apply applies them, and EVERY NODE OF THE POOL REBOOTS, one after the other")
	cmd.Flags().BoolVar(&apply, "apply", false, "apply the objects; without --reboot-pool no node reboots")
	cmd.AddCommand(adminStatusCommand())
	return cmd
}

func adminStatusCommand() *cobra.Command {
	o := &admin.Options{}
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "status [CLUSTER.yaml]",
		Short: "Show what is in place, and follow the nodes' roll-out",
		Long: `Status shows what is in place, and follows a roll-out of the MachineConfigs until all nodes have them. It changes nothing.
Without a cluster file mlenv uses the one that is installed in the namespace.

Exit codes: 0 everything is in place, 1 something is missing or cannot be read, 2 wrong usage.`,
		Example: `  mlenv admin status clusters/barcelona.yaml
  mlenv admin status clusters/barcelona.yaml --pool=gpu --timeout=4h`,
		Args: func(cmd *cobra.Command, args []string) error { return o.Read(cmd.Context(), args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Status(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), timeout)
		},
	}
	addAdminFlags(cmd, o)
	o.Output.AddTo(cmd.Flags(), step.Text, step.JSON, step.YAML)
	cmd.Flags().StringVar(&o.Request.Pool, "pool", admin.DefaultPool, "MachineConfigPool of the GPU nodes")
	cmd.Flags().DurationVar(&timeout, "timeout", rolloutTime, "how long to follow a roll-out; 0 does not follow")
	return cmd
}

func addAdminFlags(cmd *cobra.Command, o *admin.Options) {
	o.Kube.AddNamespace(cmd.Flags(), "namespace (default: cluster.namespace of the file)")
	cmd.Flags().StringVar(&o.Request.ServiceAccount, "service-account", "", "service account of the pods (default: security.service_account of the file)")
	cmd.Flags().StringVar(&o.Request.SCC, "scc", "", "existing constraint to bind (default: security.scc of the file, otherwise privileged or "+admin.OwnSCC+" if the pods need it)")
	cmd.Flags().StringVar(&o.Attachments, "attachments", "none", "copy copies the file's network attachments into the namespace")
}
