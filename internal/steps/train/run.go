package train

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/step/notify"
)

// Options are the training, and where it runs.
type Options struct {
	// Run is the PipelineRun that the step is part of; without it a person trains.
	Run run.Flags
	// Name is the environment.
	Name string
	// ClientCerts is the folder of the environment's mounted client Secret; without it the Secret is read.
	ClientCerts string
	// Script is a path in the repository, or an absolute one on the nodes.
	Script string
	// Args are the script's arguments, Env variables KEY=VALUE of the ranks.
	Args, Env []string
	// SecretEnv are variables of the ranks that no log shows.
	SecretEnv map[string]string
	// DeepSpeedConfig is the path of a configuration in the repository, "" for none.
	DeepSpeedConfig string
	Launcher        agent.Launcher
	// RanksPerNode is 0 for one per GPU.
	RanksPerNode int
	// Timeout is how long the training may run. The nodes enforce it.
	Timeout time.Duration
	// MaxRestarts is how often the training is started again after a failure that another attempt may not have.
	MaxRestarts int
	// Tree to run in, "" for the one that was synced last.
	Tree tree.Digest
	// ProgressEvery is the time between two lines of progress.
	ProgressEvery time.Duration
	// HangTimeout is the longest silence of a training that runs on.
	HangTimeout HangTimeout
	// DebugRank waits for a debugger; -1 for none.
	DebugRank int
	// Exclusive refuses to train next to another training on the same nodes. With Replace a training that a person
	// started is stopped instead.
	Exclusive, Replace bool
}

// Deps are what Run works with.
type Deps struct {
	Clients *kube.Clients
	Log     *slog.Logger
	// Out gets the ranks' output; without it each line is a record of Log.
	Out io.Writer
	// Notify gets the training's events, nil for none.
	Notify *notify.Sender
}

// maxMessage bounds the message of a failure: ranks can print anything.
const maxMessage = 4000

type attempt struct {
	Deps
	Options
	// measured are the pods whose network was measured, by node.
	measured map[int]types.UID
}

// Run starts the job on all nodes, or attaches to it, follows it until it ends, and decides what an interruption
// means for it. A failure that an earlier attempt of the step has reported is final, and is returned again.
func Run(ctx context.Context, d Deps, o Options) (Result, error) {
	a := attempt{Deps: d, Options: o}
	if result, err := a.earlier(ctx); err != nil {
		return result, err
	}
	defer d.Notify.Wait()
	began := time.Now()
	result, err := a.run(ctx)
	if ctx.Err() == nil {
		a.conclude(ctx, began, result, err)
	}
	return result, err
}

func (a *attempt) run(ctx context.Context) (Result, error) {
	clients, log, o, d := a.Clients, a.Log, a.Options, a.Deps
	set, detach, err := nodes.Attach(ctx, clients, log, o.Name, o.ClientCerts, o.Run)
	if err != nil {
		return Result{}, err
	}
	defer detach()
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	go a.watchLease(ctx, lose)
	t := &Training{Nodes: set, Environment: o.Name, Namespace: clients.Namespace, ID: o.Run.UID, Log: log, Out: d.Out, Every: o.ProgressEvery, HangTimeout: o.HangTimeout, Restarts: o.MaxRestarts}
	t.Regroup = func(ctx context.Context, failed *agent.Attempt) error { return a.regroup(ctx, t, failed) }
	t.Forward = func(node, port int) string {
		return fmt.Sprintf("oc port-forward pod/%s %d -n %s", objects.NamesOf(o.Name).PodName(node), port, clients.Namespace)
	}
	t.Notify = d.Notify.Send
	if t.ID == "" {
		t.ID = "by-hand-" + strings.ToLower(rand.Text()[:10])
	}
	if o.MaxRestarts > 0 {
		// An earlier attempt of this step may have ended while a node was away.
		starting, cancel := context.WithTimeout(ctx, regroupTime)
		_, err := a.whole(starting, set)
		cancel()
		if ctx.Err() != nil {
			return Result{}, a.interrupted(ctx, t)
		} else if err != nil {
			return Result{}, err
		}
	}
	pods, err := newPods(ctx, clients.Kube, clients.Namespace, o.Name, len(set))
	if err == nil {
		t.Pods, a.measured = pods, pods.uids
		t.Spec, t.Network, err = a.spec(ctx, set)
	}
	if err == nil && o.Exclusive {
		err = t.clear(ctx, o.Replace)
	}
	if ctx.Err() != nil {
		return Result{}, a.interrupted(ctx, t)
	} else if err != nil {
		return Result{}, err
	}
	t.Network.Log(log)
	result, err := t.RunAttempts(ctx)
	if ctx.Err() != nil {
		return result, a.interrupted(ctx, t)
	}
	if err == nil {
		log.Info(fmt.Sprintf("Training done: %s exited with 0. The record is %s on the nodes.", humanize.Count(len(set)*t.Spec.RanksOfNode(), "rank"), result.Statuses[0].Record), "ranks", len(set)*t.Spec.RanksOfNode(), "record", result.Statuses[0].Record)
	}
	return result, err
}

// conclude writes a final failure into the Lease, which outlives this pod and its results. It comes after the last renewal.
func (a *attempt) conclude(ctx context.Context, began time.Time, result Result, failure error) {
	if a.Run.UID == "" || !run.Final(fail.ReasonOf(failure)) || fail.ReasonOf(failure) == fail.EnvironmentMissing {
		return
	}
	v := lease.Failure{Task: a.Run.Task, Reason: fail.ReasonOf(failure), Message: humanize.Lines(failure.Error(), maxMessage), Metrics: result.Metrics, Started: began, Ended: time.Now()}
	if failed := (cause.Error{}); errors.As(failure, &failed) {
		v.Cause = failed.Culprit()
	}
	ctx, cancel := context.WithTimeout(ctx, reachable)
	defer cancel()
	if err := a.leases().Conclude(ctx, a.Name, a.Run.UID, v); err != nil {
		a.Log.Warn(fmt.Sprintf("The failure is not in the lease of environment %s: %v", a.Name, err), "environment", a.Name, "error", err)
	}
}

// watchLease calls lose if the run's environment was deleted or has another holder.
func (a *attempt) watchLease(ctx context.Context, lose context.CancelCauseFunc) {
	if a.Run.UID == "" {
		return
	}
	held, err := a.leases().StillHeld(ctx, a.Name, a.Run.UID)
	if err == nil {
		err = held.Lost(ctx)
	}
	if fail.ReasonOf(err) == fail.EnvironmentMissing {
		lose(err)
	}
}

func (a *attempt) leases() lease.Client {
	return lease.Client{Kube: a.Clients.Kube, Tekton: a.Clients.Tekton, Namespace: a.Clients.Namespace, Now: time.Now, Log: a.Log}
}

// earlier returns the final failure that an attempt before this one reported, nil if there is none or if its job may still
// succeed. Tekton retries a step whatever its failure was: a line refers to the first attempt, which has printed the error.
func (a *attempt) earlier(ctx context.Context) (Result, error) {
	if a.Run.Name == "" {
		return Result{}, nil
	}
	v := a.first(ctx)
	if v == nil {
		return Result{}, nil
	}
	const words = 200
	a.Log.Info(fmt.Sprintf("Nothing runs in this retry by Tekton: the failure of the first attempt is final, %s: %s", v.Reason, humanize.OneLine(v.Message, words)), "reason", v.Reason)
	return Result{Metrics: v.Metrics}, &step.Exit{Code: step.Failed, Err: fail.Becausef(v.Reason, "%s", v.Message), Told: true}
}

// first looks for the failure in the TaskRun, which loses it with the step's pod, in the Lease, and in the receipt of a run
// whose environment the reaper has released. If all are unreadable, the step finds the job again, with the same end.
func (a *attempt) first(ctx context.Context) *lease.Failure {
	tasks, _ := run.TaskRuns(ctx, a.Clients.Tekton, a.Clients.Namespace, a.Run.Name, types.UID(a.Run.UID))
	for _, task := range tasks {
		if task.Task == a.Run.Task && task.Final() {
			return &lease.Failure{Reason: fail.Reason(task.Earlier["reason"]), Message: task.Earlier["message"], Metrics: task.Earlier["metrics"]}
		}
	}
	found, err := a.leases().Find(ctx, a.Name)
	if err == nil && lease.HolderOf(found).ID == a.Run.UID {
		if v := lease.FailureOf(found); v != nil && v.Task == a.Run.Task {
			return v
		}
		return nil
	}
	left, err := receipt.Read(ctx, a.Clients.Kube, a.Clients.Namespace, a.Run.Name)
	if err != nil || left.RunUID != a.Run.UID || !run.Final(fail.Reason(left.Reason)) {
		return nil
	}
	metrics, _ := json.Marshal(left.Metrics) // a receipt is indented, a result is short
	if left.Metrics == nil {
		metrics = nil
	}
	return &lease.Failure{Reason: fail.Reason(left.Reason), Message: left.Message, Metrics: string(metrics)}
}

// spec asks the nodes for what the flags leave open, and prepares their network again: a rail may have gone down since
// provision did.
func (a *attempt) spec(ctx context.Context, set nodes.Set) (spec agent.JobSpec, prepared network.Network, err error) {
	spec = agent.JobSpec{
		Run: a.Run.Name, Launcher: a.Launcher, Script: a.Script, Args: a.Args, Tree: a.Tree,
		Nodes: len(set), RanksPerNode: a.RanksPerNode, Env: map[string]string{}, SecretEnv: a.SecretEnv, Deadline: time.Now().Add(a.Timeout),
	}
	if a.DebugRank >= 0 {
		spec.DebugRank = &a.DebugRank
	}
	if a.DeepSpeedConfig != "" {
		spec.Args = withDeepSpeed(a.DeepSpeedConfig, spec.Args)
	}
	for key := range a.SecretEnv {
		if _, _, err := agent.ParseVariable(key + "="); err != nil {
			return spec, prepared, fail.Because(fail.InvalidInput, fmt.Errorf("reading the Secret of the ranks' variables: %w", err))
		}
	}
	for _, entry := range a.Env {
		key, value, err := agent.ParseVariable(entry)
		if err != nil {
			return spec, prepared, fail.Because(fail.InvalidInput, err)
		}
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
	if err := a.settingsLost(ctx, facts); err != nil {
		return spec, prepared, err
	}
	settings := network.SettingsOf(facts)
	if prepared, err = network.Prepare(ctx, set, settings); err != nil {
		return spec, prepared, err
	}
	spec.Order = network.Order(settings.Racks)
	if spec.RanksPerNode == 0 {
		spec.RanksPerNode = max(1, facts[0].GPUsExpected)
	}
	if spec.Tree == "" {
		spec.Tree = state.Hash
	}
	if spec.Tree == "" && !filepath.IsAbs(spec.Script) && spec.Launcher != agent.Command {
		return spec, prepared, fail.Advise(fail.Becausef(fail.ScriptNotFound, "launching %s: no repository was synced to the environment %s", spec.Script, a.Name),
			"run the task sync-repo first, or give the absolute path of a script on the nodes")
	}
	return spec, prepared, nil
}

// withDeepSpeed puts a configuration before a script's arguments, as deepspeed.add_config_arguments declares it: scripts that use
// that function read the configuration only if --deepspeed is set.
func withDeepSpeed(config string, args []string) []string {
	given := []string{"--deepspeed", "--deepspeed_config", config}
	if slices.ContainsFunc(args, func(arg string) bool { return arg == given[0] || strings.HasPrefix(arg, given[0]+"=") }) {
		given = given[1:]
	}
	return append(given, args...)
}

// settingsLost is the error if all pods of an environment for RDMA are new: none has the network settings that provision
// made, and without any the ranks would talk over TCP.
func (a *attempt) settingsLost(ctx context.Context, facts []agent.Facts) error {
	if slices.ContainsFunc(facts, func(f agent.Facts) bool { return f.Network != nil }) {
		return nil
	}
	name := objects.NamesOf(a.Name).StatefulSet
	set, err := a.Clients.Kube.AppsV1().StatefulSets(a.Clients.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && set.Annotations[objects.ModeAnnotation] != string(objects.RDMA) {
		return nil
	} else if err != nil {
		return err
	}
	return fail.Advise(fail.Becausef(fail.NodeLost, "training: all pods of environment %s were replaced: none has the RDMA settings of provision", a.Name),
		"start the run again; an environment that is kept gets its settings back from mlenv up")
}

// interrupted decides what SIGTERM or Ctrl-C means for the training. It is stopped if its run was cancelled, timed out
// or deleted, if a person interrupts it, and if its environment is lost. If the step's pod is evicted the training continues
// for the next attempt.
func (a *attempt) interrupted(ctx context.Context, t *Training) error {
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if lost := context.Cause(ctx); fail.ReasonOf(lost) == fail.EnvironmentMissing {
		t.Stop(ending, "the environment is not this run's any more")
		return fail.Advise(lost, "start the run again; mlenv down, the reaper and oc delete release environments")
	}
	why := run.Ending{Cause: run.Cancelled, Message: "it was interrupted"}
	if a.Run.Name != "" {
		var err error
		why, err = run.EndingOf(ending, a.Clients.Tekton, a.Clients.Namespace, a.Run.Name, types.UID(a.Run.UID), a.Run.Task, time.Now())
		if err != nil {
			a.Log.Warn(fmt.Sprintf("The reason why this step was stopped is unknown, so the training continues: %v", err), "error", err)
			return fail.Becausef(fail.Cancelled, "training: the step was stopped; job %s continues", t.ID)
		}
	}
	if !why.Cause.Final() {
		return fail.Becausef(fail.Cancelled, "training: %s; job %s continues and the next attempt finds it", why.Message, t.ID)
	}
	a.Log.Info(fmt.Sprintf("Stopping the training: %s. Waiting at most %s until its ranks have ended.", why.Message, endTime),
		"job", t.ID, "why", why.Message, "seconds", endTime.Seconds())
	t.Stop(ending, why.Message) // each node, whatever the others answer
	if err := t.end(ending, why.Message); err != nil {
		a.Log.Warn(fmt.Sprintf("Ranks may still run; the nodes kill them %s after the order to stop: %v", grace, err), "error", err)
	}
	if why.Cause == run.TimedOut {
		return fail.Becausef(fail.TrainingTimeout, "training: %s", why.Message)
	}
	return fail.Becausef(fail.Cancelled, "training: %s", why.Message)
}
