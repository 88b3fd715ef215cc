// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

// localParams are the params that a local run uses in addition to those that are flags of the step train.
var localParams = []string{"repo-url", "revision", "submodules", "lfs", "requirements", "script", "script-args", "env", "nodes"}

// runLocal trains on this machine and follows the training to its end.
func (o *runOptions) runLocal(cmd *cobra.Command) error {
	if runtime.GOOS != "linux" { // which the agent of a node needs
		return command.Usage(fail.Becausef(fail.InvalidInput, "--local needs Linux: run it in a Linux virtual machine or container, or on a "+
			"cluster without --local"))
	}
	if err := o.withEarlierLocal(); err != nil {
		return command.Usage(err)
	}
	options, wrongOptions := o.localOptions()
	count, wrongCount := o.localCount()
	if err := errors.Join(wrongOptions, wrongCount); err != nil {
		return command.Usage(fail.Because(fail.InvalidInput, err))
	}
	ctx, stop := command.UntilHangup(cmd.Context())
	defer stop()
	cmd.SetContext(ctx)
	log := command.TextLog(cmd.OutOrStdout())
	folder, err := local.Folder()
	if err != nil {
		return err
	}
	job := localJob{nodes: local.Options{
		Folder: folder, Name: cmp.Or(o.runName, "local-"+rand.String(5)), Nodes: count, Python: o.local.python, Environ: os.Environ(),
	}, given: o.givenParams()}
	source, commit, remove, err := o.localSource(ctx, log)
	if err != nil {
		return err
	}
	defer remove()
	if o.packed != nil {
		o.packed.sayLeftOut(cmd.ErrOrStderr())
	}
	// Absolute paths in the folder are relative to it now.
	options.Script, options.DeepSpeedConfig = o.paramValue("script"), o.paramValue("deepspeed-config")
	if err := lacksPackages(ctx, o.local.python, source.Dir, options, source.Requirements != ""); err != nil {
		return err
	}
	job.source, job.training, job.commit = source, options, commit
	if err = job.run(cmd); err != nil {
		if next := o.packed.include(err.Error()); next != "" {
			err = fail.Advise(err, "%s", next)
		}
	}
	return err
}

const (
	// localNodes is how many nodes there are unless it is given: enough to show whether a script runs on several.
	localNodes = 2
	// mostLocalNodes bounds the addresses of the nodes.
	mostLocalNodes = 64
	// localRequirements is the time for installing the requirements.
	localRequirements = 20 * time.Minute
)

// localCount returns the number of nodes.
func (o *runOptions) localCount() (int, error) {
	given := o.values["nodes"]
	if len(given) != 1 {
		return localNodes, nil
	}
	count, err := strconv.Atoi(given[0])
	if err != nil || count < 1 || count > mostLocalNodes {
		return 0, fmt.Errorf("--nodes %q: want 1 to %d nodes on this machine", given[0], mostLocalNodes)
	}
	return count, nil
}

// localOptions returns the training's options from all params that are given. Params that need a cluster are mistakes.
func (o *runOptions) localOptions() (train.Options, error) {
	options := train.Options{Args: o.values["script-args"], Env: o.values["env"]}
	flags := pflag.NewFlagSet("train", pflag.ContinueOnError)
	options.AddFlags(flags)
	options.AddStopGrace(flags, 0)
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(o.values)) {
		text := o.values[name]
		switch flag := flags.Lookup(name); {
		case slices.Contains(localParams, name):
		case flag == nil:
			instead := ""
			if name == "gpus-per-node" {
				instead = "; want --ranks-per-node, or CUDA_VISIBLE_DEVICES"
			}
			problems = append(problems, fmt.Errorf("--%s: a local run has no use for it%s", name, instead))
		case name == "stop-if" || name == "restart-if" || len(text) == 1 && text[0] != "":
			for _, item := range text {
				if err := flags.Set(name, item); err != nil {
					problems = append(problems, fmt.Errorf("--%s %w", name, err))
				}
			}
		}
	}
	for _, other := range []struct {
		name  string
		given bool
	}{{"detach", o.detach}, {"dry-run", o.dryRun}, {"service-account", o.serviceAccount != ""}, {"namespace", o.kube.Namespace != ""},
		{"context", o.kube.Context != ""}, {"kubeconfig", o.kube.Kubeconfig != ""}} {
		problems = append(problems, command.Want(!other.given, "--%s: a local run has no use for it", other.name))
	}
	return options, errors.Join(append(problems, command.FlagMistakes(flags), options.Check())...)
}

// localSource returns the folder to train from: a copy of one of this machine, which the user may change meanwhile, or the files of a
// repository.
func (o *runOptions) localSource(ctx context.Context, log *slog.Logger) (source syncrepo.Folder, commit string, remove func(), err error) {
	packed, err := o.prepare(ctx, o.params.pipeline, o.values)
	source.Requirements, source.RequirementsTimeout = o.paramValue("requirements"), localRequirements
	switch {
	case err != nil:
		return source, "", nil, err
	case packed != nil:
		source.Dir = packed.dir
		return source, o.paramValue("revision"), packed.remove, nil
	}
	dir, err := claimfile.MkdirTemp("", "mlenv-repository-")
	if err != nil {
		return source, "", nil, fmt.Errorf("creating a folder for the repository: %w", err)
	}
	remove = func() { claimfile.RemoveFolder(dir) }
	commit, err = git.Fetch(ctx, log, dir, git.Source{
		URL: o.paramValue("repo-url"), Revision: o.paramValue("revision"),
		Submodules: o.paramValue("submodules") == "true", LFS: o.paramValue("lfs") == "true",
	})
	if err == nil {
		log.Info(fmt.Sprintf("Fetched commit %s.", commit))
		source.Dir = dir
		source.Ignore, err = tree.LoadIgnore(dir)
	}
	if err != nil {
		remove()
		return source, "", nil, err
	}
	return source, commit, remove, nil
}
