package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// ListCommand is mlenv runs.
func ListCommand() *cobra.Command {
	var flags kube.Flags
	var output step.OutputFlag
	var prune, yes, files bool
	cmd := &cobra.Command{
		Use:   "runs [--prune [--files] [RUN...]]",
		Short: "List the runs of a namespace, also deleted ones that left a receipt",
		Long: `List the runs of a namespace, the newest first, also deleted ones that left a receipt.

With --prune mlenv asks, and then deletes receipts: those of the named runs, or of all runs that were deleted. Files stay on
their claims; mlenv claims lists these. With --files mlenv first deletes the working directories of these runs, which have what
their scripts wrote at relative paths; logs and checkpoints stay.

Exit code 0: listed, or deleted; 1: the runs cannot be read, or a receipt was not deleted; 2: wrong usage.`,
		Example: `  mlenv runs
  mlenv runs --prune
  mlenv runs --output=json | jq -r '.[] | select(.state == "Failed") | .name'`,
		Args: func(_ *cobra.Command, args []string) error {
			return errors.Join(step.Want(prune || len(args) == 0, "arguments %q: want --prune with them", args),
				step.Want(prune || !files, "--files: want --prune with it"))
		},
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, args []string) error {
			if prune {
				remove := fetch.Remove
				if !files {
					remove = nil
				}
				return pruneReceipts(cmd, clients, args, yes, remove)
			}
			found, err := summaries(cmd.Context(), clients)
			if err != nil {
				return err
			}
			return output.Print(cmd.OutOrStdout(), found, func(out io.Writer) error {
				if len(found) == 0 {
					if err := kube.NoNamespace(cmd.Context(), clients.Kube, clients.Namespace); err != nil {
						return err
					}
					fmt.Fprintf(cmd.ErrOrStderr(), "No runs in namespace %s.\n", clients.Namespace)
					return nil
				}
				return printTable(out, found, time.Now())
			})
		}),
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), step.Text, step.JSON, step.YAML, step.Names)
	cmd.Flags().BoolVar(&prune, "prune", false, "delete the receipts of the named runs, or of all deleted runs")
	cmd.Flags().BoolVar(&files, "files", false, "with --prune: also delete what the runs wrote at relative paths")
	cmd.Flags().BoolVar(&yes, "yes", false, "with --prune: do not ask")
	cmd.MarkFlagsMutuallyExclusive("prune", "output")
	return cmd
}

func summaries(ctx context.Context, clients *kube.Clients) ([]summary, error) {
	all, err := list(ctx, clients)
	if err != nil {
		return nil, err
	}
	found := make([]summary, 0, len(all))
	for _, r := range all {
		// The receipt of an ended run has the same facts as its tasks.
		if r.run != nil && r.receipt == nil {
			if r.tasks, err = run.TaskRuns(ctx, clients.Tekton, clients.Namespace, r.name, r.run.UID); err != nil {
				return nil, err
			}
		}
		found = append(found, r.summary(clients.Namespace))
	}
	return found, nil
}

func printTable(out io.Writer, found []summary, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.State, cmp.Or(s.Reason, "-"), cmp.Or(strings.Join(s.Phases, ","), "-"), nodes, age, duration)
	}
	return w.Flush()
}
