// SPDX-License-Identifier: Apache-2.0

package runs

import (
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
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// removeFiles is fetch.Remove, which tests replace.
type removeFiles func(ctx context.Context, clients *kube.Clients, claim fetch.Claim, paths []string) error

// pruneReceipts asks and deletes the receipts of the named runs, or of all runs whose PipelineRun was deleted, after their working
// directories and records if there is a function that removes files.
func pruneReceipts(cmd *cobra.Command, clients *kube.Clients, names []string, yes bool, remove removeFiles) error {
	ctx := cmd.Context()
	doomed, err := withReceipt(ctx, clients, names)
	if err == nil && remove != nil {
		err = allEnded(doomed, clients.Namespace)
	}
	if err != nil {
		return command.Usage(err)
	}
	if len(doomed) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "No receipts of deleted runs in namespace %s.\n", clients.Namespace)
		return nil
	}
	if !yes {
		var rows []summary
		for _, r := range doomed {
			rows = append(rows, r.summary(clients.Namespace))
		}
		var table strings.Builder
		if err := printTable(&table, rows, time.Now(), false); err != nil {
			return err
		}
		files := "Files on claims stay."
		if remove != nil {
			files = "Their logs and what they wrote at relative paths are deleted, too; checkpoints stay."
		}
		if err := command.Confirm(cmd, fmt.Sprintf("%sDelete %s? %s", &table, humanize.Count(len(doomed), "receipt"), files)); err != nil {
			return err
		}
	}
	if remove != nil {
		if err := pruneWork(cmd, clients, doomed, remove); err != nil {
			return err // the receipts name the claims
		}
	}
	var problems []error
	for _, r := range doomed {
		if err := receipt.Delete(ctx, clients.Kube, *r.receipt, clients.Now()); err != nil {
			problems = append(problems, err)
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "The receipt of run %s/%s is deleted.\n", clients.Namespace, r.name)
	}
	return errors.Join(problems...)
}

// allEnded returns an error for runs whose scripts may still write files.
func allEnded(all []entry, namespace string) error {
	var problems []error
	for _, r := range all {
		if r.run != nil && !r.run.IsDone() {
			busy := fail.Becausef(fail.EnvironmentBusy, "deleting the files of run %s/%s: it has not ended", namespace, r.name)
			problems = append(problems, fail.Advise(busy, "mlenv cancel %s -n %s", r.name, namespace))
		}
	}
	return errors.Join(problems...)
}

// pruneWork deletes the records and working directories of runs from the claims that exist.
func pruneWork(cmd *cobra.Command, clients *kube.Clients, doomed []entry, remove removeFiles) error {
	ctx := cmd.Context()
	paths := map[string][]string{}
	for _, r := range doomed {
		claims, err := r.claims(ctx, clients)
		if fail.ReasonOf(err) == fail.InvalidInput { // they were deleted
			continue
		}
		if err != nil {
			return err
		}
		for _, claim := range claims {
			if agent.IsJobID(r.uid()) {
				paths[claim] = append(paths[claim], fetch.RecordOf(r.uid()), fetch.WorkOf(r.uid()), path.Join(agent.WorkFolder, "."+r.uid()))
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

// withReceipt returns the named runs, or all deleted ones. Errors: InvalidInput for a run that has no receipt, as one in
// progress.
func withReceipt(ctx context.Context, clients *kube.Clients, names []string) ([]entry, error) {
	all, err := list(ctx, clients)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return slices.DeleteFunc(all, func(r entry) bool { return r.run != nil || r.hidden }), nil
	}
	var found []entry
	var problems []error
	for _, name := range names {
		i := slices.IndexFunc(all, func(r entry) bool { return r.name == name && r.receipt != nil && (!r.hidden || !r.open) })
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

// pruneLocal asks and deletes the named local runs, or all that have ended. It deletes none if one of the named ones is in progress.
func pruneLocal(cmd *cobra.Command, names []string, yes bool) error {
	all, err := localRuns()
	if err != nil {
		return err
	}
	var doomed []entry
	var problems []error
	for _, r := range all {
		if slices.Contains(names, r.name) || len(names) == 0 && !r.here.Running() {
			doomed = append(doomed, r)
		}
	}
	for _, name := range names {
		i := slices.IndexFunc(doomed, func(r entry) bool { return r.name == name })
		switch {
		case i < 0:
			problems = append(problems, fail.Advise(fail.Becausef(fail.InvalidInput, "deleting local run %s: there is none", name),
				"mlenv runs --local"))
		case doomed[i].here.Running():
			problems = append(problems, doomed[i].here.Busy())
		}
	}
	if err := errors.Join(problems...); err != nil {
		return command.Usage(err)
	}
	if len(doomed) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "No local runs that have ended.")
		return nil
	}
	if !yes {
		var rows []summary
		for _, r := range doomed {
			rows = append(rows, r.summary(""))
		}
		var table strings.Builder
		if err := printTable(&table, rows, time.Now(), false); err != nil {
			return err
		}
		err := command.Confirm(cmd, fmt.Sprintf("%sDelete %s, with logs and what the scripts wrote at relative paths? Checkpoints and datasets "+
			"elsewhere stay.",
			&table, humanize.Count(len(doomed), "local run")))
		if err != nil {
			return err
		}
	}
	for _, r := range doomed {
		if r.receipt != nil && !r.open {
			if err := keptUsage(r.here.Folder).Keep(r.receipt.Usage(), time.Now()); err != nil {
				problems = append(problems, err)
				continue
			}
		}
		if err := r.here.Remove(); err != nil {
			problems = append(problems, err)
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "Local run %s is deleted.\n", r.name)
	}
	return errors.Join(problems...)
}
