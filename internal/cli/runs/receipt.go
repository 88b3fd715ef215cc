// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/report"
)

// ReceiptCommand returns the command mlenv receipt.
func ReceiptCommand() *cobra.Command {
	var flags kube.Flags
	var output command.OutputFlag
	var page string
	cmd := &cobra.Command{
		Use:   "receipt RUN",
		Short: "Show the receipt of a run that has ended",
		Long: `Show the receipt of a run: how it ended and why, what it trained, how long each phase took, and how each rank ended.
The receipt outlives the run and its environment.

With --html mlenv writes the receipt as a page in one file, with the phases on a time line, the curves of loss and
throughput, the bandwidth, and a map of nodes, ranks and rails. It does not overwrite a file.

Exit code 0: shown, whatever the verdict; 1: there is no receipt yet; 2: wrong usage.`,
		Example: "  mlenv receipt train-multi-node-x7k2p\n  mlenv receipt train-multi-node-x7k2p --output=json\n  mlenv receipt " +
			"train-multi-node-x7k2p --html=report.html",
		Args: command.Arguments(1, 1, "one run"),
		RunE: onRun(&flags, func(cmd *cobra.Command, _ *kube.Clients, r runInfo, _ []string) error {
			if r.receipt == nil || r.unfinished {
				return fail.Advise(fail.Becausef(fail.InvalidInput, "reading the receipt of run %s: the run is %s and has none yet: %s", r.name,
					r.state(), r.at.writer(r)),
					"mlenv status %s%s", r.name, r.namespaceFlag())
			}
			if page != "" {
				return writePage(cmd.OutOrStdout(), page, *r.receipt)
			}
			return output.Print(cmd.OutOrStdout(), r.receipt, func(out io.Writer) error { return printReceipt(out, *r.receipt, r.run) })
		}),
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML)
	cmd.Flags().StringVar(&page, "html", "", "write the receipt as a page to this file; - is standard output")
	cmd.MarkFlagsMutuallyExclusive("html", "output")
	return cmd
}

// printReceipt leaves out what is not known. The PipelineRun, which may be nil, has the params that the receipt lacks.
func printReceipt(out io.Writer, r receipt.Receipt, of *v1.PipelineRun) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := rowsOf(w)
	row("run", r.DisplayName())
	row("verdict", string(r.Verdict))
	row("reason", string(r.Reason))
	row("message", humanize.Lines(r.Message, maxMessage))
	row("warning", r.Warning)
	row("environment", r.Environment)
	row("started", report.FormatTime(r.Started))
	if !r.Ended.IsZero() && !r.Started.IsZero() {
		row("ended", report.FormatTime(r.Ended)+", after "+humanize.Duration(r.Ended.Sub(r.Started)))
	}
	row("started by", r.User)
	row("goodput", goodputText(r.Goodput))
	row("repository", r.Repository)
	resumed := ""
	if t := r.Training; t != nil {
		row("script", t.Script)
		row("arguments", humanize.OneLine(strings.Join(t.Args, " "), 500))
		resumed = t.ResumedFrom
	}
	if of != nil {
		values := launch.Values(of)
		row("requirements", strings.Join(values["requirements"], ""))
		resumed = cmp.Or(resumed, resumedFrom(values))
	}
	row("resumed from", resumed)
	row("commit", r.Commit)
	row("tree", r.Tree)
	row("image", r.Image)
	row("mode", modeText(r.Mode, r.ModeReason))
	row("storage", string(r.Storage))
	row("constraint", r.Constraint)
	if r.Network != nil {
		row("network", fmt.Sprint(r.Network.Transport))
	}
	if r.Fabric != nil {
		const most = 10
		for _, kind := range r.Fabric.DeviceKinds[:min(len(r.Fabric.DeviceKinds), most)] {
			row("devices", humanize.OneLine(kind.Describe(), 500))
		}
		for _, slow := range r.Fabric.SlowDevices[:min(len(r.Fabric.SlowDevices), most)] {
			row("slow device", humanize.OneLine(slow.String(), 500))
		}
	}
	for _, a := range r.Attempts {
		row(fmt.Sprintf("attempt %d", a.Attempt), receipt.Describe(a))
	}
	row("excluded", strings.Join(r.ExcludedNodes, ", "))
	row("metrics", metricsText(r.Metrics))
	if r.Cause != nil && r.Cause.Python != nil {
		p := r.Cause.Python
		row("cause", fmt.Sprintf("rank %d on node %d: %s: %s (%s:%d)", r.Cause.Rank, r.Cause.Node, p.Type, humanize.OneLine(p.Message, 200),
			p.File, p.Line))
		row("", humanize.Lines(cause.InTree(strings.Join(p.Traceback, "\n")), maxMessage))
	}
	if r.Record != nil && r.Record.Work != "" {
		row("working directory", r.Record.Work+", with files that the script wrote at relative paths")
	}
	if r.Record != nil {
		row("checkpoint", r.Checkpoint)
		row("record", onClaims(*r.Record))
	}
	row("teardown", r.Teardown)
	printPhases(w, r.Phases, r.Ended)
	if len(r.Nodes) > 0 {
		fmt.Fprintln(w, "\nNODE\tON\tGPUS\tMODEL\tCOMPUTE\tRAILS")
		for _, same := range groupRows(r.Nodes, func(n receipt.Node) string { return fmt.Sprint(len(n.GPUs), n.Model, n.Driver, railsOf(n)) }) {
			node, host := same[0], same[0].KubernetesNode
			if len(same) > 1 {
				host = ""
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n",
				rowName(node.Node, len(same), "node"), host, len(node.GPUs), node.Model, node.Compute, railsOf(node))
		}
	}
	if len(r.Ranks) > 0 {
		fmt.Fprintln(w, "\nRANK\tNODE\tEND\tTIME")
		exit := func(rank receipt.Rank) string { return exitOf(rank, r.Reason) }
		for _, same := range groupRows(r.Ranks, exit) {
			rank, node := same[0], strconv.Itoa(same[0].Node)
			if len(same) > 1 {
				rank, node = slices.MaxFunc(same, func(a, b receipt.Rank) int { return cmp.Compare(a.Seconds, b.Seconds) }), ""
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", rowName(same[0].Rank, len(same), "rank"), node, exit(rank), humanize.Seconds(rank.Seconds))
		}
	}
	if len(r.LeftOut) > 0 {
		fmt.Fprintf(w, "\nNot in the receipt, because it would be too large: %s.\n", strings.Join(r.LeftOut, ", "))
	}
	return w.Flush()
}

// onClaims returns the folder of a record and the claims on which it lies; a local run has none.
func onClaims(r receipt.Record) string {
	if len(r.Claims) == 0 {
		return r.Folder
	}
	return r.Folder + " on " + humanize.OneLine(strings.Join(r.Claims, ", "), 300)
}

// exitOf returns how a rank of a run with that reason ended.
func exitOf(r receipt.Rank, reason fail.Reason) string {
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
		text += ", " + receipt.WhyStopped(reason)
	}
	return text
}

// writePage writes the report of a run to a new file, or to out for -. It removes an incomplete file.
func writePage(out io.Writer, path string, r receipt.Receipt) error {
	if path == "-" {
		return report.Write(out, r)
	}
	file, err := claimfile.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return command.Usage(fail.Advise(fail.Becausef(fail.InvalidInput, "writing the report %s: the file exists: want a new one", path),
			"rm %s, or name another file", path))
	} else if err != nil {
		return command.Usage(fail.Becausef(fail.InvalidInput, "writing the report: %w", err))
	}
	if err := errors.Join(report.Write(file, r), file.Close()); err != nil {
		os.Remove(path)
		return fmt.Errorf("writing the report %s: %w", path, err)
	}
	fmt.Fprintf(out, "The report of run %s is %s.\n", r.DisplayName(), path)
	return nil
}

// railsOf returns for example "4 × MT4129, 400 Gb/s, firmware 28.39.1002", each kind of rail once, "" without RDMA.
func railsOf(n receipt.Node) string {
	counts, kinds := map[string]int{}, []string(nil)
	for _, rail := range n.Rails {
		kind := cmp.Or(rail.Model, "RDMA")
		if rail.Rate > 0 {
			kind += ", " + rail.Rate.String()
		}
		if rail.Firmware != "" {
			kind += ", firmware " + rail.Firmware
		}
		if counts[kind]++; counts[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	for i, kind := range kinds {
		kinds[i] = fmt.Sprintf("%d × %s", counts[kind], kind)
	}
	return strings.Join(kinds, "; ")
}
