package runs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// workspace is where the claim is mounted in the nodes.
const workspace = "/workspace"

// FetchCommand is mlenv fetch.
func FetchCommand() *cobra.Command {
	var flags kube.Flags
	var to string
	cmd := &cobra.Command{
		Use:   "fetch RUN [PATH...]",
		Short: "Bring logs, checkpoints or the model of a run to this machine",
		Long: `Bring files of a run from the workspace's claims to this machine, while the run goes on or long after.

PATH is on the workspace, as checkpoints/mine or /workspace/checkpoints/mine; logs stands for the folder with the logs, metrics
and status of the run, which is called so here. Without any PATH it is that folder, and checkpoints/RUN if there is one.

A pod that mounts the claim read-only, without any right, reads the files, and is removed in any case. Every file is
verified by its SHA-256. What is here already with the same content is not sent again, so that fetching goes on where
it broke off. Where each node has a claim of its own, there is a folder for each: node-0, node-1.

Exit code 0: everything is here; 1: it is not; 2: wrong usage, or no such run.`,
		Example: `  mlenv fetch train-multi-node-x7k2p
  mlenv fetch train-multi-node-x7k2p logs
  mlenv fetch train-multi-node-x7k2p checkpoints/mine --to=./mine`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeRun(&flags),
		RunE: func(cmd *cobra.Command, args []string) error {
			clients, k, err := named(cmd.Context(), flags, args[0])
			if err != nil {
				return err
			}
			paths, err := k.paths(args[1:])
			if err != nil {
				return err
			}
			if to == "" {
				to = k.name
			}
			return k.fetch(cmd, clients, paths, len(args) > 1, to)
		},
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().StringVar(&to, "to", "", "folder to fetch into, made if need be (default: one of the run's name here)")
	return cmd
}

// paths are relative to the workspace.
func (k known) paths(given []string) ([]string, error) {
	if len(given) == 0 {
		return []string{fetch.RecordOf(k.uid()), "checkpoints/" + k.name}, nil
	}
	var paths []string
	var problems []error
	for _, p := range given {
		relative := strings.TrimPrefix(strings.TrimPrefix(path.Clean(p), workspace), "/")
		switch {
		case p == "logs":
			relative = fetch.RecordOf(k.uid())
		case path.IsAbs(p) && path.Clean(p) != workspace && !strings.HasPrefix(path.Clean(p), workspace+"/"), relative == ".." || strings.HasPrefix(relative, "../"):
			problems = append(problems, fmt.Errorf("path %q: want one on the workspace, as checkpoints/mine or %s/checkpoints/mine", p, workspace))
		case relative == "":
			relative = "."
		}
		paths = append(paths, relative)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, wrongUsage(fail.Because(fail.InvalidInput, err))
	}
	return paths, nil
}

// fetch is wanted to have something at each path if these were named.
func (k known) fetch(cmd *cobra.Command, clients *kube.Clients, paths []string, named bool, to string) error {
	claims, err := k.claims(cmd.Context(), clients)
	if err != nil {
		return err
	}
	absent := map[string]int{}
	files := 0
	for i, claim := range claims {
		folder := to
		if len(claims) > 1 {
			folder = filepath.Join(to, fmt.Sprintf("node-%d", i))
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "Reading claim %s.\n", claim)
		result, err := fetch.Fetch(cmd.Context(), clients, fetch.Claim{Name: claim, For: k.name}, paths, fetch.RecordOf(k.uid()), folder)
		if err != nil {
			return fmt.Errorf("fetching from claim %s: %w", claim, err)
		}
		for _, path := range result.Absent {
			absent[path]++
		}
		files += result.Files
		if result.Files > 0 {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %s; %d were not here yet\n", folder, humanize.Count(result.Files, "file"), humanize.Bytes(result.Bytes), result.Fetched)
		}
	}
	var problems []error
	for _, path := range paths {
		if absent[path] == len(claims) && (named || files == 0) {
			problems = append(problems, fmt.Errorf("fetching %s: nothing lies there on %s", path, strings.Join(claims, ", ")))
		}
	}
	return errors.Join(problems...)
}

// claims that the run's workspace is on: as its receipt says, or else those that are there.
func (k known) claims(ctx context.Context, clients *kube.Clients) ([]string, error) {
	if k.receipt != nil && k.receipt.Record != nil {
		return k.receipt.Record.Claims, nil
	}
	names := objects.NamesOf(k.environment())
	claims, err := fetch.Claims(ctx, clients, names, names.Workspace)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", k.name, err)
	}
	return claims, nil
}
