package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/claims"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/runs"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// valuesOf are the values of flags that have a few.
var valuesOf = map[string][]string{
	"launcher":  {"deepspeed", "torchrun", "command", "deepspeed-launcher", "torchrun-launcher"},
	"mode":      {"auto", "rdma", "tcp"},
	"storage":   {"auto", "rwx", "volumeClaimTemplates"},
	"on-busy":   {"fail", "wait"},
	"on-change": {"fail", "recreate"},
	"bandwidth": {"warn", "fail"},

	"require-rendezvous": {"warn", "fail"},
}

// completeValues lets the shell complete the values of flags, and environments, runs, claims and clusters by asking the
// cluster.
func completeValues(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		completeValues(child)
	}
	for word, names := range map[string]func(context.Context, *kube.Clients) []string{"ENVIRONMENT": environments, "RUN": runs.Names, "CLAIM": claims.Names} {
		if !slices.Contains(strings.FieldsFunc(cmd.Use, func(r rune) bool { return !unicode.IsLetter(r) && r != '-' }), word) {
			continue
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 && !strings.Contains(cmd.Use, word+"...") {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return asked(names)(cmd, args, "")
		}
	}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		complete := cobra.FixedCompletions(valuesOf[flag.Name], cobra.ShellCompDirectiveNoFileComp)
		switch kind := flag.Value.Type(); {
		case strings.Contains(kind, "|"):
			complete = cobra.FixedCompletions(strings.Split(kind, "|"), cobra.ShellCompDirectiveNoFileComp)
		case valuesOf[flag.Name] != nil:
		case flag.Name == "name":
			complete = asked(environments)
		case flag.Name == "cluster":
			complete = asked(clusters)
		case flag.Name == "resume-from", flag.Name == "like":
			complete = asked(runs.Names)
		default:
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(flag.Name, complete); err != nil {
			panic(err) // the flag exists, and no other code completes it
		}
	})
}

// asked completes with names in the cluster that the command line chooses. Completion cannot report an error.
func asked(list func(context.Context, *kube.Clients) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		value := func(name string) string {
			if flag := cmd.Flag(name); flag != nil {
				return flag.Value.String()
			}
			return ""
		}
		clients, err := kube.Flags{Namespace: value("namespace"), Kubeconfig: value("kubeconfig"), Context: value("context")}.Connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list(cmd.Context(), clients), cobra.ShellCompDirectiveNoFileComp
	}
}

func environments(ctx context.Context, clients *kube.Clients) []string {
	found, err := clients.Kube.CoordinationV1().Leases(clients.Namespace).List(ctx, metav1.ListOptions{LabelSelector: objects.EnvironmentLabel})
	if err != nil {
		return nil
	}
	return humanize.Each(found.Items, func(l coordinationv1.Lease) string { return l.Name })
}

func clusters(ctx context.Context, clients *kube.Clients) []string {
	installed, _ := clusterfile.Installed(ctx, clients) // nil after an error
	return slices.Sorted(maps.Keys(installed))
}
