// SPDX-License-Identifier: Apache-2.0

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

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/claims"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/runs"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// completeValues lets the shell complete the values of flags, and environments, runs, claims and clusters by asking the
// cluster.
func completeValues(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		completeValues(child)
	}
	completeArguments(cmd)
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		var complete cobra.CompletionFunc
		switch kind := flag.Value.Type(); {
		case strings.Contains(kind, "|"):
			words := slices.DeleteFunc(strings.Split(kind, "|"), func(word string) bool { return word == "duration" }) // a type, not a value
			complete = cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
		case flag.Name == "name":
			complete = asked(environments)
		case flag.Name == "namespace":
			complete = asked(kube.VisibleNamespaces)
		case flag.Name == "task":
			complete = cobra.FixedCompletions(runs.PipelineTasks(mldevenv.Bundle), cobra.ShellCompDirectiveNoFileComp)
		case flag.Name == "cluster":
			complete = asked(clusters)
		case flag.Name == "resume-from", flag.Name == "like":
			complete = asked(runs.Names)
			if local := cmd.Flags().Lookup("local"); local != nil {
				complete = runNames(local, complete)
			}
		default:
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(flag.Name, complete); err != nil {
			panic(err) // the flag exists, and no other code completes it
		}
	})
}

// completeArguments completes the names of what the use line of the command takes.
func completeArguments(cmd *cobra.Command) {
	words := strings.FieldsFunc(cmd.Use, func(r rune) bool { return !unicode.IsLetter(r) && r != '-' })
	var lists []func(context.Context, *kube.Clients) []string
	live := cmd.Name() == "cancel" || slices.Contains(words, "ENVIRONMENT") // of no use for a run that has ended
	several, locals := false, false
	for _, of := range []struct {
		word string
		list func(context.Context, *kube.Clients) []string
	}{{"ENVIRONMENT", environments}, {"RUN", runs.Names}, {"CLAIM", claims.Names}} {
		if !slices.Contains(words, of.word) {
			continue
		}
		several = several || strings.Contains(cmd.Use, of.word+"...")
		if of.word == "RUN" && live {
			of.list = runs.InProgress
		}
		lists = append(lists, of.list)
		locals = locals || of.word == "RUN"
	}
	if len(lists) == 0 {
		return
	}
	words, cmd.ValidArgs = cmd.ValidArgs, nil // cobra would ask no function
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !several {
			return words, cobra.ShellCompDirectiveNoFileComp
		}
		names, how := asked(func(ctx context.Context, clients *kube.Clients) (names []string) {
			for _, list := range lists {
				names = append(names, list(ctx, clients)...)
			}
			return names
		})(cmd, args, "")
		if locals {
			names = append(names, runs.LocalNames()...)
		}
		return slices.Concat(words, names), how
	}
}

// runNames completes with the names of local runs if the flag --local is given, else as complete does.
func runNames(local *pflag.Flag, complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if local.Changed {
			return runs.LocalNames(), cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begun)
	}
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
	found, err := lease.List(ctx, clients.Kube, clients.Namespace)
	if err != nil {
		return nil
	}
	return humanize.Each(found, func(l coordinationv1.Lease) string { return l.Name })
}

func clusters(ctx context.Context, clients *kube.Clients) []string {
	installed, _ := clusterfile.Installed(ctx, clients) // nil after an error
	return slices.Sorted(maps.Keys(installed))
}
