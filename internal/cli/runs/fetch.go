// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/fetch"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// FetchCommand returns the command mlenv fetch.
func FetchCommand() *cobra.Command {
	var flags kube.Flags
	var to, stepsImage string
	cmd := &cobra.Command{
		Use:   "fetch RUN [PATH...]",
		Short: "Copy logs, outputs or checkpoints of a run to this machine",
		Long: `Copy files of a run from the workspace's claims to this machine, during the run or later.

PATH is one that the run wrote: a relative path is looked for in the run's working directory first, and then on the
workspace. So out is what the script wrote to out, checkpoints/mine or /workspace/checkpoints/mine a folder of the
workspace. logs means the folder with the logs, metrics and status of the run, and work its whole working directory,
without the files of the repository that it did not change. Without PATH mlenv copies logs, work, and checkpoints/RUN if it
exists; for a run that was started with --resume-from, that is the folder of the first run.

A pod without any rights mounts the claim read-only and sends the files; mlenv always deletes it. For a local run the claim is
the folder of the local runs. Every file is verified
by its SHA-256. A file that exists here with the same content is skipped, so a second fetch continues a broken one. If
each node has its own claim, each gets a folder: node-0, node-1. Then mlenv prints the newest checkpoint, and the command
that continues from it.

Exit code 0: all files are here; 1: some are not; 2: wrong usage, or no such run.`,
		Example: `  mlenv fetch train-multi-node-x7k2p
  mlenv fetch train-multi-node-x7k2p logs
  mlenv fetch train-multi-node-x7k2p out/model.pt
  mlenv fetch train-multi-node-x7k2p checkpoints/mine --to=./mine`,
		Args: command.Arguments(1, -1, "a run, and the paths to copy"),
		RunE: onRun(&flags, func(cmd *cobra.Command, clients *kube.Clients, r runInfo, given []string) error {
			paths, err := r.paths(given)
			if err != nil {
				return err
			}
			return r.fetch(cmd, clients, paths, len(given) > 0, cmp.Or(to, r.name), stepsImage)
		}),
	}
	flags.AddTo(cmd.Flags())
	cmd.Flags().StringVar(&stepsImage, "steps-image", "",
		"image of the steps for the pod (default: the installed pipeline's, or else the newest run's)")
	cmd.Flags().StringVar(&to, "to", "", "folder to copy to, created if it does not exist (default: the name of the run)")
	return cmd
}

// The names here for folders of a run whose names on the claim begin with a dot. A script often writes a folder logs or checkpoints,
// too, so its working directory is a folder of its own.
const (
	logsFolder = "logs"
	workFolder = "work"
)

// paths returns what the user names, or what a run usually leaves.
func (r runInfo) paths(given []string) ([]fetch.Path, error) {
	record, work := fetch.RecordOf(r.uid()), fetch.WorkOf(r.uid())
	if len(given) == 0 {
		return []fetch.Path{
			{Name: logsFolder, Places: []string{record}}, {Name: workFolder, Places: []string{work}},
			{Name: r.checkpoints(), Places: []string{r.checkpoints()}},
		}, nil
	}
	var paths []fetch.Path
	var problems []error
	for _, p := range given {
		p = strings.Replace(p, r.at.workspace(), agent.Workspace, 1)
		clean := path.Clean(p)
		onClaim := cmp.Or(strings.TrimPrefix(strings.TrimPrefix(clean, agent.Workspace), "/"), ".")
		places := []string{path.Join(work, clean), onClaim}
		switch inWork, found := strings.CutPrefix(clean, workFolder+"/"); {
		case path.IsAbs(p) && !strings.HasPrefix(clean+"/", agent.Workspace+"/"), strings.HasPrefix(clean+"/", "../"):
			problems = append(problems, fmt.Errorf("path %q: want one that the run wrote, or one on the workspace, such as %s/checkpoints/mine",
				p, agent.Workspace))
		case path.IsAbs(p), clean == ".":
			places = places[1:]
		case clean == logsFolder:
			places = []string{record}
		case clean == workFolder:
			places = []string{work}
		case found:
			places = slices.Insert(places, 1, path.Join(work, inWork))
		}
		paths = append(paths, fetch.Path{Name: p, Places: places})
	}
	if err := errors.Join(problems...); err != nil {
		return nil, command.Usage(fail.Because(fail.InvalidInput, err))
	}
	return paths, nil
}

// fetch copies the paths from all claims. A missing path is an error if the user named it.
func (r runInfo) fetch(cmd *cobra.Command, clients *kube.Clients, paths []fetch.Path, named bool, to, stepsImage string) error {
	claims, err := r.at.claims(cmd.Context(), r)
	if err != nil {
		return err
	}
	if len(claims) == 0 {
		return fail.Becausef(fail.InvalidInput, "fetching from run %s: its receipt names no claims", r.name)
	}
	moved := map[string]string{fetch.RecordOf(r.uid()): logsFolder, fetch.WorkOf(r.uid()): workFolder}
	absent := map[string][]string{}
	files := 0
	for i, from := range claims {
		if from.Local && stepsImage != "" {
			return command.Usage(fail.Becausef(fail.InvalidInput, "--steps-image: no pod fetches from %s", r.displayName()))
		}
		from.StepsImage, from.Notes = stepsImage, cmd.ErrOrStderr()
		folder := to
		if len(claims) > 1 {
			folder = filepath.Join(to, fmt.Sprintf("node-%d", i))
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "Reading %s.\n", from)
		result, err := fetch.Fetch(cmd.Context(), clients, from, paths, moved, folder)
		if err != nil {
			return fmt.Errorf("fetching from %s: %w", from, err)
		}
		for name, problem := range result.Absent {
			absent[name] = append(absent[name], strings.ReplaceAll(problem, agent.Workspace, r.at.workspace()))
		}
		files += result.Files
		if result.Files > 0 {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %s; %d of them new\n", folder, humanize.Count(result.Files, "file"),
				humanize.Bytes(result.Bytes), result.Fetched)
		}
		if len(result.LeftOut) > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "Not copied, because they are special files or lead out of the working directory: %s.\n",
				strings.Join(result.LeftOut, ", "))
		}
	}
	r.printNewest(cmd.ErrOrStderr(), to)
	var problems []error
	at := fmt.Sprintf("mlenv fetch %s%s", r.name, r.namespaceFlag())
	for _, p := range paths {
		switch where := strings.Join(humanize.Each(claims, func(c fetch.Claim) string { return c.Name }), ", "); {
		case len(absent[p.Name]) < len(claims):
		case named || files == 0:
			problem := fail.Becausef(fail.InvalidInput, "fetching %s from %s: %s", p.Name, where, absent[p.Name][0])
			problems = append(problems, fail.Advise(problem, "%s   # logs, what the run wrote at relative paths, and its checkpoints", at))
		case p.Name != workFolder && p.Name != r.checkpoints():
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: not found on %s. To fetch another folder: %s PATH\n", p.Name, where, at)
		}
	}
	return errors.Join(problems...)
}

// printNewest names the newest checkpoint that was fetched, and the command that continues from it.
func (r runInfo) printNewest(out io.Writer, to string) {
	newest := newestCheckpoint(filepath.Join(to, filepath.FromSlash(r.checkpoints())))
	if newest == "" { // each node's claim has its part
		newest = newestCheckpoint(filepath.Join(to, "node-0", filepath.FromSlash(r.checkpoints())))
	}
	if newest != "" {
		tellUser(out, "Newest checkpoint: %s\n  continue from it: %s\n", newest, r.at.resume(r))
	}
}

// newestCheckpoint returns the checkpoint in a folder that its file latest names, as DeepSpeed's does, or else the one with the highest
// number at its end, "" for none.
func newestCheckpoint(folder string) string {
	const longest = 4 << 10
	if name, err := claimfile.Read(filepath.Join(folder, "latest"), longest); err == nil {
		if marked := strings.TrimSpace(string(name)); agent.IsCheckpointName(marked) {
			if _, err := os.Lstat(filepath.Join(folder, marked)); err == nil {
				return filepath.Join(folder, marked)
			}
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return ""
	}
	var names []string
	for _, entry := range entries {
		if name := entry.Name(); agent.IsCheckpointName(name) && name != "latest" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	stem := func(name string) string { return strings.TrimSuffix(name, filepath.Ext(name)) }
	return filepath.Join(folder, slices.MaxFunc(names, func(a, b string) int { return humanize.Natural(stem(a), stem(b)) }))
}
