// SPDX-License-Identifier: Apache-2.0

// Package runs has the commands that start, follow, list and cancel runs and show their logs and receipts.
package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

type runOptions struct {
	kube           kube.Flags
	params         params
	runName        string
	serviceAccount string
	like           string
	resumeFrom     string
	module         envflags.Module
	local          localRun
	// file is the path of a job file, "" for none.
	file           string
	detach, dryRun bool
	// values are the params on the command line.
	values map[string][]string
	// packed is the folder to train from, nil for a repository.
	packed *folder
}

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

Flags of params that you leave out have the installed pipeline's defaults; the help has those of this version. If others
hold the default environment, the run uses one of your own, with the same claims; --name chooses one. mlenv sets the
PipelineRun's timeouts so that the training fits.

With --local the run needs no cluster: its nodes are parts of this machine, which must run Linux. --like and --resume-from
then name a local run.

A job file has the params that you would type each time, as YAML: each key is the name of a param, env and build-args are
keys and values. Arguments and flags replace what the file has.

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

func (o *runOptions) parse(cmd *cobra.Command, args []string) error {
	inFile, noFile := o.readFile()
	var invalid error
	o.values, invalid = o.params.values(cmd)
	problems := []error{noFile}
	dash := cmd.ArgsLenAtDash()
	if dash >= 0 {
		args, o.values["script-args"] = args[:dash], args[dash:]
	}
	earlier := o.like != "" || o.resumeFrom != ""
	flags := cmd.Flags()
	if module := o.module.Script(); module != "" {
		problems = append(problems, command.Want(len(args) < 2 && !flags.Changed("script"), "-m %s and a script: want one of them",
			string(o.module)))
		args, o.values["script"] = args[:min(len(args), 1)], []string{module}
	}
	for i, of := range []struct{ flag, what string }{
		{"repo-url", "the repository's URL, or a folder, such as . for this one"},
		{"script", "the training script"},
	} {
		switch {
		case len(args) > i && args[i] != "":
			o.values[of.flag] = []string{args[i]}
			if flags.Changed(of.flag) {
				problems = append(problems, fmt.Errorf("argument %q and --%s: want one of them", args[i], of.flag))
			}
		case o.values[of.flag] == nil && inFile[of.flag] == nil && !earlier && noFile == nil:
			problems = append(problems, fmt.Errorf("an argument is missing: want %s", of.what))
		}
	}
	if len(args) > 0 {
		problems = append(problems, misplaced(args))
	}
	problems = append(problems, command.Want(o.local.on || o.local.python == "", "--python: want --local with it; on a cluster the image "+
		"has the Python"))
	problems = append(problems, checkNames(o.runName, o.serviceAccount),
		command.Want(len(args) <= 2, "arguments %q: want a repository and a script; arguments of the script go after --",
			args[min(2, len(args)):]),
		command.Want(dash < 0 || !flags.Changed("script-args"), "arguments after -- and --script-args: want one of them"), invalid)
	if err := errors.Join(problems...); err != nil {
		return err
	}
	maps.Copy(inFile, o.values)
	o.values = inFile
	expandHome(o.values)
	return nil
}

// checkNames returns the mistakes in names of objects, which the API server would refuse later, or Tekton as a failure of the run.
func checkNames(runName, account string) error {
	return errors.Join(
		command.Want(runName == "" || len(validation.IsDNS1123Label(runName)) == 0,
			"--run-name %q: want lower-case letters, digits and hyphens, a letter or digit first and last, at most 63", runName),
		command.Want(account == "" || len(validation.IsDNS1123Subdomain(account)) == 0,
			"--service-account %q: want the name of a ServiceAccount", account))
}

// misplaced returns the mistake in a first argument that names a folder or file of this machine in another way than isFolder knows.
func misplaced(args []string) error {
	argument, rest := args[0], strings.Join(append([]string{""}, args[1:min(len(args), 2)]...), " ")
	if path, ok := strings.CutPrefix(argument, "file://"); ok {
		return fmt.Errorf("argument %q: a folder has no scheme: mlenv run %s%s", argument, path, rest)
	}
	info, err := os.Stat(argument)
	switch {
	case err != nil:
		return nil //nolint:nilerr // it names nothing on this machine
	case !info.IsDir():
		dir := filepath.Dir(argument)
		if dir != "." && !filepath.IsAbs(dir) {
			dir = "./" + dir
		}
		return fmt.Errorf("argument %q is a file: want its folder first: mlenv run %s %s", argument, dir, filepath.Base(argument))
	case !isFolder(map[string][]string{"repo-url": {argument}}):
		return fmt.Errorf("argument %q: a folder begins with ./, as in mlenv run ./%[1]s%[2]s", argument, rest)
	}
	return nil
}

// readFile returns the params in the job file. Its resume-from counts unless a flag names an earlier run.
func (o *runOptions) readFile() (map[string][]string, error) {
	if o.file == "" {
		return map[string][]string{}, nil
	}
	values, resumeFrom, err := o.params.readJob(o.file)
	if o.like == "" && o.resumeFrom == "" {
		o.resumeFrom = resumeFrom
	}
	return values, err
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
	allowed := mayRun(ctx, clients, launch.Value(pipeline, values, "name"), upload != nil, !o.detach)
	if o.dryRun {
		return errors.Join(allowed, planRun(ctx, cmd.OutOrStdout(), clients, pipeline, o.serviceAccount, values))
	}
	if allowed != nil {
		return allowed
	}
	if err := fits(ctx, clients, pipeline, values); err != nil {
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

// output is for messages: with --detach, standard output gets only the name.
func (o *runOptions) output(cmd *cobra.Command) io.Writer {
	if o.detach {
		return cmd.ErrOrStderr()
	}
	return cmd.OutOrStdout()
}

// prepare packs the folder that the values name, nil if they name a repository. It reports mistakes in the folder and in
// all params in one pass.
func (o *runOptions) prepare(ctx context.Context, pipeline *v1.Pipeline, values map[string][]string) (upload *folder, err error) {
	if isFolder(values) {
		upload, err = packFolder(ctx, pipeline, values)
	}
	if _, invalid := launch.Params(pipeline, values); invalid != nil {
		err = errors.Join(err, command.Usage(invalid))
	}
	switch {
	case upload == nil:
		return nil, err
	case err != nil:
		upload.remove()
		return nil, err
	}
	o.packed = upload
	return upload, nil
}

// follow returns when the run has ended, or when the user or --detach leaves it.
func (o *runOptions) follow(cmd *cobra.Command, clients *kube.Clients, request launch.Request, started *v1.PipelineRun,
	upload *folder) error {
	out := outlive(o.output(cmd), func() {
		say(cmd.ErrOrStderr(), "Nothing reads the output any more. mlenv follows the run to its end without it.\n")
	})
	f := follower{clients: clients, request: &request, run: started, detach: o.detach,
		display: newDisplay(out, len(request.Pipeline.Spec.Tasks)+len(request.Pipeline.Spec.Finally))}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	f.signals = signals
	if term.IsTerminal(int(os.Stdin.Fd())) && f.display.width != nil {
		f.answers, f.display.takeKeys = os.Stdin, func() func() { return takeKeys(os.Stdin) }
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
			say(cmd.ErrOrStderr(), "  next:    %s\n", next)
		}
		return err
	}
	detached(cmd, started)
	return nil
}

// takeKeys makes the terminal pass on each key at once, until release.
func takeKeys(terminal *os.File) (release func()) {
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
	say(cmd.ErrOrStderr(), "The run continues.\n  follow: mlenv logs %s --follow -n %s\n  cancel: mlenv cancel %s -n %s\n",
		of.Name, of.Namespace, of.Name, of.Namespace)
}

// addEarlier returns the params on the command line, added to those of the run that --like or --resume-from names. read gets the flag and
// the name.
func (o *runOptions) addEarlier(read func(flag, name string) (runInfo, map[string][]string, error)) (map[string][]string, error) {
	flag, name := "--like", o.like
	if o.resumeFrom != "" {
		flag, name = "--resume-from", o.resumeFrom
	}
	if name == "" {
		return o.values, nil
	}
	earlier, values, err := read(flag, name)
	if err != nil {
		return nil, err
	}
	if isFolder(o.values) || o.values["repo-url"] == nil && isFolder(values) {
		delete(values, "revision") // it names a commit of the other folder, or of this one as it was, or of a repository
	}
	maps.Copy(values, o.values)
	if o.resumeFrom != "" {
		earlier.resume(values, o.values)
	}
	if url := values["repo-url"]; len(url) == 1 && git.IsFolder(url[0]) {
		return nil,
			fail.Advise(fail.Becausef(fail.InvalidInput, "starting a run with %s %s: that run trained from a folder: want the folder again, or a "+
				"repository", flag, name),
				"mlenv run . %s %s", flag, name)
	}
	return values, nil
}

// withEarlier is addEarlier for a run on the cluster.
func (o *runOptions) withEarlier(ctx context.Context, clients *kube.Clients) (map[string][]string, error) {
	return o.addEarlier(func(flag, name string) (r runInfo, values map[string][]string, err error) {
		if r, err = find(ctx, clients, name); err == nil {
			values, err = r.at.given(r)
		} else if _, here := local.Find(name); here && fail.ReasonOf(err) == fail.InvalidInput {
			err = fail.Advise(fail.Becausef(fail.InvalidInput, "starting a run with %s %s: that is a local run, and its files are on this machine",
				flag, name),
				"mlenv run --local %s %s", flag, name)
		}
		if err == nil && r.run.Annotations[chosenAnnotation] != "" && sharesWorkspace(ctx, clients, r.param("cluster")) {
			delete(values, "name")
		}
		delete(values, "steps-image") // the installed pipeline may have a newer one
		return r, values, err
	})
}
