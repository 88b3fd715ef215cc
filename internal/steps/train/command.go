package train

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/step/secretdir"
)

// options are the flags of the command.
type options struct {
	kube            kube.Flags
	name            string
	certs           string
	script          string
	deepspeedConfig string
	launcher        string
	ranksPerNode    int
	timeout         time.Duration
	secretDir       string
	tree            string
	run             run.Flags
	env, args       []string
	every           time.Duration
	debugRank       int
	// exclusive is of a person's training, which must not meet another one's ranks.
	// With replace the other one is stopped.
	exclusive, replace bool
}

// Command is the step train.
func Command() *cobra.Command { return new(options).command() }

func (o *options) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "train --script FILE [KEY=VALUE ...] [-- SCRIPT-ARGUMENT ...]",
		Short: "Launch a training on all nodes of an environment and follow it",
		Long: `Launch a training on all nodes of an environment and follow it to its end.

The script runs in the tree that sync-repo put there. Arguments before -- are
variables for the ranks, those after it are the script's own. It succeeds when
every rank of every node has exited with 0. If not, it names the rank that failed
first by an error of its own, and stops the rest.`,
		Example: `  train --script train.py --launcher deepspeed --deepspeed-config ds_zero2.json
  train --script train.py NCCL_DEBUG=WARN -- --steps 500 --lr 3e-4`,
		Args: func(cmd *cobra.Command, args []string) error {
			o.env, o.args = atDash(cmd, args)
			return o.check("--script is missing: want the path of the script in the repository")
		},
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	o.run.AddTo(flags)
	flags.StringVar(&o.name, "name", "ml-dev-env", "name of the environment")
	flags.StringVar(&o.certs, "client-certs", "", "folder of the environment's mounted client Secret (default: read the Secret)")
	flags.StringVar(&o.script, "script", "", "path of the script in the repository")
	flags.StringVar(&o.deepspeedConfig, "deepspeed-config", "", "path of a DeepSpeed configuration in the repository, given to the script as --deepspeed_config")
	flags.StringVar(&o.launcher, "launcher", string(agent.DeepSpeed), "what starts the ranks: deepspeed, torchrun, or command (the script once a node)")
	flags.IntVar(&o.ranksPerNode, "ranks-per-node", 0, "ranks on each node (default: one for each of its GPUs)")
	flags.DurationVar(&o.timeout, "timeout", 40*time.Minute, "time for the training; the nodes stop it by themselves when it has passed")
	flags.StringVar(&o.secretDir, "env-secret-dir", "", "folder of a mounted Secret whose keys become variables of the ranks")
	flags.StringVar(&o.tree, "tree", "", "hash of the tree to run in (default: the one synced last)")
	flags.DurationVar(&o.every, "progress-every", 10*time.Second, "how often progress is shown, where the training writes metrics")
	flags.IntVar(&o.debugRank, "debug-rank", -1, "rank that waits for a debugger before it begins, from 0; -1 for none")
	metrics := step.NewResult(cmd, "metrics", "the last values of the training's own metrics, as one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		result, err := o.train(cmd.Context(), cmd)
		return errors.Join(err, metrics.Write(result.Metrics))
	}
	return cmd
}

// atDash are the arguments before -- and those after it.
func atDash(cmd *cobra.Command, args []string) (before, after []string) {
	at := cmd.ArgsLenAtDash()
	if at < 0 {
		at = len(args)
	}
	return args[:at], args[at:]
}

// check finds every mistake of the flags; noScript says that there is no script.
func (o *options) check(noScript string) error {
	var problems []string
	if o.script == "" {
		problems = append(problems, noScript)
	}
	for _, entry := range o.env {
		if key, _, ok := strings.Cut(entry, "="); !ok || key == "" || strings.ContainsAny(key, " \t\n") {
			problems = append(problems, fmt.Sprintf("argument %q: want KEY=VALUE; arguments of the script go after --", entry))
		}
	}
	switch agent.Launcher(o.launcher) {
	case agent.DeepSpeed, agent.Torchrun, agent.Command:
	default:
		problems = append(problems, fmt.Sprintf("--launcher %q: want deepspeed, torchrun or command", o.launcher))
	}
	if o.ranksPerNode < 0 {
		problems = append(problems, fmt.Sprintf("--ranks-per-node %d: want at least 1, or 0 for one a GPU", o.ranksPerNode))
	}
	if o.timeout <= 0 {
		problems = append(problems, fmt.Sprintf("--timeout %s: want more than nothing", o.timeout))
	}
	if o.debugRank < -1 {
		problems = append(problems, fmt.Sprintf("--debug-rank %d: want a rank from 0, or -1 for none", o.debugRank))
	}
	if o.debugRank >= 0 && agent.Launcher(o.launcher) == agent.Command {
		problems = append(problems, fmt.Sprintf("--debug-rank %d: launcher command starts programs and no ranks; want --launcher deepspeed or torchrun", o.debugRank))
	}
	if o.tree != "" && !tree.Digest(o.tree).Valid() {
		problems = append(problems, fmt.Sprintf("--tree %q: want 64 hex digits, as the result tree of sync-repo has", o.tree))
	}
	if o.every <= 0 {
		problems = append(problems, fmt.Sprintf("--progress-every %s: want more than nothing", o.every))
	}
	if err := o.run.Check(); err != nil {
		problems = append(problems, err.Error())
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n"))
	}
	return nil
}

// train connects, runs the job, and decides what an interruption means for it.
func (o *options) train(ctx context.Context, cmd *cobra.Command) (Result, error) {
	log := step.Log(cmd)
	clients, err := o.kube.Connect()
	if err != nil {
		return Result{}, err
	}
	secrets, err := secretdir.Read(o.secretDir)
	if err != nil {
		return Result{}, err
	}
	set, detach, err := nodes.Attach(ctx, clients, log, o.name, o.certs, o.run)
	if err != nil {
		return Result{}, err
	}
	defer detach()
	pods, err := newPods(ctx, clients.Kube, clients.Namespace, o.name, len(set))
	if err != nil {
		return Result{}, err
	}
	t := &Training{Nodes: set, ID: o.run.UID, Pods: pods, Log: log, Out: cmd.OutOrStdout(), JSON: step.IsJSON(cmd), Every: o.every}
	t.Forward = func(node, port int) string {
		return fmt.Sprintf("oc port-forward pod/%s %d -n %s", objects.NamesOf(o.name).PodName(node), port, clients.Namespace)
	}
	if t.ID == "" {
		t.ID = "by-hand-" + strings.ToLower(rand.Text()[:10])
	}
	if t.Spec, t.Network, err = o.spec(ctx, set, secrets); err != nil {
		return Result{}, err
	}
	if o.exclusive {
		if err := t.clear(ctx, o.replace); err != nil {
			return Result{}, err
		}
	}
	t.Network.Log(log)
	t.Told = o.told(ctx, clients)
	result, err := t.Run(ctx)
	if ctx.Err() != nil {
		return result, o.interrupted(ctx, clients, t, log)
	}
	if err == nil {
		log.Info(fmt.Sprintf("Training done: %s exited with 0. The record is %s on the nodes.", humanize.Count(len(set)*t.Spec.RanksOfNode(), "rank"), result.Statuses[0].Record))
	}
	return result, err
}

// told is true where the attempt before this one has given a verdict. Tekton
// retries a step for whatever reason it failed.
func (o *options) told(ctx context.Context, clients *kube.Clients) bool {
	if o.run.Name == "" {
		return false
	}
	tasks, err := run.TaskRuns(ctx, clients.Tekton, clients.Namespace, o.run.Name, types.UID(o.run.UID))
	if err != nil {
		return false // then it is told twice
	}
	for _, task := range tasks {
		if reason := fail.Reason(task.Earlier["reason"]); task.Task == o.run.Task && reason != "" && reason != fail.Cancelled {
			return true
		}
	}
	return false
}

// spec asks the nodes for what the flags leave open, and prepares their network again:
// a rail may have gone down since they were made.
func (o *options) spec(ctx context.Context, set nodes.Set, secrets map[string]string) (spec agent.JobSpec, prepared network.Network, err error) {
	spec = agent.JobSpec{
		Run: o.run.Name, Launcher: agent.Launcher(o.launcher), Script: o.script, Args: o.args, Tree: tree.Digest(o.tree),
		Nodes: len(set), RanksPerNode: o.ranksPerNode, Env: map[string]string{}, SecretEnv: secrets, Deadline: time.Now().Add(o.timeout),
	}
	if o.debugRank >= 0 {
		spec.DebugRank = &o.debugRank
	}
	if o.deepspeedConfig != "" {
		spec.Args = append([]string{"--deepspeed_config", o.deepspeedConfig}, spec.Args...)
	}
	for _, entry := range o.env {
		key, value, _ := strings.Cut(entry, "=")
		spec.Env[key] = value
	}
	ctx, cancel := context.WithTimeout(ctx, reachable)
	defer cancel()
	facts := make([]agent.Facts, len(set))
	var state agent.TreeState
	err = set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return nodes.Retry(ctx, func() (err error) {
			if facts[client.Node()], err = client.Facts(ctx); err != nil || client.Node() > 0 {
				return err
			}
			state, err = client.CurrentTree(ctx)
			return err
		})
	})
	if err != nil {
		return spec, prepared, err
	}
	told := network.SettingsOf(facts)
	if prepared, err = network.Prepare(ctx, set, told); err != nil {
		return spec, prepared, err
	}
	spec.Order = network.Order(told.Racks)
	if spec.RanksPerNode == 0 {
		spec.RanksPerNode = max(1, facts[0].GPUsExpected)
	}
	if spec.Tree == "" {
		spec.Tree = state.Hash
	}
	if spec.Tree == "" && !filepath.IsAbs(spec.Script) && spec.Launcher != agent.Command {
		return spec, prepared, fail.Advise(fail.Becausef(fail.ScriptNotFound, "launching %s: no repository was synced to the environment %s", spec.Script, o.name),
			"run the task sync-repo first, or give an absolute path of a script on the nodes")
	}
	return spec, prepared, nil
}

// interrupted decides what becomes of the training when the step is told to end:
// with its run cancelled or timed out it is stopped, and so it is for a person who
// presses Ctrl-C; an evicted step leaves it running, for the next attempt.
func (o *options) interrupted(ctx context.Context, clients *kube.Clients, t *Training, log *slog.Logger) error {
	// A pod has 30 s between SIGTERM and SIGKILL.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	why := run.Ending{Cause: run.Cancelled, Message: "it was interrupted"}
	if o.run.Name != "" {
		var err error
		why, err = run.EndingOf(ending, clients.Tekton, clients.Namespace, o.run.Name, types.UID(o.run.UID), o.run.Task, time.Now())
		if err != nil {
			log.Warn(fmt.Sprintf("It is not known why this step was told to end, so the training goes on: %v", err))
			return fail.Becausef(fail.Cancelled, "training: the step was told to end; job %s goes on", t.ID)
		}
	}
	if !why.Cause.Final() {
		return fail.Becausef(fail.Cancelled, "training: %s; job %s goes on and the next attempt finds it", why.Message, t.ID)
	}
	log.Info("Stopping the training: " + why.Message + ".")
	t.Stop(ending, why.Message)
	if why.Cause == run.TimedOut {
		return fail.Becausef(fail.TrainingTimeout, "training: %s", why.Message)
	}
	return fail.Becausef(fail.Cancelled, "training: %s", why.Message)
}
