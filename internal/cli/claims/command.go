// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Command returns the command mlenv claims.
func Command() *cobra.Command {
	var flags kube.Flags
	var output command.OutputFlag
	cmd := &cobra.Command{
		Use:   "claims",
		Short: "List the claims that runs and environments left, and delete named ones",
		Long: `List the persistent volume claims of a namespace that environments created, runs left their files on or an installed cluster
file names, with size, last use, and the pods that mount them now. ml-dev-env deletes a claim only with mlenv claims delete.

Exit code 0: listed; 1: the claims cannot be read; 2: wrong usage.`,
		Example: `  mlenv claims
  mlenv claims --output=json | jq -r '.items[] | select(.lastUse < "2026-06") | .name'`,
		Args: cobra.NoArgs,
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, _ []string) error {
			all, err := readClaims(cmd.Context(), clients)
			if err != nil {
				return err
			}
			return output.PrintAs("ClaimList", cmd.OutOrStdout(), all, func(out io.Writer) error {
				if len(all) == 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "No claims of environments or runs in namespace %s.\n", clients.Namespace)
					return nil
				}
				return all.print(out, time.Now())
			})
		}),
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML, command.Names)
	cmd.AddCommand(deleteCommand())
	return cmd
}

func (l list) print(out io.Writer, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tENVIRONMENT\tSIZE\tAGE\tLAST USE")
	for _, c := range l {
		use := "unknown"
		switch {
		case len(c.Pods) > 0:
			use = "now, by " + strings.Join(c.Pods, ", ")
		case !c.LastUse.IsZero():
			use = fmt.Sprintf("%s ago, by run %s", humanize.Duration(now.Sub(c.LastUse)), c.LastRun)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", c.Name, cmp.Or(c.Environment, "-"), c.Size, humanize.Duration(now.Sub(c.Created)), use)
	}
	return w.Flush()
}

func deleteCommand() *cobra.Command {
	var flags kube.Flags
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete CLAIM...",
		Short: "Delete claims and all files on them",
		Long: `Delete claims and all files on them: checkpoints, logs and datasets. mlenv asks before it deletes, unless you give --yes.

It deletes only claims that mlenv claims lists. It refuses a claim that a pod mounts, that an existing environment uses, or that
a run in progress will mount. If it refuses one claim, it deletes none.

Exit code 0: deleted; 1: not deleted; 2: wrong usage, or no such claim.`,
		Example: `  mlenv claims delete h-kim-workspace h-kim-datasets`,
		Args:    command.Arguments(1, -1, "names of claims"),
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, names []string) error {
			return confirmAndDelete(cmd, clients, names, yes)
		}),
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func confirmAndDelete(cmd *cobra.Command, clients *kube.Clients, names []string, yes bool) error {
	ctx := cmd.Context()
	doomed, err := deletableClaims(ctx, clients, names)
	if err == nil && !yes {
		var table strings.Builder
		if err := doomed.print(&table, time.Now()); err != nil {
			return err
		}
		if err := command.Confirm(cmd, fmt.Sprintf("%sDelete %s and all files on them?", &table,
			humanize.Count(len(doomed), "claim"))); err != nil {
			return err
		}
		doomed, err = deletableClaims(ctx, clients, names) // a pod may have come meanwhile
	}
	if err != nil {
		return command.Usage(err)
	}
	again := "mlenv claims delete %s -n " + clients.Namespace
	return command.DeleteEach(cmd, doomed, func(c claim) string { return c.Name }, again, func(c claim) (what string, err error) {
		// The UID protects another claim that has got the name.
		options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.uid}}
		err = clients.Kube.CoreV1().PersistentVolumeClaims(clients.Namespace).Delete(ctx, c.Name, options)
		title := clients.Namespace + "/" + c.Name
		return "Claim " + title, kube.Deleted("claim "+title, err)
	})
}
