package runs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// ListCommand is mlenv runs.
func ListCommand() *cobra.Command {
	var flags kube.Flags
	var output step.OutputFlag
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List the runs of a namespace, also those of which only the receipt is left",
		Long: `List the runs of a namespace, the newest first: those that go on, those that have ended, and those whose
PipelineRun was deleted and whose receipt is still there.

Exit code 0: they are listed; 1: they cannot be read; 2: wrong usage.`,
		Example: `  mlenv runs
  mlenv runs --output=json | jq -r '.[] | select(.state == "Failed") | .name'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := flags.Connect()
			if err != nil {
				return err
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
				return table(out, found, time.Now())
			})
		},
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), step.Text, step.JSON, step.YAML, step.Names)
	return cmd
}

// summaryList are runs, the newest first.
type summaryList []summary

// Names implements step.Named.
func (l summaryList) Names() []string {
	names := make([]string, len(l))
	for i, s := range l {
		names[i] = s.Name
	}
	return names
}

func summaries(ctx context.Context, clients *kube.Clients) (summaryList, error) {
	all, err := list(ctx, clients)
	if err != nil {
		return nil, err
	}
	found := make(summaryList, 0, len(all))
	for _, k := range all {
		// Where a run is, only its tasks tell; how one ended, its receipt does.
		if k.run != nil && k.receipt == nil {
			if k.tasks, err = run.TaskRuns(ctx, clients.Tekton, clients.Namespace, k.name, k.run.UID); err != nil {
				return nil, err
			}
		}
		found = append(found, k.summary(clients.Namespace))
	}
	return found, nil
}

func table(out io.Writer, found []summary, now time.Time) error {
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
