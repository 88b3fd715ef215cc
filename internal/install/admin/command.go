package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
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

// options are the flags that both commands have.
type options struct {
	kube        kube.Flags
	request     Request
	attachments string
	output      string
	formats     []string
}

// Command is mlenv admin.
func Command() *cobra.Command {
	o := &options{formats: []string{"text", "yaml", "json"}}
	apply := false
	cmd := &cobra.Command{
		Use:   "admin CLUSTER.yaml",
		Short: "Say, and apply, what an administrator does once for RDMA",
		Long: `Admin says what an administrator does once so that the pods of a namespace can use RDMA: service account,
security context constraint and the right to use it, network attachments, MachineConfigs for locked memory and
IOMMU; for each why, what goes wrong without, what it costs, and the command. Without --apply nothing is changed,
and no cluster is asked but for the attachments to copy. Nodes reboot only with --apply and --reboot-pool.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv admin clusters/barcelona.yaml
  mlenv admin clusters/barcelona.yaml -n my-team --service-account=h-kim-sa --scc=nccl-scc --attachments=copy --apply
  mlenv admin clusters/cairo.yaml --output=yaml > for-the-administrator.yaml
  mlenv admin clusters/cairo.yaml --apply --reboot-pool=worker && mlenv admin status clusters/cairo.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if apply {
				o.formats = []string{"text", "json"}
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
	cmd.Flags().StringVar(&o.request.Pool, "reboot-pool", "",
		"MachineConfigPool that the MachineConfigs are for: with --apply they are applied, and EVERY NODE OF IT REBOOTS, one after the other")
	cmd.Flags().BoolVar(&apply, "apply", false, "apply it; without --reboot-pool no node reboots")
	cmd.AddCommand(statusCommand())
	return cmd
}

func statusCommand() *cobra.Command {
	o := &options{formats: []string{"text", "json"}}
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "status CLUSTER.yaml",
		Short: "Show what of it is in place, and follow the nodes' roll-out",
		Long: `Status shows what is in place, and follows the roll-out of the MachineConfigs, if there is one, until all nodes
have them. Nothing is changed.

Exit code 0: everything is in place; 1: something is missing, or cannot be read; 2: wrong usage.`,
		Example: `  mlenv admin status clusters/barcelona.yaml
  mlenv admin status clusters/barcelona.yaml --pool=gpu --timeout=4h`,
		Args: func(cmd *cobra.Command, args []string) error { return o.read(cmd.Context(), args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return o.status(cmd, timeout) },
	}
	o.addTo(cmd)
	cmd.Flags().StringVar(&o.request.Pool, "pool", DefaultPool, "MachineConfigPool of the GPU nodes")
	cmd.Flags().DurationVar(&timeout, "timeout", rolloutTime, "how long to follow a roll-out; 0 does not follow")
	return cmd
}

func (o *options) addTo(cmd *cobra.Command) {
	o.kube.AddTo(cmd.Flags())
	cmd.Flags().Lookup("namespace").Usage = "namespace (default: cluster.namespace of the file)"
	cmd.Flags().StringVar(&o.request.ServiceAccount, "service-account", "", "service account of the pods (default: security.service_account of the file)")
	cmd.Flags().StringVar(&o.request.SCC, "scc", "", "constraint that the cluster has and that is bound (default: security.scc of the file, else privileged or "+OwnSCC+" where the pods need it)")
	cmd.Flags().StringVar(&o.attachments, "attachments", "none", "copy makes copies of the file's network attachments in the namespace")
	cmd.Flags().StringVar(&o.output, "output", "text", strings.Join(o.formats, ", "))
}

// read completes the request. Errors: InvalidInput with every mistake.
func (o *options) read(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("arguments %q: want one cluster file", args)
	}
	file, fileErr := clusterfile.Load(ctx, args[0], o.kube)
	var problems []error
	if !slices.Contains(o.formats, o.output) {
		problems = append(problems, fmt.Errorf("--output %q: want one of %v", o.output, o.formats))
	}
	if o.attachments != "none" && o.attachments != "copy" {
		problems = append(problems, fmt.Errorf("--attachments %q: want none or copy", o.attachments))
	}
	o.request.Cluster, o.request.ClusterFile = file, args[0]
	o.request.Namespace, o.request.CopyAttachments = o.kube.Namespace, o.attachments == "copy"
	if o.request.Pool == "" {
		problems = append(problems, errors.New("the pool is empty: want the name of a MachineConfigPool, as in worker"))
	}
	o.request = o.request.WithDefaults()
	if fileErr == nil {
		problems = append(problems, o.request.Validate())
	}
	if err := errors.Join(append(problems, fileErr)...); err != nil {
		return fail.Because(fail.InvalidInput, err)
	}
	return nil
}

func (o *options) connect(ctx context.Context, warnings io.Writer) (Clients, error) {
	return install.Connect(ctx, warnings, o.kube, o.request.Cluster.Cluster)
}

func (o *options) print(cmd *cobra.Command) error {
	var clients Clients
	if o.request.CopyAttachments {
		var err error
		if clients, err = o.connect(cmd.Context(), cmd.ErrOrStderr()); err != nil {
			return err
		}
	}
	plan, err := planWithCopies(cmd.Context(), clients.Objects, o.request)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch o.output {
	case "yaml":
		for _, warning := range plan.Warnings {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning:", warning)
		}
		return plan.printYAML(out)
	case "json":
		return step.WriteJSON(out, plan)
	}
	return plan.Print(out)
}

func (o *options) apply(cmd *cobra.Command) error {
	clients, err := o.connect(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	out, r := cmd.OutOrStdout(), o.request
	changes := []install.Change{}
	plan, err := Apply(cmd.Context(), clients, r, func(change install.Change) {
		changes = append(changes, change)
		if o.output == "text" {
			fmt.Fprintln(out, change.Object, change.Outcome)
		}
	})
	if o.output == "json" && len(changes) > 0 {
		if err := step.WriteJSON(out, map[string]any{"changes": changes, "warnings": plan.Warnings}); err != nil {
			return err
		}
	}
	if err != nil || o.output == "json" {
		return err
	}
	tell(out, r, changes, plan.Warnings)
	return nil
}

// tell says how to go on after applying.
func tell(out io.Writer, r Request, changes []install.Change, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintln(out, "warning:", warning)
	}
	changed := func(change install.Change) bool { return change.Outcome != install.Unchanged }
	if !slices.ContainsFunc(changes, changed) {
		fmt.Fprintln(out, "nothing was changed: everything is in place already")
		return
	}
	status := fmt.Sprintf("mlenv admin status %s -n %s --service-account=%s", r.ClusterFile, r.Namespace, r.ServiceAccount)
	if r.SCC != "" {
		status += " --scc=" + r.SCC
	}
	if r.Reboot {
		fmt.Fprintf(out, "\nthe nodes of pool %s reboot now, one after the other, where a MachineConfig is new to them\n", r.Pool)
		status += " --pool=" + r.Pool
	}
	fmt.Fprintf(out, "\nwhat is in place, and how far nodes are: %s\n", status)
}

func (o *options) status(cmd *cobra.Command, timeout time.Duration) error {
	clients, err := o.connect(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	status, err := Look(cmd.Context(), clients, o.request)
	if err != nil {
		return err
	}
	out, progress := cmd.OutOrStdout(), cmd.OutOrStdout()
	if o.output == "json" {
		progress = cmd.ErrOrStderr()
	} else {
		status.print(out)
	}
	var followErr error
	if status.rolling() && timeout > 0 {
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("not all nodes are updated after %s", timeout))
		defer cancel()
		*status.Pool, followErr = Follow(ctx, clients, *status.Pool, status.configs, func(line string) { fmt.Fprintln(progress, line) })
	} else if status.Pool != nil && o.output == "text" {
		fmt.Fprintln(out, *status.Pool)
	}
	if o.output == "json" {
		if err := step.WriteJSON(out, status); err != nil {
			return err
		}
	}
	if followErr != nil {
		return followErr
	}
	if !status.complete() {
		return &step.Exit{Code: step.Failed}
	}
	return nil
}

// print writes the rows as a table.
func (s Status) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range s.Rows {
		fmt.Fprintf(table, "%s\t%s\t%s\n", row.State, row.What, row.Detail)
	}
	_ = table.Flush() // what is printed for people has nowhere else to go
	for _, warning := range s.Warnings {
		fmt.Fprintln(w, "warning:", warning)
	}
}
