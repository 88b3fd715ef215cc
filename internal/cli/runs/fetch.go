package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// FetchCommand is mlenv fetch.
func FetchCommand() *cobra.Command {
	var flags kube.Flags
	var to string
	cmd := &cobra.Command{
		Use:   "fetch RUN [PATH...]",
		Short: "Copy logs, checkpoints or the model of a run to this machine",
		Long: `Copy files of a run from the workspace's claims to this machine, during the run or later.

PATH is on the workspace, such as checkpoints/mine or /workspace/checkpoints/mine; logs means the folder with the logs,
metrics and status of the run. Without PATH mlenv copies logs, and checkpoints/RUN if it exists; for a run that was started
with --resume-from, that is the folder of the first run.

A pod without any rights mounts the claim read-only and sends the files; mlenv always deletes it. Every file is verified
by its SHA-256. A file that exists here with the same content is skipped, so a second fetch continues a broken one. If
each node has its own claim, each gets a folder: node-0, node-1.

Exit code 0: all files are here; 1: some are not; 2: wrong usage, or no such run.`,
		Example: `  mlenv fetch train-multi-node-x7k2p
  mlenv fetch train-multi-node-x7k2p logs
  mlenv fetch train-multi-node-x7k2p checkpoints/mine --to=./mine`,
		Args: step.Arguments(1, -1, "a run, and the paths to copy"),
		RunE: onRun(&flags, func(cmd *cobra.Command, clients *kube.Clients, r entry, given []string) error {
			paths, err := r.paths(given)
			if err != nil {
				return err
			}
			return r.fetch(cmd, clients, paths, len(given) > 0, cmp.Or(to, r.name))
		}),
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().StringVar(&to, "to", "", "folder to copy to, created if it does not exist (default: the name of the run)")
	return cmd
}

// paths are relative to the workspace.
func (r entry) paths(given []string) ([]string, error) {
	if len(given) == 0 {
		return []string{fetch.RecordOf(r.uid()), r.checkpoints()}, nil
	}
	var paths []string
	var problems []error
	for _, p := range given {
		relative := strings.TrimPrefix(strings.TrimPrefix(path.Clean(p), agent.Workspace), "/")
		switch {
		case p == "logs":
			relative = fetch.RecordOf(r.uid())
		case path.IsAbs(p) && path.Clean(p) != agent.Workspace && !strings.HasPrefix(path.Clean(p), agent.Workspace+"/"), relative == ".." || strings.HasPrefix(relative, "../"):
			problems = append(problems, fmt.Errorf("path %q: want one on the workspace, such as checkpoints/mine or %s/checkpoints/mine", p, agent.Workspace))
		case relative == "":
			relative = "."
		}
		paths = append(paths, relative)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, step.Usage(fail.Because(fail.InvalidInput, err))
	}
	return paths, nil
}

// fetch copies the paths from all claims. A missing path is an error if the user named it.
func (r entry) fetch(cmd *cobra.Command, clients *kube.Clients, paths []string, named bool, to string) error {
	claims, err := r.claims(cmd.Context(), clients)
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
		result, err := fetch.Fetch(cmd.Context(), clients, fetch.Claim{Name: claim, For: r.name}, paths, fetch.RecordOf(r.uid()), folder)
		if err != nil {
			return fmt.Errorf("fetching from claim %s: %w", claim, err)
		}
		for _, path := range result.Absent {
			absent[path]++
		}
		files += result.Files
		if result.Files > 0 {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %s; %d of them new\n", folder, humanize.Count(result.Files, "file"), humanize.Bytes(result.Bytes), result.Fetched)
		}
	}
	var problems []error
	for _, path := range paths {
		switch where := strings.Join(claims, ", "); {
		case absent[path] < len(claims):
		case named || files == 0:
			problems = append(problems, fmt.Errorf("fetching %s: not found on %s", path, where))
		default:
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: not found on %s. To fetch another folder: mlenv fetch %s PATH -n %s\n", path, where, r.name, clients.Namespace)
		}
	}
	return errors.Join(problems...)
}

// claims are those of the run's workspace, as in its receipt or noted by the training, or else those that exist now.
func (r entry) claims(ctx context.Context, clients *kube.Clients) ([]string, error) {
	if record := r.record(); record != nil {
		return record.Claims, nil
	}
	names := objects.NamesOf(r.environment())
	claims, err := fetch.Claims(ctx, clients, names, names.Workspace)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", r.name, err)
	}
	return claims, nil
}
