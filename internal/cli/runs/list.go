// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// ListCommand returns the command mlenv runs.
func ListCommand() *cobra.Command {
	var flags kube.Flags
	var output command.OutputFlag
	var everywhere, watch, here bool
	var limit int
	var trend trendOptions
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List the runs of a namespace, or show how their numbers change from run to run",
		Long: `List the runs of a namespace, or with -A of all that you may read, the newest first. Deleted ones that left a receipt
are included. With --watch mlenv prints a row again when its state, reason or phase changes, until Ctrl-C.

The list includes the local runs of this machine, marked (local) in place of a namespace, except with --watch, or if a flag
chooses a namespace or a cluster. With --local it shows only these, and needs no cluster.

Below the list mlenv names the environments that users keep and have not used for ten minutes, with their holders, if you
may read their ConfigMaps and forward ports.

With --trend mlenv shows bandwidth, step time, final loss, goodput and the speed of devices of all runs of one kind whose
receipts are kept: the same script of the same repository with the same arguments, nodes and ranks in one environment. The
newest run sets the kind, unless --like names another run; mlenv lists the other kinds. It compares the newest run with the
median of the ten that succeeded before it. MATRIX PRODUCT is the rate of the slowest device. SLOWEST DEVICE is the lowest
rate of a device, of products and of copies, in percent of the median of its kind.

Exit code 0: listed; 1: the runs or receipts cannot be read; 2: wrong usage.`,
		Example: `  mlenv runs
  mlenv runs --limit=5 --watch
  mlenv runs --local
  mlenv runs --output=json | jq -r '.items[] | select(.state == "Failed") | .name'
  mlenv runs --trend
  mlenv runs --trend --schedule=nightly --svg=nightly.svg
  mlenv runs --trend --output=json | jq '.runs[] | {run, values}'`,
		Args: func(_ *cobra.Command, args []string) error {
			return errors.Join(command.FlagsOnly(args), trend.check(output),
				command.Want(limit >= 0, "--limit %d: want 0 or more", limit),
				command.Want(!watch || output.ForPeople(), "--watch with --output=%s: want one of them", output.String()))
		},
	}
	watched := envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, _ []string) error {
		if everywhere {
			clients = clientsIn(clients, metav1.NamespaceAll)
		}
		return watchRuns(cmd.Context(), clients, limit, cmd.OutOrStdout())
	})
	compared := envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, _ []string) error {
		return trend.run(cmd, clients, output)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case trend.on:
			return compared(cmd, args)
		case watch:
			return watched(cmd, args)
		}
		found, where, clients, err := allRuns(cmd, flags, here, everywhere, limit)
		if err != nil {
			return err
		}
		if output.ForPeople() && clients != nil {
			if everywhere {
				clients = clientsIn(clients, metav1.NamespaceAll)
			}
			defer noteIdle(cmd, clients)
		}
		return output.PrintAs("RunList", cmd.OutOrStdout(), found, func(out io.Writer) error {
			if len(found) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "No runs %s.\n", where)
				return nil
			}
			return printTable(out, found, time.Now(), everywhere)
		})
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML, command.Names)
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "list the runs of all namespaces")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print runs again when they change, until Ctrl-C")
	cmd.Flags().IntVar(&limit, "limit", 0, "list only so many runs, the newest ones; 0 is all")
	cmd.Flags().BoolVar(&here, "local", false, "list only the local runs of this machine")
	trend.addTo(cmd.Flags())
	for _, other := range []string{"all-namespaces", "watch", "limit", "local"} {
		cmd.MarkFlagsMutuallyExclusive("trend", other)
	}
	cmd.MarkFlagsMutuallyExclusive("all-namespaces", "namespace")
	for _, other := range []string{"all-namespaces", "namespace", "context", "kubeconfig", "watch"} {
		cmd.MarkFlagsMutuallyExclusive("local", other)
	}
	return cmd
}

// allRuns returns the newest runs of the namespace and of this machine, where they were looked for, and the clients of the cluster. Without
// a cluster, or if it does not answer, it returns the local runs, if there are any, and no clients.
func allRuns(cmd *cobra.Command, flags kube.Flags, local, everywhere bool,
	limit int) (found []summary, where string, clients *kube.Clients, err error) {
	if flags == (kube.Flags{}) {
		here, err := localRuns()
		if err != nil && local {
			return nil, "", nil, err
		}
		for _, r := range here {
			found = append(found, r.summary())
		}
	}
	where = "on this machine"
	if !local {
		clients, err = flags.Connect()
		var remote []summary
		if err == nil {
			remote, where, err = remoteRuns(cmd.Context(), clients, everywhere, limit)
		}
		switch {
		case len(found) > 0 && noCluster(clients, err):
			where, clients = "on this machine", nil
			onlyHere(cmd, err)
		case err != nil:
			return nil, "", nil, err
		}
		found = append(found, remote...)
	}
	slices.SortStableFunc(found, func(a, b summary) int { return b.Started.Compare(a.Started) })
	if limit > 0 {
		found = found[:min(limit, len(found))]
	}
	return found, where, clients, nil
}

// noteIdle prints the idle environments of the clients' namespace, or of all, with their holders: their GPUs could train.
func noteIdle(cmd *cobra.Command, clients *kube.Clients) {
	idle, _ := env.IdleEnvironments(cmd.Context(), clients) // who may not list Leases sees none
	for _, each := range idle {
		fmt.Fprintln(cmd.ErrOrStderr(), each)
	}
}

// remoteRuns returns the newest runs of the namespace, or of all.
func remoteRuns(ctx context.Context, clients *kube.Clients, everywhere bool, limit int) (found []summary, where string, err error) {
	where = "in namespace " + clients.Namespace
	if everywhere {
		clients, where = clientsIn(clients, metav1.NamespaceAll), "in any namespace"
	}
	found, err = summaries(ctx, clients, limit)
	if err == nil && len(found) == 0 && !everywhere {
		err = kube.NoNamespace(ctx, clients.Kube, clients.Namespace)
	}
	return found, where, err
}

// clientsIn returns the clients for another namespace.
func clientsIn(clients *kube.Clients, namespace string) *kube.Clients {
	other := *clients
	other.Namespace = namespace
	return &other
}

// summaries describes the newest runs, at most limit; 0 means all.
func summaries(ctx context.Context, clients *kube.Clients, limit int) ([]summary, error) {
	all, err := listRuns(ctx, clients)
	if err != nil {
		return nil, err
	}
	if limit > 0 {
		all = all[:min(limit, len(all))]
	}
	found := make([]summary, 0, len(all))
	for _, r := range all {
		if err := r.complete(ctx, clients); err != nil {
			return nil, err
		}
		found = append(found, r.summary())
	}
	return found, nil
}

// complete reads what the steps have not noted: only Tekton knows the tasks whose steps have not started.
func (r *runInfo) complete(ctx context.Context, clients *kube.Clients) error {
	if r.run == nil || r.receipt != nil || len(r.standing().Running) > 0 {
		return nil
	}
	return r.readTasks(ctx, clients)
}

// watchRuns prints all runs, and again each that has changed, until ctx ends.
func watchRuns(ctx context.Context, clients *kube.Clients, limit int, out io.Writer) error {
	printed := map[string]string{}
	what, runs := "pipelineruns in "+cmp.Or(clients.Namespace, "all namespaces"), clients.Tekton.TektonV1().PipelineRuns(clients.Namespace)
	err := kube.WatchUntil(ctx, what, runs, metav1.ListOptions{LabelSelector: pipelineSelector},
		func([]*v1.PipelineRun) (bool, error) {
			found, err := summaries(ctx, clients, limit)
			if err != nil {
				return false, err
			}
			changed := slices.DeleteFunc(found, func(s summary) bool {
				id, state := s.Namespace+"/"+s.Name, fmt.Sprint(s.State, s.Reason, s.Phases, s.Nodes)
				same := printed[id] == state
				printed[id] = state
				return same
			})
			if len(changed) == 0 {
				return false, nil
			}
			slices.Reverse(changed) // the newest change is the last line
			var table strings.Builder
			err = printTable(&table, changed, time.Now(), clients.Namespace == metav1.NamespaceAll)
			if _, failed := io.WriteString(out, command.ForTerminal(table.String())); err == nil {
				err = failed
			}
			return false, err
		})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // Ctrl-C ends the list
	}
	return err
}

func printTable(out io.Writer, found []summary, now time.Time, namespaces bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	namespaces = namespaces || slices.ContainsFunc(found, func(s summary) bool { return s.Local })
	if namespaces {
		fmt.Fprint(w, "NAMESPACE\t")
	}
	fmt.Fprintln(w, "NAME\tSTATE\tREASON\tPHASE\tNODES\tAGE\tDURATION")
	for _, s := range found {
		nodes, age, duration := "-", "-", "-"
		if s.Nodes > 0 {
			nodes = strconv.Itoa(s.Nodes)
		}
		if !s.Started.IsZero() {
			age = humanize.Duration(now.Sub(s.Started).Truncate(time.Second))
		}
		if d := s.duration(now); d > 0 {
			duration = humanize.Duration(d)
		}
		if namespaces {
			fmt.Fprint(w, s.namespaceText()+"\t")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.stateText(), cmp.Or(s.Reason, "-"), cmp.Or(strings.Join(s.Phases, ","), "-"),
			nodes, age, duration)
	}
	return w.Flush()
}
