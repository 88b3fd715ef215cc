// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/trend"
	"github.com/ml-dev-env/ml-dev-env/internal/version"
)

const defaultName = "nightly"

// Main is mlenv in the pod of a schedule; schedule is its only command. It returns the exit code. The steps image must not
// contain the other commands: they embed the Tasks, and a released Task names the digest of the steps image.
func Main(args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "mlenv", Short: "Start the runs of a schedule", Version: version.String()}
	root.AddCommand(Command())
	return command.MainCommands(root, args, stdout, stderr)
}

// Command returns the command mlenv schedule.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Train on the cluster every night, and report regressions",
		Long: `A schedule is a CronJob that starts the installed pipeline, follows it, and compares bandwidth, step time and final loss
with the median of the schedule's last ten runs that succeeded.`,
	}
	cmd.AddCommand(installCommand(), showCommand(), removeCommand(), fireCommand())
	return cmd
}

func installCommand() *cobra.Command {
	var flags kube.Flags
	var params []string
	var output command.OutputFlag
	var image string
	s := Schedule{}
	cmd := &cobra.Command{
		Use:   "install [NAME] --at=HH:MM --param=repo-url=URL --param=script=PATH",
		Short: "Create or change a schedule",
		Long: `Create or change a schedule (default: nightly). The pipeline must be installed in the namespace.

The runs of a schedule never overlap. If another run or user holds the environment, the schedule skips the night; with
--on-busy=wait the run waits up to its start-timeout.

Exit code 0: done; 1: failed; 2: wrong usage.`,
		Example: `  mlenv schedule install --at=02:30 --time-zone=Europe/Madrid --days=mon-fri \
    --param=repo-url=https://github.com/me/model.git --param=script=train.py --param=nodes=2
  mlenv schedule install --at=02:30 ... --output=yaml | oc apply -f -`,
		Args: command.Arguments(0, 1, "one schedule or none"),
	}
	flags.AddTo(cmd.Flags())
	f := cmd.Flags()
	f.StringVar(&s.At, "at", "", "time of day at which to start, such as 02:30")
	f.StringVar(&s.Days, "days", "*", "days on which to start, such as mon-fri or sat,sun; * is all")
	f.StringVar(&s.TimeZone, "time-zone", "UTC", "time zone of --at, such as Europe/Madrid")
	f.StringArrayVar(&params, "param", nil, "NAME=VALUE of a param of the pipeline; may be repeated, for an array once for each value")
	onBusy.AddTo(f, &s.OnBusy, "on-busy", "skip", "what to do if another run or user holds the environment: skip the night, or wait")
	f.StringVar(&s.ServiceAccount, "service-account", "", "ServiceAccount of the runs (default: the one of mlenv install)")
	f.StringVar(&image, "steps-image", "", "image of the steps, by digest (default: the installed pipeline's)")
	output.AddUse(f, "yaml prints the objects instead of applying them", command.Text, command.YAML)
	s.Tolerance = trend.AddTolerances(f)
	_ = cmd.MarkFlagRequired("at") // the flag is defined above
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.Name = cmp.Or(strings.Join(args, ""), defaultName)
		var invalid error
		s.Values, invalid = launch.ParseValues(params)
		if err := errors.Join(s.Check(), invalid); err != nil {
			return &command.Exit{Code: command.WrongUsage, Err: err}
		}
		clients, err := flags.Connect()
		if err != nil {
			return err
		}
		return s.install(cmd, clients, image, output.Is(command.YAML))
	}
	return cmd
}

// install checks the params against the pipeline, and applies the objects.
func (s Schedule) install(cmd *cobra.Command, clients *kube.Clients, image string, print bool) error {
	ctx := cmd.Context()
	pipeline, err := launch.Installed(ctx, clients)
	if err != nil {
		return err
	}
	if _, err := launch.Params(pipeline, s.Values); err != nil { // a run would fail every night
		return &command.Exit{Code: command.WrongUsage, Err: err}
	}
	s.Notify = launch.ParamValue(pipeline, s.Values, "notify")
	s.Deadline = int64((launch.Longest(pipeline, s.Values) + spare).Seconds())
	objects, err := s.untyped(clients.Namespace, cmp.Or(image, launch.ParamValue(pipeline, nil, "steps-image")))
	if err != nil {
		return err
	}
	if print {
		return command.WriteObjects(cmd.OutOrStdout(), objects)
	}
	err = install.ApplyAll(ctx, clients, objects,
		func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
		func(change install.Change) { fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", change.Object, change.Outcome) })
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "\nschedule %s starts a run at %s %s, on days %s\n  now:   oc create job --from=cronjob/%s%s %s%s-now -n "+
		"%s\n  trend: mlenv runs --trend --schedule=%s -n %s\n",
		s.Name, s.At, s.TimeZone, s.Days, prefix, s.Name, prefix, s.Name, clients.Namespace, s.Name, clients.Namespace)
	linked := clients.LinkedPullSecrets(ctx, clients.Namespace, prefix+s.Name)
	for _, secret := range clients.LinkedPullSecrets(ctx, clients.Namespace, launch.AccountOf(pipeline)) {
		if !slices.Contains(linked, secret) {
			fmt.Fprintf(cmd.OutOrStdout(), "  its pods pull the steps image, too: oc secrets link %s%s %s --for=pull -n %s\n", prefix, s.Name,
				secret.Name, clients.Namespace)
		}
	}
	return nil
}

func showCommand() *cobra.Command {
	var flags kube.Flags
	var output command.OutputFlag
	cmd := &cobra.Command{
		Use:   "show",
		Short: "List the schedules of a namespace",
		Long:  "List the schedules of a namespace.\n\nExit code 0: listed; 1: they cannot be read; 2: wrong usage.",
		Args:  cobra.NoArgs,
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, _ []string) error {
			found, err := clients.Kube.BatchV1().CronJobs(clients.Namespace).List(cmd.Context(), metav1.ListOptions{LabelSelector: selector})
			if err != nil {
				return kube.Problem(fmt.Errorf("listing schedules in %s: %w", clients.Namespace, err))
			}
			all := []Schedule{}
			for i := range found.Items {
				s, err := readSchedule(&found.Items[i])
				if err != nil {
					return err
				}
				all = append(all, s.withoutUser())
			}
			return output.Print(cmd.OutOrStdout(), all, func(io.Writer) error { return list(cmd, all, found.Items) })
		}),
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML, command.Names)
	return cmd
}

func list(cmd *cobra.Command, all []Schedule, jobs []batchv1.CronJob) error {
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tAT\tDAYS\tTIME ZONE\tLAST\tPARAMS")
	for i, s := range all {
		last := "-"
		if at := jobs[i].Status.LastScheduleTime; at != nil {
			last = at.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.At, s.Days, s.TimeZone, last, s.paramsText())
	}
	return table.Flush()
}

func removeCommand() *cobra.Command {
	var flags kube.Flags
	cmd := &cobra.Command{
		Use:   "remove [NAME]",
		Short: "Remove a schedule; receipts stay, and a run in progress continues",
		Long: "Remove a schedule (default: nightly). Its receipts stay, and a run in progress continues.\n\nExit code 0: removed; 1: failed; " +
			"2: wrong usage.",
		Args: command.Arguments(0, 1, "one schedule or none"),
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, args []string) error {
			return remove(cmd.Context(), clients.Objects, clients.Namespace, cmp.Or(strings.Join(args, ""), defaultName))
		}),
	}
	flags.AddTo(cmd.Flags())
	return cmd
}

func remove(ctx context.Context, client dynamic.Interface, namespace, name string) error {
	background := metav1.DeletePropagationBackground
	for _, where := range []schema.GroupVersionResource{
		cronJobs,
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
		{Version: "v1", Resource: "serviceaccounts"},
	} {
		objects := client.Resource(where).Namespace(namespace)
		found, err := objects.List(ctx, metav1.ListOptions{LabelSelector: selector, FieldSelector: "metadata.name=" + prefix + name})
		if err != nil {
			return kube.Problem(fmt.Errorf("listing %s of schedule %s/%s: %w", where.Resource, namespace, name, err))
		}
		if len(found.Items) == 0 && where == cronJobs {
			return fail.Advise(fail.Becausef(fail.InvalidInput, "removing schedule %s/%s: not found", namespace, name), "mlenv schedule show -n %s",
				namespace)
		}
		for _, each := range found.Items {
			uid := each.GetUID()
			err := objects.Delete(ctx, each.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid},
				PropagationPolicy: &background})
			if err := kube.Deleted(where.Resource+" "+namespace+"/"+each.GetName(), err); err != nil {
				return err
			}
		}
	}
	return nil
}

func fireCommand() *cobra.Command {
	var flags kube.Flags
	var events notify.Flags
	var job string
	cmd := &cobra.Command{
		Use:    "fire NAME --job=JOB",
		Short:  "The Job of a schedule: start or find its run, follow it, compare it",
		Hidden: true, // the CronJob calls it
		Args:   cobra.ExactArgs(1),
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, args []string) error {
			r := &runner{clients: clients, log: command.TextLog(cmd.OutOrStdout()), now: clients.Now, notify: events}
			return exitOf(r.fire(cmd.Context(), args[0], job))
		}),
	}
	flags.AddTo(cmd.Flags())
	events.AddTo(cmd.Flags())
	cmd.Flags().StringVar(&job, "job", "", "the Job of this pod; its scheduled time names the run")
	_ = cmd.MarkFlagRequired("job") // the flag is defined above
	return cmd
}

// exitOf gives a transient error an exit code after which the Job starts another pod, which finds the run.
func exitOf(err error) error {
	if kube.Transient(err) {
		return &command.Exit{Code: command.Interrupted, Err: err}
	}
	return err
}
