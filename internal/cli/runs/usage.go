// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// UsageCommand returns the command mlenv usage.
func UsageCommand() *cobra.Command {
	var flags kube.Flags
	var output command.OutputFlag
	var everywhere, here bool
	since := sinceFlag(receipt.UsageKept)
	by := byFlag{byUser}
	cmd := &cobra.Command{
		Use:   "usage [--since=30d] [--by=user,script,verdict|node] [-A | --local]",
		Short: "Sum what the minutes and GPU-hours of runs became",
		Long: `Sum the goodput of all runs of a namespace that have ended, by their receipts: how long they waited for GPUs, started, did
steps that lasted, did steps again after a restart, hung, and were torn down. With -A mlenv sums the runs of all namespaces that you
may read, and with --local the local runs of this machine.

TIME is the time from the start to the end of the runs, and the columns after GPU-HOURS divide it. LOST has the GPU-hours in
which no step lasted. GOODPUT is the part of the GPU-hours in which steps lasted, or of the time if the runs had no GPUs.

If a receipt is deleted, its usage is kept for 30 days. A run counts as a whole if it ended in the time. Runs in progress do not
count. mlenv notes the user when it starts a run; anyone who may change runs or receipts can change that.

Exit code 0: summed; 1: the receipts cannot be read; 2: wrong usage.`,
		Example: `  mlenv usage
  mlenv usage --since=7d --by=user,verdict
  mlenv usage -A --by=node --output=csv > usage.csv
  mlenv usage --output=json | jq .total.gpuHours`,
		Args: func(_ *cobra.Command, args []string) error {
			return errors.Join(command.FlagsOnly(args), by.check())
		},
	}
	flags.AddTo(cmd.Flags())
	output.AddUse(cmd.Flags(), "text, json or yaml for programs, or csv for spreadsheets", command.Text, command.JSON, command.YAML,
		command.CSV)
	cmd.Flags().Var(&since, "since", "sum runs that have ended in this last time, such as 30d or 12h")
	cmd.Flags().Var(&by, "by", "what each row sums: runs by user, script or verdict, with commas by a combination of them, or by node the "+
		"parts of runs on it")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "sum the runs of all namespaces that you may read")
	cmd.Flags().BoolVar(&here, "local", false, "sum the local runs of this machine")
	cmd.MarkFlagsMutuallyExclusive("all-namespaces", "namespace", "local")
	for _, other := range []string{"context", "kubeconfig"} {
		cmd.MarkFlagsMutuallyExclusive("local", other)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		now := time.Now()
		runs, from, err := usages(cmd, flags, everywhere, here)
		if err != nil {
			return err
		}
		u := sum(runs, by, now.Add(-time.Duration(since)), now)
		u.Of, u.Incomplete = from.Read, append(from.Missing, u.Incomplete...)
		if !output.Is(command.JSON) && !output.Is(command.YAML) {
			for _, missing := range u.Incomplete {
				say(cmd.ErrOrStderr(), "warning: incomplete: %s\n", missing)
			}
		}
		return output.PrintAs("Usage", cmd.OutOrStdout(), u, func(out io.Writer) error {
			if output.Is(command.CSV) {
				return u.writeCSV(out)
			}
			return u.print(out)
		})
	}
	return cmd
}

// usages returns the usage of the runs that the flags choose. Without a cluster, or if it does not answer, these are the local runs, if
// there are any.
func usages(cmd *cobra.Command, flags kube.Flags, everywhere, here bool) (receipt.UsageSums, receipt.Sources, error) {
	ofMachine := func() (receipt.UsageSums, receipt.Sources, error) {
		all, err := localUsages()
		return all, receipt.Sources{Read: []string{"this machine"}}, err
	}
	if here {
		return ofMachine()
	}
	clients, err := flags.Connect()
	var all receipt.UsageSums
	var from receipt.Sources
	switch {
	case err == nil && everywhere:
		all, from, err = receipt.UsagesEverywhere(cmd.Context(), clients)
	case err == nil:
		from.Read = []string{clients.Namespace}
		if all, err = from.Add(cmd.Context(), clients, clients.Namespace); err == nil && len(all.Runs) == 0 {
			err = kube.NoNamespace(cmd.Context(), clients.Kube, clients.Namespace)
		}
	}
	if flags == (kube.Flags{}) && noCluster(clients, err) {
		if local, of, failed := ofMachine(); failed == nil && len(local.Runs) > 0 {
			onlyHere(cmd, err)
			return local, of, nil
		}
	}
	return all, from, err
}

// keptUsage has the usage of local runs that were deleted.
func keptUsage(folder string) receipt.UsageFile {
	return receipt.UsageFile(filepath.Join(folder, ".mlenv", "usage.json"))
}

// localUsages returns the usage of the local runs that have ended, and of those that were deleted.
func localUsages() (all receipt.UsageSums, err error) {
	found, err := localRuns()
	if err != nil {
		return all, err
	}
	for _, r := range found {
		if !r.open && r.receipt != nil {
			all.Runs = append(all.Runs, r.receipt.Usage())
		}
	}
	folder, err := local.Folder()
	if err != nil {
		return all, err
	}
	kept, err := keptUsage(folder).Read()
	all.Merge(kept)
	return all, err
}

// sinceFlag is a duration that may be in days.
type sinceFlag time.Duration

// String implements pflag.Value.
func (s *sinceFlag) String() string {
	const day = 24 * time.Hour
	if d := time.Duration(*s); d%day != 0 {
		return d.String()
	}
	return fmt.Sprintf("%dd", time.Duration(*s)/day)
}

// Set implements pflag.Value.
func (s *sinceFlag) Set(text string) error {
	const most = 3650
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n <= most {
			*s = sinceFlag(time.Duration(n) * 24 * time.Hour)
			return nil
		}
	} else if d, err := time.ParseDuration(text); err == nil && d > 0 {
		*s = sinceFlag(d)
		return nil
	}
	return fmt.Errorf("want a time such as 30d (at most %dd) or 12h", most)
}

// Type implements pflag.Value.
func (s *sinceFlag) Type() string { return "time" }

// byFlag lists what tells the groups of a sum apart.
type byFlag []string

const (
	byUser    = "user"
	byScript  = "script"
	byVerdict = "verdict"
	byNode    = "node"
)

// String implements pflag.Value.
func (b *byFlag) String() string { return strings.Join(*b, ",") }

// Set implements pflag.Value.
func (b *byFlag) Set(text string) error {
	all := strings.Split(text, ",")
	for i, one := range all {
		if !slices.Contains([]string{byUser, byScript, byVerdict, byNode}, one) || slices.Contains(all[:i], one) {
			return fmt.Errorf("want user, script and verdict, each at most once, with commas, or node")
		}
	}
	*b = all
	return nil
}

// Type implements pflag.Value.
func (b *byFlag) Type() string { return "list" }

// check returns an error for node together with others: what one node did of a run has no user or script of its own.
func (b *byFlag) check() error {
	return command.Want(len(*b) == 1 || !slices.Contains(*b, byNode), "--by=%s: want node alone, because a run can be on several", b.String())
}
