package runs

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// ReceiptCommand is mlenv receipt.
func ReceiptCommand() *cobra.Command {
	var flags kube.Flags
	var output step.OutputFlag
	var page string
	cmd := &cobra.Command{
		Use:   "receipt RUN",
		Short: "Show the account of a run that has ended",
		Long: `Show the receipt of a run: how it ended and why, what it trained from and on, how long each phase took, and how
each rank ended. It outlives the run and its environment.

With --html it becomes a page in one file, which needs nothing else: the phases on a time line, the curves of loss and
throughput, the bandwidth against the expected one, a map of nodes, ranks and rails, and what shows why a run failed.
A file that exists is not written over.

Exit code 0: it is shown, whatever the verdict; 1: there is none (yet); 2: wrong usage.`,
		Example:           "  mlenv receipt train-multi-node-x7k2p\n  mlenv receipt train-multi-node-x7k2p --output=json\n  mlenv receipt train-multi-node-x7k2p --html=report.html",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeRun(&flags),
		RunE: func(cmd *cobra.Command, args []string) error {
			clients, k, err := named(cmd.Context(), flags, args[0])
			if err != nil {
				return err
			}
			if k.receipt == nil {
				return fail.Advise(fail.Becausef(fail.InvalidInput, "reading the receipt of run %s: it is %s and has none yet: teardown writes it", k.name, k.state()),
					"mlenv status %s -n %s", k.name, clients.Namespace)
			}
			if page != "" {
				return writePage(cmd.OutOrStdout(), page, *k.receipt)
			}
			return output.Print(cmd.OutOrStdout(), k.receipt, func(out io.Writer) error { return printReceipt(out, *k.receipt) })
		},
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), step.Text, step.JSON, step.YAML)
	cmd.Flags().StringVar(&page, "html", "", "write the report as a page into this file; - is standard output")
	cmd.MarkFlagsMutuallyExclusive("html", "output")
	return cmd
}

// printReceipt leaves out what is not known.
func printReceipt(out io.Writer, r receipt.Receipt) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("run", r.Namespace+"/"+r.Run)
	row("verdict", string(r.Verdict))
	row("reason", r.Reason)
	row("message", humanize.OneLine(r.Message, 500))
	row("environment", r.Environment)
	row("started", stamp(r.Started))
	if !r.Ended.IsZero() && !r.Started.IsZero() {
		row("ended", stamp(r.Ended)+", after "+humanize.Duration(r.Ended.Sub(r.Started)))
	}
	row("repository", r.Repository)
	row("commit", r.Commit)
	row("tree", r.Tree)
	row("image", r.Image)
	row("mode", r.Mode)
	row("storage", r.Storage)
	if r.Network != nil {
		row("network", fmt.Sprint(r.Network.Transport))
	}
	row("metrics", metricsText(r.Metrics))
	if r.Cause != nil && r.Cause.Python != nil {
		row("cause", fmt.Sprintf("rank %d on node %d: %s: %s (%s:%d)", r.Cause.Rank, r.Cause.Node, r.Cause.Python.Type, humanize.OneLine(r.Cause.Python.Message, 200), r.Cause.Python.File, r.Cause.Python.Line))
	}
	if r.Record != nil {
		row("record", r.Record.Folder+" on "+strings.Join(r.Record.Claims, ", "))
	}
	row("teardown", r.Teardown)
	if len(r.Phases) > 0 {
		fmt.Fprintln(w, "\nPHASE\tSTATUS\tTIME\tREASON")
		for _, phase := range r.Phases {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", phase.Name, phase.Status, humanize.Duration(time.Duration(phase.Seconds*float64(time.Second))), phase.Reason)
		}
	}
	if len(r.Nodes) > 0 {
		fmt.Fprintln(w, "\nNODE\tON\tGPUS\tMODEL")
		for _, node := range r.Nodes {
			fmt.Fprintf(w, "%d\t%s\t%d\t%s\n", node.Node, node.KubernetesNode, len(node.GPUs), node.Model)
		}
	}
	if len(r.Ranks) > 0 {
		fmt.Fprintln(w, "\nRANK\tNODE\tEND\tTIME")
		for _, rank := range r.Ranks {
			fmt.Fprintf(w, "%d\t%d\t%s\t%s\n", rank.Rank, rank.Node, exitOf(rank), humanize.Duration(time.Duration(rank.Seconds*float64(time.Second))))
		}
	}
	return w.Flush()
}

func exitOf(r receipt.Rank) string {
	text := fmt.Sprintf("exit code %d", r.Exit.Code)
	switch {
	case r.Exit.OutOfMemory:
		text = "killed for memory"
	case r.Exit.Signal != "":
		text = r.Exit.Signal
	case r.Exit.Error != "":
		text = r.Exit.Error
	}
	if r.Stopped {
		text += ", stopped because another had failed or the run ended"
	}
	return text
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// metricsText is a line of metrics as people read it, without its time.
func metricsText(line json.RawMessage) string {
	var metrics map[string]json.RawMessage
	if len(line) == 0 {
		return ""
	}
	if err := json.Unmarshal(line, &metrics); err != nil {
		return humanize.OneLine(string(line), 400)
	}
	delete(metrics, "time")
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		texts = append(texts, name+" "+string(metrics[name]))
	}
	return humanize.OneLine(strings.Join(texts, ", "), 400)
}
