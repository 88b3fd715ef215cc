// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pylib"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/racks"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rules"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/script"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Options are the training, and where it runs.
type Options struct {
	// Run is the PipelineRun that the step is part of; without it a person trains.
	Run run.Flags
	// Name is the environment.
	Name string
	// Job is the job's ID without a PipelineRun, and the name of its run on this machine; "" for a new one.
	Job string
	// ClientCerts is the folder of the environment's mounted client Secret; without it the Secret is read.
	ClientCerts string
	// Script is a path in the repository, or an absolute one on the nodes, or -m PACKAGE.MODULE.
	Script string
	// Args are the script's arguments, Env variables KEY=VALUE of the ranks.
	Args, Env []string
	// SecretEnv are variables of the ranks that no log shows.
	SecretEnv map[string]string
	// DeepSpeedConfig is the path of a configuration in the repository, "" for none.
	DeepSpeedConfig string
	Launcher        agent.Launcher
	// Hook is pylib.Auto or pylib.None.
	Hook string
	// RanksPerNode is 0 for one per GPU.
	RanksPerNode int
	// Timeout is how long the training may run. The nodes enforce it.
	Timeout time.Duration
	// StopGrace is how long the ranks have to save when they are stopped; 0 for the environment's time.
	StopGrace time.Duration
	// MaxRestarts is how often the training is started again after a failure that another attempt may not have.
	MaxRestarts int
	// StopIf are rules that end the training, RestartIf rules after which it is started again.
	StopIf, RestartIf rules.List
	// Tree to run in, "" for the one that was synced last.
	Tree tree.Digest
	// ProgressEvery is the time between two lines of progress.
	ProgressEvery time.Duration
	// HangTimeout is the longest silence of a training that runs on.
	HangTimeout HangTimeout
	// Rendezvous is what happens after a training whose ranks never met: warn or fail.
	Rendezvous param.Effect
	// NewPort returns where the ranks of the next attempt meet, nil for the port that environments use.
	NewPort func() (int, error)
	// DebugRank waits for a debugger; -1 for none.
	DebugRank int
	// Exclusive refuses to train next to another training on the same nodes. With Replace a training that a person
	// started is stopped instead.
	Exclusive, Replace bool
}

// Deps are what Run works with.
type Deps struct {
	Clients *kube.Clients
	// Place is nil for the pods of the environment Options.Name. Another one needs no Clients.
	Place Place
	Log   *slog.Logger
	// Out gets the ranks' output; without it each line is a record of Log.
	Out io.Writer
	// Notify gets the training's events, nil for none.
	Notify func(notify.Event)
	// Journal is what a run without a PipelineRun remembers of this step, nil for nothing.
	Journal *receipt.Writer
}

// Run starts the job on all nodes, or attaches to it, follows it until it ends, and decides what an interruption
// means for it. A failure that an earlier attempt of the step has reported is final, and is returned again.
func Run(ctx context.Context, d Deps, o Options) (Result, error) {
	t := &Training{Deps: d, Options: o, ID: cmp.Or(o.Run.UID, o.Job)}
	if t.Clients == nil {
		t.Clients = &kube.Clients{}
	}
	if t.Notify == nil {
		t.Notify = func(notify.Event) {}
	}
	if result, err := t.earlier(ctx); err != nil {
		return result, err
	}
	t.journal = cmp.Or(d.Journal, receipt.NewWriter(ctx, d.Clients, d.Log, o.Run, o.Name))
	result, err := t.run(ctx)
	t.noteEnd(ctx, result, err)
	return result, err
}

func (t *Training) run(ctx context.Context) (Result, error) {
	set, detach, err := t.place().Attach(ctx, t.Log, t.ClientCerts, t.Run)
	if err != nil {
		return Result{}, err
	}
	defer detach()
	t.Nodes = set
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	go t.watchLease(ctx, lose)
	if t.ID == "" {
		t.ID = "by-hand-" + strings.ToLower(rand.Text()[:10])
	}
	if t.MaxRestarts > 0 {
		// An earlier attempt of this step may have ended while a node was away.
		starting, cancel := context.WithTimeout(ctx, regroupTime)
		err := t.waitAllReady(starting)
		cancel()
		if ctx.Err() != nil {
			return Result{}, t.interrupted(ctx)
		} else if err != nil {
			return Result{}, err
		}
	}
	err = t.readPods(ctx)
	if err == nil {
		t.measured = t.uids
		err = t.prepare(ctx)
	}
	if err == nil && t.Exclusive {
		err = t.stopOtherTrainings(ctx, t.Replace)
	}
	if ctx.Err() != nil {
		return Result{}, t.interrupted(ctx)
	} else if err != nil {
		return Result{}, err
	}
	t.Network.LogSettings(t.Log)
	result, err := t.attempts(ctx)
	if ctx.Err() != nil {
		return result, t.interrupted(ctx)
	}
	t.warnOfFiles(result.Statuses)
	if err == nil {
		t.Log.Info(done(len(set)*t.Spec.RanksOfNode(), result.Statuses))
		err = t.meant(result.Statuses)
	}
	return result, err
}

// done describes a training whose ranks all exited with 0, and where its files are.
func done(ranks int, statuses []agent.JobStatus) string {
	files := ""
	if work := agent.WorkOf(statuses); work != "" {
		files = ", and files at relative paths are in " + work
	}
	return fmt.Sprintf("Training done: %s exited with 0. On the nodes, the record is %s%s.", humanize.Count(ranks, "rank"), statuses[0].Record,
		files)
}

// warnOfFiles names what the script has written where no run keeps it, or where it may not be whole: torch reports no error for a small
// file that does not fit.
func (t *Training) warnOfFiles(statuses []agent.JobStatus) {
	for _, status := range statuses {
		if status.Full {
			t.Log.Warn(fmt.Sprintf("The workspace of node %d is full. A file of a checkpoint that torch wrote meanwhile may be empty, although "+
				"there was no error: free space, and see the sizes of the newest checkpoint.", status.Node))
		}
		for _, found := range status.Outside {
			t.Log.Warn(fmt.Sprintf("Node %d has %s in %s of %s, the newest %s. They do not belong to the run: mlenv fetch does not copy them, and "+
				"what is not below %s ends with its pod. Write to a relative path.", status.Node, humanize.Bytes(int64(found.Bytes)),
				humanize.Count(found.Files, "file"), found.Path, found.Newest, agent.Workspace))
		}
	}
}

// meant judges a training that succeeded by what its nodes report: whether the ranks met, and how.
func (t *Training) meant(statuses []agent.JobStatus) error {
	if hidden := cause.Hidden(statuses); hidden != "" {
		t.Log.Warn(fmt.Sprintf("Every rank exited with 0, but %s. Next: %s.", hidden, cause.HiddenNext))
	}
	alone := cause.Alone(statuses)
	switch {
	case alone == "":
		if unproven := cause.Unproven(statuses, t.wantedTransport()); unproven != "" {
			t.Log.Warn(fmt.Sprintf("Every rank exited with 0, but %s. Next: %s.", unproven, cause.UnprovenNext), "event", "transport-unproven",
				"why", unproven)
		}
		return nil
	case t.Rendezvous == param.Fail:
		return fail.Advise(fail.Becausef(fail.NoRendezvous, "training: %s", alone), cause.AloneNext)
	}
	t.Log.Warn(fmt.Sprintf("Every rank exited with 0, but %s. Next: %s. With require-rendezvous=fail such a training fails.", alone,
		cause.AloneNext))
	return nil
}

// watchLease calls lose if the run's environment was deleted or has another holder.
func (t *Training) watchLease(ctx context.Context, lose context.CancelCauseFunc) {
	if t.Run.UID == "" {
		return
	}
	held, err := t.environment().Lease(t.Log).StillHeld(ctx, t.Run.UID)
	if err == nil {
		err = held.WaitLost(ctx)
	}
	if fail.ReasonOf(err) == fail.EnvironmentMissing {
		lose(err)
	}
}

// earlier returns the final failure that an attempt before this one noted in the receipt, nil if there is none or if its job may still
// succeed. Tekton retries a step whatever its failure was: a line refers to the first attempt, which has printed the error. If the
// receipt cannot be read, the step finds the job again, with the same end.
func (t *Training) earlier(ctx context.Context) (Result, error) {
	if t.Run.Name == "" {
		return Result{}, nil
	}
	m, err := receipt.ReadJournal(ctx, t.Clients.Kube, t.Clients.Namespace, t.Run.Name)
	if err != nil || m.RunUID != t.Run.UID {
		return Result{}, nil //nolint:nilerr // this attempt works as the first one would
	}
	v := m.Verdict(receipt.Seen{}).Final
	if v == nil || v.Task != "" && v.Task != t.Run.Task {
		return Result{}, nil
	}
	metrics := ""
	if text, err := json.Marshal(v.Metrics); err == nil && v.Metrics != nil { // a receipt is indented, a result is short
		metrics = string(text)
	}
	const words = 200
	t.Log.Info(fmt.Sprintf("Nothing runs in this retry by Tekton: the failure of the first attempt is final, %s: %s", v.Reason,
		humanize.OneLine(v.Message, words)))
	return Result{Metrics: metrics}, &command.Exit{Code: command.Failed, Err: fail.Becausef(v.Reason, "%s", v.Message), Told: true}
}

func (t *Training) newPort() (err error) {
	if t.NewPort != nil {
		t.Spec.MasterPort, err = t.NewPort()
	}
	return err
}

// runName returns the run that the job belongs to, "" for none: a training of a user in a kept environment may be replaced.
func (t *Training) runName() string {
	if t.Exclusive {
		return t.Run.Name
	}
	return cmp.Or(t.Run.Name, t.Job)
}

// prepare asks the nodes for what the flags leave open, and prepares their network again: a rail may have gone down since
// provision did.
func (t *Training) prepare(ctx context.Context) (err error) {
	spec := &t.Spec
	*spec = agent.JobSpec{
		Run: t.runName(), Launcher: t.Launcher, Script: t.Script, Args: t.Args, Tree: t.Tree,
		Nodes: len(t.Nodes), RanksPerNode: t.RanksPerNode, Env: map[string]string{}, SecretEnv: t.SecretEnv,
		Deadline: time.Now().Add(t.Timeout), Grace: t.StopGrace, NoHook: t.Hook == pylib.None,
	}
	if err := t.newPort(); err != nil {
		return err
	}
	if t.DebugRank >= 0 {
		spec.DebugRank = &t.DebugRank
	}
	for key := range t.SecretEnv {
		if _, _, err := agent.ParseVariable(key + "="); err != nil {
			return fail.Because(fail.InvalidInput, fmt.Errorf("reading the Secret of the ranks' variables: %w", err))
		}
	}
	for _, entry := range t.Env {
		key, value, err := agent.ParseVariable(entry)
		if err != nil {
			return fail.Because(fail.InvalidInput, err)
		}
		spec.Env[key] = value
	}
	ctx, cancel := context.WithTimeout(ctx, jobs.Reachable)
	defer cancel()
	facts, err := nodes.AskAll(ctx, t.Nodes, (*agent.Client).Facts)
	if err != nil {
		return err
	}
	states, err := nodes.AskAll(ctx, t.Nodes[:1], (*agent.Client).CurrentTree)
	if err != nil {
		return err
	}
	if err := t.settingsLost(ctx, facts); err != nil {
		return err
	}
	if t.Network, err = network.Prepare(ctx, t.Nodes, network.SettingsOf(facts)); err != nil {
		return err
	}
	spec.Order = racks.RankOrder(t.Network.Racks)
	if spec.RanksPerNode == 0 {
		spec.RanksPerNode = max(1, facts[0].GPUsExpected)
	}
	if spec.Tree == "" {
		spec.Tree = states[0].Hash
	}
	if spec.Tree == "" && !filepath.IsAbs(spec.Script) && spec.Launcher != agent.Command {
		return fail.Advise(fail.Becausef(fail.ScriptNotFound, "launching %s: no repository was synced to the environment %s", spec.Script,
			t.Name),
			"run the Task mlenv-sync-repo or mlenv sync first, or give the absolute path of a script on the nodes")
	}
	return t.suit(ctx)
}

// suit chooses the launcher and the form of the arguments that the script's parser takes.
func (t *Training) suit(ctx context.Context) error {
	spec := &t.Spec
	var takes script.Arguments
	if spec.Tree != "" && !filepath.IsAbs(spec.Script) && (spec.Launcher == agent.AutoLauncher || t.DeepSpeedConfig != "") {
		var err error
		if takes, err = t.Nodes[0].Script(ctx, spec.Tree, spec.Script); err != nil {
			return err
		}
	}
	if spec.Launcher == agent.AutoLauncher {
		spec.Launcher, spec.LauncherWhy = jobs.AutoLauncher(*spec, takes, t.DeepSpeedConfig)
		spec.NoLocalRank = takes.LocalRank == ""
		t.Log.Info(fmt.Sprintf("Launcher auto is %s: %s.", spec.Launcher, spec.LauncherWhy))
	}
	if t.DeepSpeedConfig != "" {
		spec.Args = withDeepSpeed(t.DeepSpeedConfig, spec.Args, takes)
	}
	return nil
}

// withDeepSpeed puts a configuration before a script's arguments, in the form that its parser takes. Scripts that call
// deepspeed.add_config_arguments read it only if --deepspeed is set; transformers' Trainer takes it as the value of --deepspeed.
func withDeepSpeed(config string, args []string, takes script.Arguments) []string {
	const enable = "--deepspeed"
	enabled := slices.ContainsFunc(args, func(arg string) bool { return arg == enable || strings.HasPrefix(arg, enable+"=") })
	given := []string{"--deepspeed_config", config}
	underscore := takes.Added != "" || takes.Config != ""
	if !underscore && takes.DashConfig != "" {
		given[0] = "--deepspeed-config"
	}
	switch declares := underscore || takes.DashConfig != ""; {
	case !declares && (takes.Trainer != "" || takes.Switch != ""):
		if given[0] = enable; enabled {
			return args
		}
	case !enabled && (!declares || takes.Added != "" || takes.Switch != ""):
		given = append([]string{enable}, given...)
	}
	return append(given, args...)
}

// settingsLost returns the error if all pods of an environment for RDMA are new: none has the network settings that provision
// made, and without any the ranks would talk over TCP.
func (t *Training) settingsLost(ctx context.Context, facts []agent.Facts) error {
	if slices.ContainsFunc(facts, func(f agent.Facts) bool { return f.Network != nil }) {
		return nil
	}
	if mode, err := t.place().Mode(ctx); err != nil || mode != agent.RDMA {
		return err
	}
	return fail.Advise(fail.Becausef(fail.NodeLost, "training: all pods of environment %s were replaced: none has the RDMA settings of "+
		"provision", t.Name),
		"start the run again; an environment that is kept gets its settings back from mlenv up")
}

// interrupted decides what SIGTERM or Ctrl-C means for the training. It is stopped if its run was cancelled, timed out
// or deleted, if a person interrupts it, and if its environment is lost. If the step's pod is evicted the training continues
// for the next attempt.
func (t *Training) interrupted(ctx context.Context) error {
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	lost := context.Cause(ctx)
	released := fail.ReasonOf(lost) == fail.EnvironmentMissing
	if released {
		t.stop(ending, agent.Stop{Reason: "the environment is not this run's any more", Grace: jobs.Grace})
	}
	why, err := t.ending(ending)
	switch {
	case released && (err != nil || !why.Cause.EndsWork()):
		return fail.Advise(lost, "start the run again; mlenv down, the reaper and oc delete release environments")
	case released: // the end of the run takes the environment with it
		return runEndError(why)
	case err != nil:
		t.Log.Warn(fmt.Sprintf("The reason why this step was stopped is unknown, so the training continues: %v", err))
		return fail.Becausef(fail.Cancelled, "training: the step was stopped; job %s continues", t.ID)
	}
	if !why.Cause.EndsWork() {
		return fail.Becausef(fail.Cancelled, "training: %s; job %s continues and the next attempt finds it", why.Message, t.ID)
	}
	return t.stopSaving(ctx, ending, why)
}

// ending returns why the step is to end; a person interrupts it.
func (t *Training) ending(ctx context.Context) (run.Ending, error) {
	if t.Run.Name == "" {
		return run.Ending{Cause: run.CancelledByUser, Message: "it was interrupted"}, nil
	}
	return run.EndingOf(ctx, t.Clients.Tekton, t.Clients.Namespace, t.Run.Name, types.UID(t.Run.UID), t.Run.Task, t.Clients.Now())
}

// runEndError returns the error of a training that the end of its run has ended.
func runEndError(why run.Ending) error {
	reason, message := receipt.ReasonOf(why)
	return fail.Becausef(reason, "training: %s", message)
}

// isReleased reports whether the environment is not this run's any more, and so its pods are gone or going. The Lease is deleted
// before them.
func (t *Training) isReleased(ctx context.Context) bool {
	if t.Run.UID == "" {
		return false
	}
	_, err := t.environment().Lease(t.Log).StillHeld(context.WithoutCancel(ctx), t.Run.UID)
	return fail.ReasonOf(err) == fail.EnvironmentMissing
}
