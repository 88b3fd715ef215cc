package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// rolloutTime is how long the nodes of a pool may take: about ten minutes each.
const rolloutTime = 2 * time.Hour

type options struct {
	kube        kube.Flags
	request     Request
	attachments string
	output      step.OutputFlag
}

// Command is mlenv admin.
func Command() *cobra.Command {
	o := &options{}
	apply := false
	cmd := &cobra.Command{
		Use:   "admin CLUSTER.yaml",
		Short: "Print or apply the one-time set-up for RDMA",
		Long: `Admin prints the objects and commands with which an administrator lets the pods of a namespace use RDMA: service
account, security context constraint and the right to use it, network attachments, MachineConfigs for locked memory
and IOMMU. docs/rdma.md explains why each is needed and what it costs.

Without --apply admin changes nothing, and connects to a cluster only for the attachments to copy. Nodes reboot only
with --apply and --reboot-pool.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv admin clusters/barcelona.yaml
  mlenv admin clusters/barcelona.yaml -n my-team --service-account=h-kim-sa --scc=nccl-scc --attachments=copy --apply
  mlenv admin clusters/cairo.yaml --output=yaml > for-the-administrator.yaml
  mlenv admin clusters/cairo.yaml --apply --reboot-pool=worker && mlenv admin status clusters/cairo.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if apply && o.output.Is(step.YAML) {
				return errors.New("--apply with --output=yaml, which prints the objects and changes nothing: want one of the two")
			}
			if o.request.Reboot = cmd.Flags().Changed("reboot-pool"); !o.request.Reboot {
				o.request.Pool = DefaultPool
			}
			return o.read(cmd.Context(), args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if apply {
				return o.apply(cmd)
			}
			return o.print(cmd)
		},
	}
	o.addTo(cmd)
	o.output.AddUse(cmd.Flags(), "text, json for programs, or yaml for the objects alone", step.Text, step.JSON, step.YAML)
	cmd.Flags().StringVar(&o.request.Pool, "reboot-pool", "",
		"MachineConfigPool of the MachineConfigs: --apply applies them, and EVERY NODE OF THE POOL REBOOTS, one after the other")
	cmd.Flags().BoolVar(&apply, "apply", false, "apply the objects; without --reboot-pool no node reboots")
	cmd.AddCommand(statusCommand())
	return cmd
}

func statusCommand() *cobra.Command {
	o := &options{}
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "status CLUSTER.yaml",
		Short: "Show what is in place, and follow the nodes' roll-out",
		Long: `Status shows what is in place, and follows a roll-out of the MachineConfigs until all nodes have them. It changes nothing.

Exit codes: 0 everything is in place, 1 something is missing or cannot be read, 2 wrong usage.`,
		Example: `  mlenv admin status clusters/barcelona.yaml
  mlenv admin status clusters/barcelona.yaml --pool=gpu --timeout=4h`,
		Args: func(cmd *cobra.Command, args []string) error { return o.read(cmd.Context(), args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return o.status(cmd, timeout) },
	}
	o.addTo(cmd)
	o.output.AddTo(cmd.Flags(), step.Text, step.JSON, step.YAML)
	cmd.Flags().StringVar(&o.request.Pool, "pool", DefaultPool, "MachineConfigPool of the GPU nodes")
	cmd.Flags().DurationVar(&timeout, "timeout", rolloutTime, "how long to follow a roll-out; 0 does not follow")
	return cmd
}

func (o *options) addTo(cmd *cobra.Command) {
	o.kube.AddNamespace(cmd.Flags(), "namespace (default: cluster.namespace of the file)")
	cmd.Flags().StringVar(&o.request.ServiceAccount, "service-account", "", "service account of the pods (default: security.service_account of the file)")
	cmd.Flags().StringVar(&o.request.SCC, "scc", "", "existing constraint to bind (default: security.scc of the file, otherwise privileged or "+OwnSCC+" if the pods need it)")
	cmd.Flags().StringVar(&o.attachments, "attachments", "none", "copy copies the file's network attachments into the namespace")
}

// read completes the request. Errors: InvalidInput with every mistake.
func (o *options) read(ctx context.Context, args []string) error {
	if err := step.Arguments(1, 1, "one cluster file")(nil, args); err != nil {
		return err
	}
	file, fileErr := clusterfile.Load(ctx, args[0], o.kube)
	var problems []error
	if o.attachments != "none" && o.attachments != "copy" {
		problems = append(problems, fmt.Errorf("--attachments %q: want none or copy", o.attachments))
	}
	if o.request.Pool == "" {
		problems = append(problems, errors.New("the pool is empty: want the name of a MachineConfigPool, as in worker"))
	}
	o.request.Cluster, o.request.ClusterFile = file, args[0]
	o.request.Namespace, o.request.CopyAttachments = o.kube.Namespace, o.attachments == "copy"
	o.request = o.request.WithDefaults()
	if fileErr == nil {
		problems = append(problems, o.request.Validate())
	}
	if err := errors.Join(append(problems, fileErr)...); err != nil {
		return fail.Because(fail.InvalidInput, err)
	}
	return nil
}

func (o *options) connect(cmd *cobra.Command) (Clients, error) {
	return install.Connect(cmd.Context(), cmd.ErrOrStderr(), o.kube, o.request.Cluster.Cluster)
}

func (o *options) print(cmd *cobra.Command) error {
	var clients Clients
	if o.request.CopyAttachments {
		var err error
		if clients, err = o.connect(cmd); err != nil {
			return err
		}
	}
	plan, err := planWithCopies(cmd.Context(), clients.Objects, o.request)
	if err != nil {
		return err
	}
	if o.output.Is(step.YAML) {
		printWarnings(cmd.ErrOrStderr(), plan.Warnings)
		return plan.printYAML(cmd.OutOrStdout())
	}
	return o.output.Print(cmd.OutOrStdout(), plan, plan.Print)
}

func printWarnings(w io.Writer, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintln(w, "warning:", warning)
	}
}

func (o *options) apply(cmd *cobra.Command) error {
	clients, err := o.connect(cmd)
	if err != nil {
		return err
	}
	out, changes := cmd.OutOrStdout(), []install.Change{}
	plan, err := Apply(cmd.Context(), clients, o.request, func(change install.Change) {
		changes = append(changes, change)
		if o.output.ForPeople() {
			fmt.Fprintln(out, change.Object, change.Outcome)
		}
	})
	switch {
	case !o.output.ForPeople() && len(changes) > 0:
		return errors.Join(step.WriteJSON(out, map[string]any{"changes": changes, "warnings": plan.Warnings}), err)
	case err == nil && o.output.ForPeople():
		printNext(out, o.request, changes, plan.Warnings)
	}
	return err
}

// printNext prints what happens after applying, and the command that shows it.
func printNext(out io.Writer, r Request, changes []install.Change, warnings []string) {
	printWarnings(out, warnings)
	if !slices.ContainsFunc(changes, func(change install.Change) bool { return change.Outcome != install.Unchanged }) {
		fmt.Fprintln(out, "nothing was changed: everything is in place already")
		return
	}
	status := fmt.Sprintf("mlenv admin status %s -n %s --service-account=%s", r.ClusterFile, r.Namespace, r.ServiceAccount)
	if r.SCC != "" {
		status += " --scc=" + r.SCC
	}
	if r.Reboot {
		fmt.Fprintf(out, "\nthe nodes of pool %s that lack a MachineConfig reboot now, one after the other\n", r.Pool)
		status += " --pool=" + r.Pool
	}
	fmt.Fprintf(out, "\nto see what is in place and how far the nodes are: %s\n", status)
}

func (o *options) status(cmd *cobra.Command, timeout time.Duration) error {
	clients, err := o.connect(cmd)
	if err != nil {
		return err
	}
	status, err := Look(cmd.Context(), clients, o.request)
	if err != nil {
		return err
	}
	out, progress := cmd.OutOrStdout(), cmd.ErrOrStderr()
	if o.output.ForPeople() {
		progress = out
		status.print(out)
	}
	var followErr error
	if status.rolling() && timeout > 0 {
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("not all nodes are updated after %s", timeout))
		defer cancel()
		*status.Pool, followErr = Follow(ctx, clients, *status.Pool, status.configs, func(line string) { fmt.Fprintln(progress, line) })
	} else if status.Pool != nil && o.output.ForPeople() {
		fmt.Fprintln(out, *status.Pool)
	}
	// The text was printed before the roll-out, whose progress follows it.
	if err := o.output.Print(out, status, func(io.Writer) error { return nil }); err != nil {
		return err
	}
	if followErr == nil && !status.complete() {
		return &step.Exit{Code: step.Failed}
	}
	return followErr
}
