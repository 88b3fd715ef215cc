// Package runs are the commands about runs: start one and follow it, list them,
// look at one, read its logs, cancel it, and read its receipt.
package runs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/term"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// runOptions are the flags of mlenv run.
type runOptions struct {
	kube           kube.Flags
	params         params
	runName        string
	serviceAccount string
	like           string
	resumeFrom     string
	detach         bool
	// target and script are the arguments; args is what follows --.
	target, script string
	args           []string
	argsGiven      bool
}

// RunCommand is mlenv run. files is the bundle.
func RunCommand(files fs.FS) *cobra.Command {
	pipeline, err := pipelineOf(files)
	if err != nil {
		panic(err) // the bundle is part of the program, and tested
	}
	o := runOptions{params: params{pipeline: pipeline}}
	cmd := &cobra.Command{
		Use:   "run REPO-URL|DIR SCRIPT [-- ARGS...]",
		Short: "Train: start a run, follow it to its end, and give everything back",
		Long: `Start the pipeline that is installed in the namespace, and follow it: each phase, and the log of the training.

With a folder in place of the repository's URL (., .., ./DIR, ../DIR or an absolute path) it trains from that as it
is, with changes that are not committed: all files that git tracks or does not ignore, less what .mlenvignore names. They are sent to the
nodes when these are there, by way of the API server; until then this program has to go on.

Flags of the pipeline's params that are not given have the installed pipeline's defaults. The PipelineRun's
timeouts are made so that the training fits.

Ctrl-C asks whether to cancel the run and have everything given back, or to leave it running; a second Ctrl-C
cancels. Without a terminal SIGINT and SIGTERM cancel, and it waits until everything is given back.

Exit code 0: the training succeeded, or was left running; 1: it failed, and the reason is told; 2: wrong usage;
130: the run was cancelled.`,
		Example: `  mlenv run https://github.com/me/model.git train.py --nodes=2 -- --epochs 3
  mlenv run . train.py --nodes=2                 # this folder as it is
  mlenv run https://github.com/me/model.git train.py --detach
  mlenv run --like train-multi-node-x7k2p --timeout=24h
  mlenv run --resume-from train-multi-node-x7k2p`,
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	o.params.addTo(flags)
	flags.StringVar(&o.runName, "run-name", "", "name of the run; one of that name that was asked for the same is followed (default: a new name)")
	flags.StringVar(&o.serviceAccount, "service-account", "", "ServiceAccount of the steps (default: "+launch.ServiceAccount+")")
	flags.StringVar(&o.like, "like", "", "take repository, script and params of this run where they are not given; of one from a folder the folder must be given")
	flags.StringVar(&o.resumeFrom, "resume-from", "", "as --like, with the very commit of that run, and the variable "+ResumeVariable+" for the script")
	flags.BoolVarP(&o.detach, "detach", "d", false, "print the run's name and leave it running")
	cmd.MarkFlagsMutuallyExclusive("like", "resume-from")
	for _, name := range []string{"like", "resume-from"} {
		complete(cmd, name, &o.kube)
	}
	cmd.Args = o.parse
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd) }
	return cmd
}

// parse says every mistake at once.
func (o *runOptions) parse(cmd *cobra.Command, args []string) error {
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		o.args, o.argsGiven = args[dash:], true
		args = args[:dash]
	}
	var problems []error
	earlier := o.like != "" || o.resumeFrom != ""
	flags := cmd.Flags()
	for i, of := range []struct {
		flag string
		into *string
		what string
	}{{"repo-url", &o.target, "the repository's URL, or a folder, as . for this one"}, {"script", &o.script, "the training script"}} {
		switch {
		case len(args) > i:
			*of.into = args[i]
			if flags.Changed(of.flag) {
				problems = append(problems, fmt.Errorf("argument %q and --%s: want one of them", args[i], of.flag))
			}
		case !flags.Changed(of.flag) && !earlier:
			problems = append(problems, fmt.Errorf("an argument is missing: want %s", of.what))
		}
	}
	if len(args) > 2 {
		problems = append(problems, fmt.Errorf("arguments %q: want a repository and a script, and the script's own after --", args[2:]))
	}
	if o.argsGiven && flags.Changed("script-args") {
		problems = append(problems, errors.New("arguments after -- and --script-args: want one of them"))
	}
	if _, err := o.params.values(cmd); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// given are the values that the command line names.
func (o *runOptions) given(cmd *cobra.Command) (map[string][]string, error) {
	values, err := o.params.values(cmd)
	if err != nil {
		return nil, err
	}
	if o.target != "" {
		values["repo-url"] = []string{o.target}
	}
	if o.script != "" {
		values["script"] = []string{o.script}
	}
	if o.argsGiven {
		values["script-args"] = o.args
	}
	return values, nil
}

func (o *runOptions) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	values, err := o.given(cmd)
	if err != nil {
		return err
	}
	clients, err := o.kube.Connect()
	if err != nil {
		return err
	}
	request := launch.Request{Name: o.runName, ServiceAccount: o.serviceAccount}
	if request.Values, err = o.withEarlier(ctx, clients, values); err != nil {
		return wrongUsage(err)
	}
	pipeline, err := launch.Installed(ctx, clients, clients.Namespace, launch.Pipeline)
	if err != nil {
		return err
	}
	request.Installed = pipeline
	var upload *folder
	if isFolder(request.Values) {
		if upload, err = packFolder(ctx, request.Values); err != nil {
			return err
		}
		defer upload.remove()
		upload.environment = launch.Value(pipeline, request.Values, "name")
	}
	started, err := launch.Start(ctx, clients, request)
	if err != nil {
		return wrongUsage(err)
	}
	if o.detach && upload == nil {
		detached(cmd, started)
		return nil
	}
	return o.follow(cmd, clients, pipeline, started, upload)
}

// follow stays until the run has ended, or until nothing more is needed of us.
func (o *runOptions) follow(cmd *cobra.Command, clients *kube.Clients, pipeline *v1.Pipeline, started *v1.PipelineRun, upload *folder) error {
	out := cmd.OutOrStdout()
	if o.detach {
		out = cmd.ErrOrStderr() // the name alone goes to the other
	}
	f := follower{clients: clients, run: started, display: newDisplay(out, len(pipeline.Spec.Tasks)+len(pipeline.Spec.Finally))}
	var stop func()
	f.signals, stop = notify()
	defer stop()
	if term.IsTerminal(int(os.Stdin.Fd())) && f.display.width != nil {
		f.answers = cmd.InOrStdin()
	}
	f.display.say("Run %s/%s is started.", started.Namespace, started.Name)
	s := sender{folder: upload, clients: clients, run: started, display: f.display, detach: o.detach, done: make(chan error, 1), failed: make(chan error, 1)}
	if upload != nil {
		sending, stop := context.WithCancel(context.WithoutCancel(cmd.Context()))
		defer stop()
		f.observe, f.detached, f.leave = s.observe(sending), s.done, s.leave
	}
	outcome, over, err := f.follow(cmd.Context())
	switch failed := s.failure(); {
	case err != nil:
		return err
	case failed != nil: // nobody else cancelled it
		return failed
	case over:
		return conclude(out, cmd.ErrOrStderr(), outcome)
	}
	detached(cmd, started)
	return nil
}

// detached says how to come back.
func detached(cmd *cobra.Command, of *v1.PipelineRun) {
	fmt.Fprintln(cmd.OutOrStdout(), of.Name)
	fmt.Fprintf(cmd.ErrOrStderr(), "The run goes on by itself.\n  follow: mlenv logs %s --follow -n %s\n  cancel: mlenv cancel %s -n %s\n",
		of.Name, of.Namespace, of.Name, of.Namespace)
}

// wrongUsage gives the exit code of wrong usage to what the installed pipeline refuses.
func wrongUsage(err error) error {
	if fail.ReasonOf(err) == fail.InvalidInput {
		return &step.Exit{Code: step.WrongUsage, Err: err}
	}
	return err
}

// withEarlier takes what is not given from an earlier run.
func (o *runOptions) withEarlier(ctx context.Context, clients *kube.Clients, given map[string][]string) (map[string][]string, error) {
	name := o.like
	if o.resumeFrom != "" {
		name = o.resumeFrom
	}
	if name == "" {
		return given, nil
	}
	earlier, err := find(ctx, clients, name)
	if err != nil {
		return nil, err
	}
	values, err := earlier.values()
	if err != nil {
		return nil, err
	}
	// The image that the steps have is the installed pipeline's, which may be newer.
	delete(values, "steps-image")
	maps.Copy(values, given)
	if o.resumeFrom != "" {
		earlier.resume(values, given)
	}
	return values, sentBefore(values, name)
}
