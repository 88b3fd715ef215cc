// Package train starts a training on the nodes of an environment, follows it, and reports which rank failed and why.
package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/step/notify"
)

// Bounds of the end of a job.
const (
	// settle is how long the ranks have to show their own errors after a rank lost its peers.
	settle = 3 * time.Second
	// grace is between SIGTERM and SIGKILL after another rank failed. With settle it keeps the promise that the
	// rest is stopped within 10 s.
	grace = 5 * time.Second
	// wrongClock is the difference between two clocks that users should know.
	wrongClock = 2 * time.Second
	// reachable is how long an agent may not answer before its node counts as lost.
	reachable = 2 * time.Minute
	// askTime bounds a question whose answer may not come because something else is away too.
	askTime = 10 * time.Second
	// drain is how long logs may take to arrive after their ranks have ended.
	drain = 30 * time.Second
	// launcherEnd is how long launchers may run after their ranks have exited with 0. Until they end the nodes
	// refuse the next training.
	launcherEnd = 20 * time.Second
	// endTime bounds the end of an interrupted training: a pod has 30 s between SIGTERM and SIGKILL.
	endTime = 15 * time.Second
)

// Training is one job on all nodes of an environment.
type Training struct {
	Deps
	Options
	Nodes nodes.Set
	// ID of the job: the PipelineRun's UID, so that a retried step finds it again.
	ID      string
	Spec    agent.JobSpec
	Network network.Network

	// uids and hosts are the UIDs and Kubernetes nodes of the pods at the start of an attempt, by node; measured are the UIDs of
	// those whose network was measured.
	uids, measured map[int]types.UID
	hosts          map[int]string
	// kept is what the run remembers of this step; nil for a person's training.
	kept *receipt.Keeper
	// newest is the newest complete checkpoint, lastProgress what was noted last.
	newest       atomic.Pointer[string]
	lastProgress atomic.Pointer[receipt.Progress]
	// regroup leaves out nodes at fault of a failed attempt, and waits for all others: gather, except in tests.
	regroup func(context.Context, *agent.Attempt) error
}

// Result of a training that succeeded.
type Result struct {
	// Metrics are the last values of all metrics as one JSON object, "" for none.
	Metrics string
	// First and Last are the first and the last step in the metrics, nil for none.
	First, Last *float64
	// Statuses of all nodes at the end.
	Statuses []agent.JobStatus
}

// update is a node's new status, or the error for a node that is lost.
type update struct {
	node   int
	status agent.JobStatus
	err    error
	// why is the reason for stopping the others after err, "" for a lost node.
	why string
}

// Attempt starts the job, or attaches to it, and returns when its end is known. When ctx is done it leaves the job
// as it is.
func (t *Training) Attempt(ctx context.Context) (Result, error) {
	t.noteRecord(ctx)
	began := time.Now()
	attached, err := t.start(ctx)
	if err != nil {
		return Result{}, err
	}
	if attached {
		t.Log.Info(fmt.Sprintf("Attached to job %s, which was started before.", t.ID), "job", t.ID)
		began = time.Time{}
	} else {
		ranks := t.Spec.RanksOfNode()
		t.Log.Info(fmt.Sprintf("Launched %s with %s: %s, %s on each; job %s.", t.Spec.Script, t.Spec.Launcher, humanize.Count(len(t.Nodes), "node"), humanize.Count(ranks, "rank"), t.ID), "script", t.Spec.Script, "launcher", t.Spec.Launcher, "nodes", len(t.Nodes), "ranksPerNode", ranks, "job", t.ID)
		if t.Spec.Attempt() == 1 {
			t.Notify(notify.Event{Kind: notify.Start, Attempt: 1, Nodes: len(t.Nodes)})
		}
	}
	following, stopFollowing := context.WithCancel(ctx)
	defer stopFollowing()
	updates := make(chan update)
	for _, client := range t.Nodes {
		go t.watch(following, client, updates)
	}
	shown := &progress{}
	var logs sync.WaitGroup
	t.followRanks(following, &logs)
	t.followMetrics(following, &logs, shown, began)
	go t.noteProgress(following, shown)
	go t.watchSilence(following, shown, updates)

	statuses, err := t.wait(ctx, updates, began)
	// The end is known; the rest of the ranks' output must still arrive.
	if ctx.Err() == nil {
		t.drain(&logs)
	}
	t.logProgress(shown, "")
	const metricsResult = 600
	result := Result{Metrics: shown.final(metricsResult), Statuses: statuses}
	result.First, result.Last = shown.steps()
	return result, err
}

// start starts every node's part, and reports whether the job existed before. If a node refuses, none is left running.
func (t *Training) start(ctx context.Context) (attached bool, err error) {
	var mu sync.Mutex
	err = t.Nodes.Each(ctx, func(trying context.Context, client *agent.Client) error {
		var status agent.JobStatus
		err := nodes.Retry(trying, func() (err error) {
			// ctx and not trying, which ends when another node refuses: a request that is given up may start the
			// job after the stop below found none.
			status, err = client.StartJob(ctx, t.ID, t.Spec)
			return err
		})
		if behind := client.Behind(); behind.Abs() > wrongClock {
			t.Log.Warn(fmt.Sprintf("The clock of node %d is %s behind that of this step. The times of its ranks are corrected by that.", client.Node(), behind.Round(time.Second)),
				"node", client.Node(), "seconds", behind.Seconds())
		}
		mu.Lock()
		defer mu.Unlock()
		attached = attached || err == nil && !status.New
		return err
	})
	if ctx.Err() != nil { // whether the job is stopped is decided by why this step ends
		return false, ctx.Err()
	}
	if err != nil {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		t.stop(stopping, "", "another node could not start")
		return false, first(err)
	}
	return attached, nil
}

// first is one of several nodes' errors, which are mostly the same.
func first(err error) error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()[0]
	}
	return err
}

// stop stops every node's part; it does not wait.
func (t *Training) stop(ctx context.Context, cause agent.StopCause, reason string) {
	_ = t.Nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		err := client.StopJob(ctx, t.ID, agent.Stop{Cause: cause, Reason: reason, Grace: grace})
		if agent.IgnoreNotFound(err) != nil && ctx.Err() == nil {
			t.Log.Warn(fmt.Sprintf("Node %d did not accept the order to stop: %v", client.Node(), err), "node", client.Node(), "error", err)
		}
		return nil // the others are stopped all the same
	})
}

// watch sends the node's status after every change, through broken connections.
func (t *Training) watch(ctx context.Context, client *agent.Client, updates chan<- update) {
	send := func(u update) error {
		select {
		case updates <- u:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var silentSince time.Time
	again := nodes.RetryUntilDone(ctx)
	for ctx.Err() == nil {
		over := false
		err := client.WatchJob(ctx, t.ID, func(status agent.JobStatus) error {
			silentSince = time.Time{}
			over = status.State != agent.Running
			return send(update{node: client.Node(), status: status})
		})
		switch {
		case ctx.Err() != nil || over:
			return
		case agent.IsNotFound(err):
			_ = send(update{node: client.Node(), err: t.gone(client.Node(), "its agent does not know the job any more: the pod and its storage are new")})
			return
		case err == nil:
			// The agent knows a job that runs no more and has not recorded its end.
			err = errors.New("the job's end is not recorded")
		}
		if silentSince.IsZero() {
			silentSince = time.Now()
			t.Log.Warn(fmt.Sprintf("Node %d does not answer; the training may continue. Trying again. (%v)", client.Node(), err), "node", client.Node(), "error", err)
		}
		if err := t.lost(ctx, client, silentSince); err != nil {
			_ = send(update{node: client.Node(), err: err})
			return
		}
		_ = again(err)
	}
}

// lost is the error for a silent node that cannot come back.
func (t *Training) lost(ctx context.Context, client *agent.Client, silentSince time.Time) error {
	asking, cancel := context.WithTimeout(ctx, askTime) // the API server may be away too
	err := t.podLost(asking, client.Node())
	cancel()
	if err != nil {
		return err
	}
	if time.Since(silentSince) > reachable {
		return t.gone(client.Node(), "its agent has not answered for %s", reachable)
	}
	return nil
}

// mostLogs is how many ranks may show their output. Nobody reads more, and Kubernetes keeps only the end of a large log.
const mostLogs = 64

// shownRanks are the ranks of a node whose output is shown: all, or rank 0 alone if there are more than mostLogs.
func (t *Training) shownRanks(node int) []int {
	ranks := t.Spec.Ranks(node)
	if len(t.Nodes)*t.Spec.RanksOfNode() > mostLogs {
		return slices.DeleteFunc(ranks, func(rank int) bool { return rank != 0 })
	}
	return ranks
}

// followRanks shows the output of ranks. It reconnects until watch decides that the node is lost, which ends ctx.
func (t *Training) followRanks(ctx context.Context, group *sync.WaitGroup) {
	out := &output{out: t.Out}
	if t.Out == nil {
		out.log = t.Log
	}
	if count := len(t.Nodes) * t.Spec.RanksOfNode(); count > mostLogs {
		t.Log.Info(fmt.Sprintf("This log shows the output of rank 0 alone, because there are %s, and the last lines of a rank that fails. The whole log of any rank: mlenv logs %s --rank N", humanize.Count(count, "rank"), cmp.Or(t.Spec.Run, "RUN")), "ranks", count)
	}
	for _, client := range t.Nodes {
		for _, rank := range t.shownRanks(client.Node()) {
			group.Go(func() {
				lines := out.writer(client.Node(), rankName(t.Spec.Launcher, rank))
				_ = nodes.FollowLog(ctx, client, t.ID, agent.RankLog+strconv.Itoa(rank), lines, nodes.RetryUntilDone(ctx))
				_ = lines.Close()
			})
		}
	}
}

// followMetrics reads the metrics that rank 0 writes on node 0, and shows progress. began is zero if an earlier step
// launched the job.
func (t *Training) followMetrics(ctx context.Context, group *sync.WaitGroup, shown *progress, began time.Time) {
	lines := metrics.Lines(func(value map[string]any) {
		if shown.add(value, time.Now()) && !began.IsZero() {
			t.Log.Info(fmt.Sprintf("Step %v, the first that is reported, was done %.1f s after the launch.", value["step"], time.Since(began).Seconds()), "step", value["step"], "seconds", time.Since(began).Seconds())
		}
		if notice := shown.notice(); notice != "" {
			t.Log.Warn(notice)
		}
	})
	group.Go(func() { _ = nodes.FollowLog(ctx, t.Nodes[0], t.ID, agent.MetricsLog, lines, nodes.RetryUntilDone(ctx)) })
	go t.showProgress(ctx, shown)
}

func (t *Training) showProgress(ctx context.Context, shown *progress) {
	_ = wait.PollUntilContextCancel(ctx, t.ProgressEvery, false, func(ctx context.Context) (bool, error) {
		t.logProgress(shown, t.gpuUse(ctx))
		return false, nil
	})
}

func (t *Training) logProgress(shown *progress, gpu string) {
	if line, step := shown.line(gpu); line != "" {
		t.Log.Info(line, "step", step)
	}
}

// gpuUse is the mean utilization of all nodes' GPUs, "" without GPUs.
func (t *Training) gpuUse(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	sum, count := 0, 0
	for _, facts := range parallel.Map(t.Nodes, func(client *agent.Client) agent.Facts { facts, _ := client.Facts(ctx); return facts }) {
		for _, gpu := range facts.GPUs {
			sum, count = sum+gpu.Utilization, count+1
		}
	}
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("GPUs %d%% busy", sum/count)
}

// wait returns when all ranks have exited with 0 and their launchers have ended, or when a rank failed and the rest
// is stopped. began is as in followMetrics.
func (t *Training) wait(ctx context.Context, updates <-chan update, began time.Time) ([]agent.JobStatus, error) {
	statuses := make([]agent.JobStatus, len(t.Nodes))
	var failure error
	var stopAt, giveUp, launchersOver <-chan time.Time
	started, waiting := began.IsZero(), false
	monitor := ncclMonitor{
		log: t.Log, wanted: agent.WantedTransport(t.Network.Mode, len(t.Nodes)), environments: t.Network.Environments, ranks: len(t.Nodes) * t.Spec.RanksOfNode(),
	}
	var cause agent.StopCause
	stop := func(why string) {
		stopAt = nil
		if giveUp == nil {
			giveUp = time.After(grace + settle)
			// A lost node must not delay the end of the others.
			stopping, cancel := context.WithTimeout(ctx, grace)
			defer cancel()
			t.stop(stopping, cause, why)
		}
	}
	// transport is the error for ranks on a wrong transport.
	transport := func() error {
		err := monitor.look(statuses)
		if err != nil {
			stop("ranks talk over sockets")
		}
		return err
	}
	for {
		select {
		case <-monitor.settled:
			_ = transport()
		case u := <-updates:
			if u.err != nil {
				if launchersOver != nil {
					return statuses, transport()
				}
				if u.why == "" {
					u.err = onNode{u.node, u.err}
				} else {
					cause = agent.StopHang
				}
				failure = errors.Join(failure, u.err)
				stop(cmp.Or(u.why, "another node is gone"))
				break
			}
			monitor.note(statuses[u.node].NCCL, u.status.NCCL)
			statuses[u.node] = u.status
			if !started && slices.ContainsFunc(u.status.Ranks, func(r agent.RankStatus) bool { return !r.Started.IsZero() }) {
				started = true
				t.Log.Info(fmt.Sprintf("The first rank started %.1f s after the launch.", time.Since(began).Seconds()), "seconds", time.Since(began).Seconds())
			}
			waiting = waiting || t.showDebugger(u.status)
			switch {
			case t.succeeded(statuses):
				if launchersOver == nil {
					launchersOver = time.After(launcherEnd)
				}
			case u.status.State == agent.Restarted:
				failure = errors.Join(failure, onNode{u.node, t.restarted(ctx, u.node)})
				stop("a container was restarted")
			default:
				if why, certain := t.failing(u.status); why != "" && giveUp == nil {
					if certain {
						stop(why)
					} else if stopAt == nil {
						stopAt = time.After(settle)
					}
				}
			}
		case <-stopAt:
			stop("a rank lost its peers")
		case <-launchersOver:
			stop("its ranks have ended")
		case <-giveUp:
			return statuses, t.endError(ctx, statuses, errors.Join(failure, transport()))
		case <-ctx.Done():
			return statuses, ctx.Err()
		}
		if t.over(statuses, failure) {
			return statuses, t.endError(ctx, statuses, errors.Join(failure, transport()))
		}
	}
}

// showDebugger prints how to reach a rank that waits for a debugger, and reports whether there is one.
func (t *Training) showDebugger(status agent.JobStatus) bool {
	i := slices.IndexFunc(status.Ranks, func(r agent.RankStatus) bool { return r.DebugPort != 0 && r.Ended.IsZero() })
	if i < 0 {
		return false
	}
	rank := status.Ranks[i]
	t.Log.Info(fmt.Sprintf("Rank %d waits on node %d for a debugger, at most until the training's time is over at %s. Its port is reached by: %s",
		rank.Rank, status.Node, t.Spec.Deadline.UTC().Format("2006-01-02 15:04 MST"), t.forward(status.Node, rank.DebugPort)), "rank", rank.Rank, "node", status.Node, "deadline", t.Spec.Deadline.UTC(), "port", rank.DebugPort)
	return true
}

// forward is the command that makes a port of a node reachable for a person.
func (t *Training) forward(node, port int) string {
	return fmt.Sprintf("oc port-forward pod/%s %d -n %s", t.podName(node), port, t.Clients.Namespace)
}

func (t *Training) succeeded(statuses []agent.JobStatus) bool {
	failed := func(r agent.RankStatus) bool { return r.Ended.IsZero() || r.Exit != (agent.Exit{}) }
	// A rank may save and exit with 0 when its node's container receives SIGTERM; its work is not done.
	// A rank that ends at once may do so before its shim has noted the signal, which RankStatus.Stopped means.
	return !slices.ContainsFunc(statuses, func(s agent.JobStatus) bool {
		stopped := func(r agent.RankStatus) bool { return r.Stopped || !s.Stopping.IsZero() && r.Ended.After(s.Stopping) }
		return len(s.Ranks) != t.Spec.RanksOfNode() || slices.ContainsFunc(s.Ranks, failed) || s.StopCause == agent.StopContainer && slices.ContainsFunc(s.Ranks, stopped)
	})
}

// over reports whether no node can report anything new.
func (t *Training) over(statuses []agent.JobStatus, failure error) bool {
	waiting := 0
	for _, status := range statuses {
		if status.State == agent.Running || status.State == "" {
			waiting++
		}
	}
	// A lost node will not report.
	return waiting == 0 || (failure != nil && waiting == 1 && fail.ReasonOf(failure) == fail.NodeLost)
}

// failing is why a node's part cannot succeed any more, and whether that is certain: a rank with an error of its own,
// not one that lost its peers.
func (t *Training) failing(status agent.JobStatus) (why string, certain bool) {
	found, failed := cause.Find([]agent.JobStatus{status})
	switch {
	case failed:
		return fmt.Sprintf("rank %d %s", found.Rank.Rank, cause.Describe(found.Rank.Exit)), found.Known
	case status.State == agent.Stopped:
		return "it was stopped: " + status.StopReason, true
	case status.State == agent.Exited && len(status.Ranks) < t.Spec.RanksOfNode():
		return fmt.Sprintf("the launcher of node %d ended before it had started all ranks", status.Node), true
	}
	return "", false
}

// endError is the error of a training whose nodes have all reported, nil for success.
func (t *Training) endError(ctx context.Context, statuses []agent.JobStatus, failure error) error {
	if failure != nil {
		return first(failure)
	}
	if t.succeeded(statuses) {
		return nil
	}
	found, failed := cause.Find(statuses)
	for _, status := range statuses {
		switch status.StopCause {
		case agent.StopDeadline:
			return t.timedOut(statuses, found, status.Ended.Sub(status.Started))
		case agent.StopReplaced:
			return fail.Becausef(fail.Cancelled, "training: %s", status.StopReason)
		case agent.StopContainer: // before any rank had failed
			const answer = 10 * time.Second
			asking, done := context.WithTimeout(ctx, answer)
			defer done()
			if err := t.podLost(asking, status.Node); err != nil {
				return onNode{status.Node, err}
			}
			return onNode{status.Node, t.gone(status.Node, "its container was stopped, as when its pod is deleted or evicted")}
		}
	}
	if failed {
		return found.Err(t.job(statuses[found.Rank.Node]))
	}
	// The other nodes are stopped after such a failure.
	for _, status := range statuses {
		if status.State == agent.Exited && len(status.Ranks) < t.Spec.RanksOfNode() {
			return t.launcherFailed(status)
		}
	}
	for _, status := range statuses {
		if status.State == agent.Stopped {
			return fail.Becausef(fail.Cancelled, "training: node %d was stopped: %s", status.Node, status.StopReason)
		}
	}
	return fail.Becausef(fail.RankFailed, "training: it failed, and no rank shows why")
}

// hangs is the longest silence of a training that is not taken for a hang.
const hangs = 10 * time.Minute

// timedOut is the error of a training whose deadline has passed. found is what ended it, if a rank did.
func (t *Training) timedOut(statuses []agent.JobStatus, found cause.Cause, took time.Duration) error {
	// The grace of the ranks that were stopped is no time of the training.
	text := fmt.Sprintf("training: it had not ended after %s", cmp.Or(t.Timeout, took).Round(time.Second))
	next := "give it more time with --timeout"
	if t.Spec.Run != "" {
		next = fmt.Sprintf("mlenv run --resume-from %s --timeout=DURATION -n %s   # more time, from its newest checkpoint; "+
			"tkn needs --pipeline-timeout too", t.Spec.Run, t.Clients.Namespace)
	}
	quiet := took
	for _, status := range statuses {
		if status.State == agent.Stopped { // other nodes have no ranks that could hang
			quiet = min(quiet, status.Quiet)
		}
	}
	if quiet > min(took/4, hangs) {
		text += fmt.Sprintf("; no rank had printed or measured anything for %s", quiet.Round(time.Second))
		next = "start it again, and while it is silent look for the rank that the others wait for: mlenv doctor"
	}
	if found.Left != nil {
		text += "; " + found.Leaving()
		next = fmt.Sprintf("let every rank take the same number of steps; rank %d ended first", found.Left.Rank)
	}
	return fail.Advise(fail.Becausef(fail.TrainingTimeout, "%s", text), "%s", next)
}

func (t *Training) job(status agent.JobStatus) cause.Job {
	return cause.Job{Run: t.Spec.Run, Environment: t.Name, Namespace: t.Clients.Namespace, Record: status.Record}
}

func (t *Training) launcherFailed(status agent.JobStatus) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var tail []string
	if log, err := t.Nodes[status.Node].Log(ctx, t.ID, agent.LauncherLog, 0, false); err == nil {
		defer log.Close()
		if content, err := io.ReadAll(io.LimitReader(log, 1<<20)); err == nil {
			lines := strings.Split(strings.TrimSpace(string(content)), "\n")
			tail = lines[max(0, len(lines)-20):]
		}
	}
	err := fail.Becausef(fail.RankFailed, "training: launcher %s of node %d %s and started %d of %d ranks",
		t.Spec.Launcher, status.Node, cause.Describe(status.Launcher), len(status.Ranks), t.Spec.RanksOfNode())
	return fail.Advise(fail.WithTail(err, tail), "%s", t.job(status).Log(status.Node, fmt.Sprintf("launcher-%d.log", status.Node)))
}

func (t *Training) drain(logs *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		logs.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(drain):
		t.Log.Warn(fmt.Sprintf("Not all output has arrived within %s; the record on the nodes has all of it.", drain), "seconds", drain.Seconds())
	}
}
