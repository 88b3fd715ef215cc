// SPDX-License-Identifier: Apache-2.0

// Package runs has the commands that start, follow, list and cancel runs and show their logs and receipts.
package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/term"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// RunCommand returns the command mlenv run. files is the bundle.
func RunCommand(files fs.FS) *cobra.Command {
	o := runOptions{params: newParams(files)}
	cmd := &cobra.Command{
		Use:   "run REPO-URL|DIR SCRIPT|-m MODULE [-- ARGS...]",
		Short: "Train: start a run, follow it to its end, and release everything",
		Long: `Start the installed pipeline and follow it: each phase, and the log of the training.

A folder instead of the repository's URL (., .., ./DIR, ../DIR or an absolute path) trains that folder as it is, with
uncommitted changes: all files that git tracks or does not ignore, except those that .mlenvignore names. mlenv sends
them through the API server once the nodes are up. Keep it running until then.

Params that you leave out get the installed pipeline's defaults; the help shows those of this version. If others
hold the default environment, the run uses one of your own, with the same claims; --name chooses one. mlenv sets the
PipelineRun's timeouts so that the training fits.

With --local the run needs no cluster: its nodes are parts of this machine, which must run Linux. --like and --resume-from
then name a local run.

A job file has the params that you would type each time, as YAML: each key is the name of a param; env and build-args are
maps. Arguments and flags replace what is in the file.

Ctrl-C asks for one key: c, or a second Ctrl-C, cancels the run and releases everything; d ends mlenv, and the run
continues. Without a terminal, and with --local, SIGINT and SIGTERM cancel the run, and mlenv waits for its end.

Exit code 0: the training succeeded, or was left running; 1: it failed; 2: wrong usage; 3: mlenv could not follow the run,
which continues; 130: the run was cancelled.`,
		Example: `  mlenv run https://github.com/me/model.git train.py --nodes=2 -- --epochs 3
  mlenv run . train.py --nodes=2                 # this folder as it is
  mlenv run . -m model.train --nodes=2           # as python -m model.train in that folder
  mlenv run . train.py --local                   # two nodes on this machine, without a cluster
  mlenv run https://github.com/me/model.git train.py --detach
  mlenv run -f job.yaml --nodes=4 --dry-run
  mlenv run --like train-multi-node-x7k2p --timeout=24h
  mlenv run --resume-from train-multi-node-x7k2p`,
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	o.params.addTo(flags)
	o.module.AddTo(flags)
	o.local.addTo(flags)
	flags.StringVar(&o.runName, "run-name", "", "name of the run; if it exists with the same params, mlenv follows it, or reports how it "+
		"ended (default: a new name)")
	flags.StringVar(&o.serviceAccount, "service-account", "", "ServiceAccount of the steps (default: the one of mlenv install)")
	flags.StringVar(&o.like, "like", "", "use repository, script and params of this run unless given here; give the folder again if it "+
		"trained from one")
	flags.StringVar(&o.resumeFrom, "resume-from", "", "like --like, with the commit of that run, and with the variable "+agent.ResumeVariable+
		" for the script")
	flags.StringVarP(&o.file, "file", "f", "", "job file with params; arguments and flags replace what it has")
	flags.BoolVarP(&o.detach, "detach", "d", false, "print the run's name and leave it running")
	flags.BoolVar(&o.dryRun, "dry-run", false, "check everything, print what the run would create, as mlenv preflight does, and start nothing")
	cmd.MarkFlagsMutuallyExclusive("like", "resume-from")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "detach")
	cmd.Args = o.parse
	onCluster := envflags.Connected(&o.kube, o.start)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.local.on {
			return o.runLocal(cmd)
		}
		return onCluster(cmd, args)
	}
	return cmd
}

func (o *runOptions) start(cmd *cobra.Command, clients *kube.Clients, _ []string) error {
	ctx := cmd.Context()
	values, err := o.withEarlier(ctx, clients)
	if err != nil {
		return command.Usage(err)
	}
	pipeline, err := launch.Installed(ctx, clients)
	if err != nil {
		return err
	}
	chosen := chooseEnvironment(ctx, clients, pipeline, o.runName, values, cmd.ErrOrStderr())
	upload, err := o.prepare(ctx, pipeline, values)
	if err != nil {
		return err
	}
	if upload != nil {
		defer upload.remove()
		upload.sayLeftOut(cmd.ErrOrStderr())
	}
	allowed := mayRun(ctx, clients, launch.ParamValue(pipeline, values, "name"), upload != nil, !o.detach)
	if o.dryRun {
		return errors.Join(allowed, planRun(ctx, cmd.OutOrStdout(), clients, pipeline, o.serviceAccount, values))
	}
	if allowed != nil {
		return allowed
	}
	if err := checkCapacity(ctx, clients, pipeline, values); err != nil {
		return err
	}
	request := launch.Request{
		Pipeline: pipeline, Name: o.runName, ServiceAccount: o.serviceAccount, Values: values,
		Say: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
	}
	started, err := chosen.start(ctx, request)
	if err != nil {
		return command.Usage(err)
	}
	request.Annotations = chosen.annotations()
	if started.IsDone() { // --run-name names a run that has ended
		outcome, err := launch.OutcomeOf(ctx, clients, started)
		if err != nil {
			return err
		}
		if o.detach {
			fmt.Fprintln(cmd.OutOrStdout(), started.Name)
		}
		return conclude(o.output(cmd), cmd.ErrOrStderr(), outcome)
	}
	if o.detach && upload == nil {
		detached(cmd, started)
		return nil
	}
	return o.follow(cmd, clients, request, started, upload)
}

// follow returns when the run has ended, or when the user or --detach leaves it.
func (o *runOptions) follow(cmd *cobra.Command, clients *kube.Clients, request launch.Request, started *v1.PipelineRun,
	upload *packedFolder) error {
	out := outlive(o.output(cmd), func() {
		tellUser(cmd.ErrOrStderr(), "Nothing reads the output any more. mlenv follows the run to its end without it.\n")
	})
	f := runFollower{clients: clients, request: &request, run: started, detach: o.detach,
		display: newDisplay(out, len(request.Pipeline.Spec.Tasks)+len(request.Pipeline.Spec.Finally))}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	f.signals = signals
	if term.IsTerminal(int(os.Stdin.Fd())) && f.display.width != nil {
		f.answers, f.display.takeKeys = os.Stdin, func() func() { return passKeysOn(os.Stdin) }
	}
	if started.Status.StartTime == nil {
		f.display.print("Run %s/%s is started.", started.Namespace, started.Name)
	} else {
		f.display.print("Run %s/%s is in progress.", started.Namespace, started.Name)
	}
	if upload != nil {
		upload.sentBy(&f)
	}
	outcome, over, err := f.follow(cmd.Context())
	switch {
	case err != nil:
		return err
	case over:
		err := conclude(out, cmd.ErrOrStderr(), outcome)
		if next := upload.include(outcome.Message); next != "" {
			tellUser(cmd.ErrOrStderr(), "  next:    %s\n", next)
		}
		return err
	}
	detached(cmd, started)
	return nil
}

// passKeysOn makes the terminal pass on each key at once, until release.
func passKeysOn(terminal *os.File) (release func()) {
	in := int(terminal.Fd())
	before, err := term.MakeRaw(in)
	if err != nil {
		return nil // a key then needs Enter
	}
	return func() { _ = term.Restore(in, before) } // nothing else can be done
}

// detached prints the commands for a run that continues.
func detached(cmd *cobra.Command, of *v1.PipelineRun) {
	fmt.Fprintln(cmd.OutOrStdout(), of.Name)
	tellUser(cmd.ErrOrStderr(), "The run continues.\n  follow: mlenv logs %s --follow -n %s\n  cancel: mlenv cancel %s -n %s\n",
		of.Name, of.Namespace, of.Name, of.Namespace)
}
