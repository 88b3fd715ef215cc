package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// pruneReceipts asks and deletes the receipts of the named runs, or of all runs whose PipelineRun was deleted.
func pruneReceipts(cmd *cobra.Command, clients *kube.Clients, names []string, yes bool) error {
	ctx := cmd.Context()
	doomed, err := withReceipt(ctx, clients, names)
	if err != nil {
		return step.Usage(err)
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
		if err := printTable(&table, rows, time.Now()); err != nil {
			return err
		}
		if err := step.Confirm(cmd, fmt.Sprintf("%sDelete %s? Files on claims stay.", &table, humanize.Count(len(doomed), "receipt"))); err != nil {
			return err
		}
	}
	var problems []error
	for _, r := range doomed {
		if err := receipt.Delete(ctx, clients.Kube, *r.receipt); err != nil {
			problems = append(problems, err)
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "The receipt of run %s/%s is deleted.\n", clients.Namespace, r.name)
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
			problems = append(problems, fail.Advise(fail.Becausef(fail.InvalidInput, "deleting the receipt of run %s/%s: there is none", clients.Namespace, name), "mlenv runs -n %s", clients.Namespace))
			continue
		}
		found = append(found, all[i])
	}
	return found, errors.Join(problems...)
}
