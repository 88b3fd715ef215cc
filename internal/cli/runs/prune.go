// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// PruneCommand returns the command mlenv prune.
func PruneCommand() *cobra.Command {
	var flags kube.Flags
	var yes, files, here bool
	cmd := &cobra.Command{
		Use:   "prune [RUN...]",
		Short: "Delete the receipts of runs, with --files what they wrote, or local runs",
		Long: `Ask, and then delete the receipts of the named runs, or of all runs that were deleted. Files stay on their
claims; mlenv claims lists these. With --files mlenv first deletes the logs and working directories of the named runs, which
contain what their scripts wrote at relative paths. Checkpoints elsewhere stay, and nothing is deleted while a run in
progress resumes from one of them.

With --local mlenv deletes local runs that have ended, with their receipts, logs and working directories, except those that a
run in progress resumes from and, unless you name them, those with a whole checkpoint in their working directory. Checkpoints
and datasets elsewhere in their folder stay.

Exit code 0: deleted; 1: the runs cannot be read, or one was not deleted; 2: wrong usage.`,
		Example: `  mlenv prune
  mlenv prune --files train-multi-node-x7k2p
  mlenv prune --local`,
		Args: func(_ *cobra.Command, args []string) error {
			return command.Want(len(args) > 0 || !files, "--files: want the names of the runs whose files you want to delete, because others "+
				"may need those of other runs")
		},
	}
	onCluster := envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, args []string) error {
		if files {
			return pruneReceipts(cmd, clients, args, yes, fetch.Remove)
		}
		return pruneReceipts(cmd, clients, args, yes, nil)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if here {
			return pruneLocal(cmd, args, yes)
		}
		return onCluster(cmd, args)
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().BoolVar(&here, "local", false, "delete local runs of this machine")
	cmd.Flags().BoolVar(&files, "files", false, "also delete the logs of the named runs, and what they wrote at relative paths")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	for _, other := range []string{"namespace", "context", "kubeconfig", "files"} {
		cmd.MarkFlagsMutuallyExclusive("local", other)
	}
	return cmd
}

// removeFiles is fetch.Remove, which tests replace.
type removeFiles func(ctx context.Context, clients *kube.Clients, claim fetch.Claim, paths []string) error

// pruneReceipts asks and deletes the receipts of the named runs, or of all runs whose PipelineRun was deleted, after their working
// directories and records if there is a function that removes files.
func pruneReceipts(cmd *cobra.Command, clients *kube.Clients, names []string, yes bool, remove removeFiles) error {
	ctx := cmd.Context()
	all, err := listRuns(ctx, clients)
	if err != nil {
		return err
	}
	doomed, err := withReceipt(clients, all, names)
	if remove != nil {
		err = errors.Join(err, neededByOthers(doomed, all))
	}
	if err != nil {
		return command.Usage(err)
	}
	if len(doomed) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "No receipts of deleted runs in namespace %s.\n", clients.Namespace)
		return nil
	}
	files, saved := "Files on claims stay.", ""
	if remove != nil {
		files = "Their logs and what they wrote at relative paths are deleted, too; checkpoints elsewhere stay."
		for _, r := range doomed {
			if c := r.receiptSoFar().Checkpoint; strings.HasPrefix(c, path.Join(agent.Workspace, agent.WorkFolder)+"/") {
				saved += fmt.Sprintf("Note: the working directory of run %s has the whole checkpoint %s.\n", r.name, c)
			}
		}
	}
	err = confirm(cmd, yes, doomed, fmt.Sprintf("%sDelete %s? %s", saved, humanize.Count(len(doomed), "receipt"), files), func() error {
		all, err := listRuns(ctx, clients)
		if err == nil && remove != nil {
			err = neededByOthers(doomed, all)
		}
		return err
	})
	if err != nil {
		return err
	}
	if remove != nil {
		if err := pruneWork(cmd, clients, doomed, remove); err != nil {
			return err // the receipts name the claims
		}
	}
	return removeAll(cmd, doomed)
}

// confirm asks about a table of the doomed runs, unless the user has answered. still is asked after that: while the question waited, a run
// may have begun that resumes from one of them.
func confirm(cmd *cobra.Command, yes bool, doomed []runInfo, question string, still func() error) error {
	if yes {
		return nil
	}
	var table strings.Builder
	rows := make([]summary, 0, len(doomed))
	for _, r := range doomed {
		rows = append(rows, r.summary())
	}
	if err := printTable(&table, rows, time.Now(), false); err != nil {
		return err
	}
	if err := command.Confirm(cmd, table.String()+question); err != nil {
		return err
	}
	return still()
}

func removeAll(cmd *cobra.Command, doomed []runInfo) error {
	again := "mlenv prune %s" + cmp.Or(doomed[0].namespaceFlag(), " --local")
	return command.DeleteEach(cmd, doomed, func(r runInfo) string { return r.name }, again, func(r runInfo) (what string, err error) {
		return r.at.remove(cmd.Context(), r)
	})
}

// neededByOthers returns an error for each of the doomed runs whose files a run in progress writes, or may resume from.
func neededByOthers(doomed, all []runInfo) error {
	var problems []error
	busy := unended(all)
	for _, r := range doomed {
		if i := slices.IndexFunc(busy, r.sharesSeries); i >= 0 {
			problems = append(problems, neededBy(r, busy[i]))
		}
	}
	return errors.Join(problems...)
}

// unended returns the runs in progress.
func unended(all []runInfo) []runInfo {
	return slices.DeleteFunc(slices.Clone(all), func(r runInfo) bool { return !r.at.inProgress(r) })
}

// sharesSeries reports whether the other run is r, or one of both resumes the other or a run of its series.
func (r runInfo) sharesSeries(other runInfo) bool { return r.series() == other.series() }

// neededBy returns the error of files that the other run needs.
func neededBy(r, other runInfo) error {
	why := "it has not ended"
	if other.name != r.name {
		why = fmt.Sprintf("run %s, which is in progress, resumes from its series", other.name)
	}
	return fail.Advise(fail.Becausef(fail.EnvironmentBusy, "deleting the files of %s: %s", r.displayName(), why), "%s", other.at.stop(other))
}

// pruneWork deletes the records and working directories of runs from the claims that exist.
func pruneWork(cmd *cobra.Command, clients *kube.Clients, doomed []runInfo, remove removeFiles) error {
	ctx := cmd.Context()
	paths := map[string][]string{}
	for _, r := range doomed {
		claims, err := r.at.claims(ctx, r)
		if fail.ReasonOf(err) == fail.InvalidInput { // they were deleted
			continue
		}
		if err != nil {
			return err
		}
		for _, claim := range claims {
			if agent.IsJobID(r.uid()) {
				paths[claim.Name] = append(paths[claim.Name], fetch.RecordOf(r.uid()), fetch.WorkOf(r.uid()), path.Join(agent.WorkFolder, "."+r.uid()))
			}
		}
	}
	var problems []error
	for _, claim := range slices.Sorted(maps.Keys(paths)) {
		_, err := clients.Kube.CoreV1().PersistentVolumeClaims(clients.Namespace).Get(ctx, claim, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err = remove(ctx, clients, fetch.Claim{Name: claim, For: "prune", Notes: cmd.ErrOrStderr()}, paths[claim]); err != nil {
			problems = append(problems, err)
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "The logs of these runs, and what they wrote at relative paths, are deleted from claim %s/%s.\n",
			clients.Namespace, claim)
	}
	return errors.Join(problems...)
}

// withReceipt returns the named ones of all runs, or else all deleted ones. Errors: InvalidInput for a run that has no receipt, as one in
// progress.
func withReceipt(clients *kube.Clients, all []runInfo, names []string) (found []runInfo, err error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(all), func(r runInfo) bool {
			return r.run != nil || r.forbidden && (!r.isTraining() || r.unfinished)
		}), nil
	}
	var problems []error
	for _, name := range names {
		i := slices.IndexFunc(all, func(r runInfo) bool { return r.name == name && r.receipt != nil && (!r.forbidden || !r.unfinished) })
		if i < 0 {
			problems = append(problems,
				fail.Advise(fail.Becausef(fail.InvalidInput, "deleting the receipt of run %s/%s: there is none", clients.Namespace, name),
					"mlenv runs -n %s", clients.Namespace))
			continue
		}
		found = append(found, all[i])
	}
	return found, errors.Join(problems...)
}

// pruneLocal asks and deletes the named local runs, or all that no run in progress needs. It deletes none if one of the named ones is
// needed.
func pruneLocal(cmd *cobra.Command, names []string, yes bool) error {
	all, err := localRuns()
	if err != nil {
		return err
	}
	var doomed []runInfo
	var problems []error
	var saved []string
	busy := unended(all)
	for _, r := range all {
		if !slices.Contains(names, r.name) && (len(names) > 0 || slices.ContainsFunc(busy, r.sharesSeries)) {
			continue
		}
		checkpoint, err := r.at.(onMachine).run.Checkpoint(cmd.Context(), len(r.receiptSoFar().Ranks))
		has := fmt.Sprintf("the working directory of run %s has the whole checkpoint %s", r.name, checkpoint)
		if err != nil {
			has = fmt.Sprintf("the working directory of run %s may have checkpoints: %v", r.name, err)
		}
		switch {
		case checkpoint == "" && err == nil:
		case len(names) == 0:
			tellUser(cmd.ErrOrStderr(), "Not deleted: %s. To delete it: mlenv prune --local %s\n", has, r.name)
			continue
		default:
			saved = append(saved, "Note: "+has+".\n")
		}
		doomed = append(doomed, r)
	}
	for _, name := range names {
		if !slices.ContainsFunc(doomed, func(r runInfo) bool { return r.name == name }) {
			problems = append(problems, fail.Advise(fail.Becausef(fail.InvalidInput, "deleting local run %s: there is none", name),
				"mlenv runs --local"))
		}
	}
	problems = append(problems, neededByOthers(doomed, all))
	if err := errors.Join(problems...); err != nil {
		return command.Usage(err)
	}
	if len(doomed) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "No local runs that have ended and that no run in progress resumes from.")
		return nil
	}
	question := fmt.Sprintf("%sDelete %s, with logs and what the scripts wrote at relative paths? Checkpoints and datasets elsewhere stay.",
		strings.Join(saved, ""), humanize.Count(len(doomed), "local run"))
	err = confirm(cmd, yes, doomed, question, func() error {
		all, err := localRuns()
		return cmp.Or(err, neededByOthers(doomed, all))
	})
	if err != nil {
		return err
	}
	return removeAll(cmd, doomed)
}
