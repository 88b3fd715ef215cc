package train

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

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
)

// Options say what to train, and where.
type Options struct {
	// Run is the PipelineRun that the step is part of; without it a person trains.
	Run run.Flags
	// Name is the environment.
	Name string
	// ClientCerts is the folder of the environment's mounted client Secret; without it the Secret is read.
	ClientCerts string
	// Script is a path in the repository, or an absolute one on the nodes.
	Script string
	// Args are the script's own arguments, Env variables KEY=VALUE for the ranks.
	Args, Env []string
	// SecretEnv are variables for the ranks that no log shows.
	SecretEnv map[string]string
	// DeepSpeedConfig is the path of a configuration in the repository, "" for none.
	DeepSpeedConfig string
	Launcher        agent.Launcher
	// RanksPerNode is 0 for one for each GPU of a node.
	RanksPerNode int
	// Timeout is the time for the training, which the nodes obey by themselves.
	Timeout time.Duration
	// Tree to run in, "" for the one that was synced last.
	Tree tree.Digest
	// ProgressEvery is the time between two lines of progress.
	ProgressEvery time.Duration
	// DebugRank waits for a debugger; -1 for none.
	DebugRank int
	// Exclusive refuses to train next to another training of the same nodes. With Replace
	// that one is stopped if a person has started it.
	Exclusive, Replace bool
}

// Deps are what Run works with.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
	// Out gets the ranks' output; without it each line is a record of Log.
	Out io.Writer
}

// attempt is one run of the step.
type attempt struct {
	Deps
	Options
}

// Run launches the job on all nodes, or attaches to it, follows it to its end, and
// decides what an interruption means for it.
func Run(ctx context.Context, d Deps, o Options) (Result, error) {
	clients, log := d.Clients, d.Log
	set, detach, err := nodes.Attach(ctx, clients, log, o.Name, o.ClientCerts, o.Run)
	if err != nil {
		return Result{}, err
	}
	defer detach()
	pods, err := newPods(ctx, clients.Kube, clients.Namespace, o.Name, len(set))
	if err != nil {
		return Result{}, err
	}
	t := &Training{Nodes: set, ID: o.Run.UID, Pods: pods, Log: log, Out: d.Out, Every: o.ProgressEvery}
	t.Forward = func(node, port int) string {
		return fmt.Sprintf("oc port-forward pod/%s %d -n %s", objects.NamesOf(o.Name).PodName(node), port, clients.Namespace)
	}
	if t.ID == "" {
		t.ID = "by-hand-" + strings.ToLower(rand.Text()[:10])
	}
	a := attempt{d, o}
	if t.Spec, t.Network, err = a.spec(ctx, set); err != nil {
		return Result{}, err
	}
	if o.Exclusive {
		if err := t.clear(ctx, o.Replace); err != nil {
			return Result{}, err
		}
	}
	t.Network.Log(log)
	t.Told = a.told(ctx)
	result, err := t.Run(ctx)
	if ctx.Err() != nil {
		return result, a.interrupted(ctx, t)
	}
	if err == nil {
		log.Info(fmt.Sprintf("Training done: %s exited with 0. The record is %s on the nodes.", humanize.Count(len(set)*t.Spec.RanksOfNode(), "rank"), result.Statuses[0].Record), "ranks", len(set)*t.Spec.RanksOfNode(), "record", result.Statuses[0].Record)
	}
	return result, err
}

// told is true where the attempt before this one has given a verdict. Tekton
// retries a step for whatever reason it failed.
func (a *attempt) told(ctx context.Context) bool {
	if a.Run.Name == "" {
		return false
	}
	tasks, err := run.TaskRuns(ctx, a.Clients.Tekton, a.Clients.Namespace, a.Run.Name, types.UID(a.Run.UID))
	if err != nil {
		return false // then it is told twice
	}
	for _, task := range tasks {
		if reason := fail.Reason(task.Earlier["reason"]); task.Task == a.Run.Task && reason != "" && reason != fail.Cancelled {
			return true
		}
	}
	return false
}

// spec asks the nodes for what the flags leave open, and prepares their network again:
// a rail may have gone down since they were made.
func (a *attempt) spec(ctx context.Context, set nodes.Set) (spec agent.JobSpec, prepared network.Network, err error) {
	spec = agent.JobSpec{
		Run: a.Run.Name, Launcher: a.Launcher, Script: a.Script, Args: a.Args, Tree: a.Tree,
		Nodes: len(set), RanksPerNode: a.RanksPerNode, Env: map[string]string{}, SecretEnv: a.SecretEnv, Deadline: time.Now().Add(a.Timeout),
	}
	if a.DebugRank >= 0 {
		spec.DebugRank = &a.DebugRank
	}
	if a.DeepSpeedConfig != "" {
		spec.Args = append([]string{"--deepspeed_config", a.DeepSpeedConfig}, spec.Args...)
	}
	for _, entry := range a.Env {
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
		return spec, prepared, fail.Advise(fail.Becausef(fail.ScriptNotFound, "launching %s: no repository was synced to the environment %s", spec.Script, a.Name),
			"run the task sync-repo first, or give an absolute path of a script on the nodes")
	}
	return spec, prepared, nil
}

// interrupted decides what becomes of the training when the step is told to end:
// with its run cancelled or timed out it is stopped, and so it is for a person who
// presses Ctrl-C; an evicted step leaves it running, for the next attempt.
func (a *attempt) interrupted(ctx context.Context, t *Training) error {
	// A pod has 30 s between SIGTERM and SIGKILL.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	why := run.Ending{Cause: run.Cancelled, Message: "it was interrupted"}
	if a.Run.Name != "" {
		var err error
		why, err = run.EndingOf(ending, a.Clients.Tekton, a.Clients.Namespace, a.Run.Name, types.UID(a.Run.UID), a.Run.Task, time.Now())
		if err != nil {
			a.Log.Warn(fmt.Sprintf("It is not known why this step was told to end, so the training goes on: %v", err), "error", err)
			return fail.Becausef(fail.Cancelled, "training: the step was told to end; job %s goes on", t.ID)
		}
	}
	if !why.Cause.Final() {
		return fail.Becausef(fail.Cancelled, "training: %s; job %s goes on and the next attempt finds it", why.Message, t.ID)
	}
	a.Log.Info("Stopping the training: " + why.Message + ".")
	t.Stop(ending, why.Message)
	if why.Cause == run.TimedOut {
		return fail.Becausef(fail.TrainingTimeout, "training: %s", why.Message)
	}
	return fail.Becausef(fail.Cancelled, "training: %s", why.Message)
}
