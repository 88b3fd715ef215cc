// SPDX-License-Identifier: Apache-2.0

// Package train starts a training on the nodes of an environment, follows it, and reports which rank failed and why.
package train

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// Bounds of the end of a job.
const (
	// drain is how long logs may take to arrive after their ranks have ended.
	drain = 30 * time.Second
	// launcherEnd is how long launchers may run after their ranks have exited with 0. Until they end the nodes
	// refuse the next training.
	launcherEnd = 20 * time.Second
	// endTime bounds how long an interrupted step waits for the ranks: a pod has 30 s between SIGTERM and SIGKILL. teardown waits for the
	// rest of their time.
	endTime = 15 * time.Second
	// killTime is how long an agent may take to kill ranks at the end of their time, and to report that.
	killTime = 5 * time.Second
)

const (
	// wrongClock is the difference between two clocks that users should know.
	wrongClock = 2 * time.Second
	// askTime bounds a question whose answer may not come because something else is away too.
	askTime = 10 * time.Second
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
	journal *receipt.Writer
	// newest is the newest complete checkpoint, lastProgress what was noted last.
	newest       atomic.Pointer[string]
	lastProgress atomic.Pointer[receipt.Progress]
}

// Result of a training that succeeded.
type Result struct {
	// Metrics are the last values of all metrics as one JSON object, "" for none.
	Metrics string
	// First and Last are the first and the last step in the metrics, nil for none.
	First, Last *float64
	// StepTimes has the times of the steps by the clock of this machine, nil without metrics.
	StepTimes *metrics.Curve
	// Statuses of all nodes at the end.
	Statuses []agent.JobStatus
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
		t.Log.Info(fmt.Sprintf("Attached to job %s, which was started before.", t.ID))
		began = time.Time{}
	} else {
		ranks := t.Spec.RanksOfNode()
		t.Log.Info(fmt.Sprintf("Launched %s with %s: %s, %s on each; job %s.", t.Spec.Script, t.Spec.Launcher,
			humanize.Count(len(t.Nodes), "node"), humanize.Count(ranks, "rank"), t.ID), "event", "launched", "script", t.Spec.Script, "launcher",
			t.Spec.Launcher, "nodes", len(t.Nodes), "ranksPerNode", ranks, "job", t.ID)
		if t.Spec.Attempt() == 1 {
			t.Notify(notify.Event{Kind: notify.Start, Attempt: 1, Nodes: len(t.Nodes)})
		}
	}
	following, stopFollowing := context.WithCancel(ctx)
	var followers, logs sync.WaitGroup
	// Another attempt changes what they read. The logs are not waited for without bound: their reader may have stopped to read.
	defer followers.Wait()
	defer stopFollowing()
	events := make(chan event)
	deciding, decided := context.WithCancel(following)
	defer decided()
	send := sender(deciding, events)
	shown := &progress{}
	outputs, stopOutput := t.outputs(following)
	t.followRanks(outputs, &logs)
	t.followMetrics(outputs[0], &logs, shown, began, send)
	job := t.job()
	job.Gone = t.podGone
	followers.Go(func() {
		job.Follow(following, func(e jobs.Event) {
			if e.Kind == jobs.Lost {
				e.Err = t.lost(e.Node, e.Err)
				stopOutput(e.Node)
			}
			send(e)
		})
	})
	if !attached && t.Spec.Attempt() == 1 {
		followers.Go(func() { t.sayResume(ctx, following) })
	}
	followers.Go(func() { t.showProgress(following, shown) })
	followers.Go(func() { t.noteProgress(following, shown) })
	followers.Go(func() { t.watchSilence(following, shown, send) })
	followers.Go(func() { t.watchCheckpoints(following, send) })
	followers.Go(func() { t.watchGPUs(following, send) })

	statuses, err := t.wait(ctx, t.course(began), events)
	decided() // nobody takes the metrics that still arrive
	err = t.withSaved(ctx, statuses, err)
	// The end is known; the rest of the ranks' output must still arrive.
	if ctx.Err() == nil {
		t.drain(&logs)
	}
	t.logProgress(shown, "")
	if err == nil {
		t.warnUnjudged(shown)
	}
	const metricsResult = 600
	result := Result{Metrics: shown.finalMetrics(metricsResult), Statuses: statuses}
	result.First, result.Last = shown.stepRange()
	result.StepTimes = shown.stepTimes(t.Nodes[0].Behind())
	return result, err
}

// job returns the training on its nodes.
func (t *Training) job() jobs.Job { return jobs.Job{ID: t.ID, Members: t.Nodes} }

// start starts every node's part, and reports whether the job existed before. If a node refuses, or does not answer, none is left running.
func (t *Training) start(ctx context.Context) (attached bool, err error) {
	starting, cancel := context.WithTimeout(ctx, jobs.Reachable)
	defer cancel()
	attached, errs := t.job().Start(starting, jobs.SameSpec(t.Spec))
	for _, client := range t.Nodes {
		if behind := client.Behind(); behind.Abs() > wrongClock {
			t.Log.Warn(fmt.Sprintf("The clock of node %d is %s behind this step's. The times of its ranks are corrected by that.",
				client.Node(), behind.Round(time.Second)))
		}
	}
	if ctx.Err() != nil { // whether the job is stopped is decided by why this step ends
		return false, ctx.Err()
	}
	if err := t.notStarted(errs); err != nil {
		t.stop(ctx, agent.Stop{Reason: "another node could not start", Grace: jobs.Grace})
		return false, err
	}
	return attached, nil
}

// notStarted returns why the first node that refused did so, or else that the first one that did not answer is lost. The errors are in
// the nodes' order. After a refusal nobody waits for silent nodes.
func (t *Training) notStarted(errs []error) error {
	silent := func(err error) bool { return fail.ReasonOf(err) == fail.AgentUnreachable }
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil && !silent(err) }); i >= 0 {
		return errs[i]
	}
	if i := slices.IndexFunc(errs, silent); i >= 0 {
		return onNode{node: t.Nodes[i].Node(), error: t.lost(t.Nodes[i].Node(), errs[i])}
	}
	return nil
}

// stop stops every node's part; it does not wait.
func (t *Training) stop(ctx context.Context, stop agent.Stop) {
	for place, err := range t.job().Stop(ctx, stop) {
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			node := t.Nodes[place].Node()
			t.Log.Warn(fmt.Sprintf("Node %d did not accept the order to stop: %v", node, err))
		}
	}
}

// lost returns the error for a node that reports nothing any more.
func (t *Training) lost(node int, err error) error {
	switch {
	case fail.ReasonOf(err) == fail.NodeLost:
		return err
	case agent.IsNotFound(err):
		return t.nodeGoneError(node, "its agent does not know the job any more: the pod and its storage are new")
	}
	return t.nodeGoneError(node, "its agent has not answered for %s", jobs.Reachable)
}

// outputs returns a context for the output of each node. stop ends the one of a node that is lost, from which nothing comes any more.
func (t *Training) outputs(ctx context.Context) (each []context.Context, stop func(node int)) {
	cancels := map[int]context.CancelFunc{}
	for _, client := range t.Nodes {
		output, cancel := context.WithCancel(ctx)
		each, cancels[client.Node()] = append(each, output), cancel
	}
	return each, func(node int) { cancels[node]() }
}

// followRanks shows the output of ranks until the contexts of their nodes end.
func (t *Training) followRanks(outputs []context.Context, group *sync.WaitGroup) {
	if count := len(t.Nodes) * t.Spec.RanksOfNode(); count > jobs.MostLogs {
		t.Log.Info(fmt.Sprintf("This log shows only the output of rank 0, because there are %s, and the last lines of a rank that fails. The "+
			"whole log of any rank: mlenv logs %s --rank N", humanize.Count(count, "rank"), cmp.Or(t.Spec.Run, "RUN")))
	}
	(&jobs.Output{Out: t.Out, Log: t.Log}).Follow(t.job(), t.Spec, outputs, group)
}

// followMetrics reads the metrics that rank 0 writes on node 0, and sends each line as measured. began is zero if an earlier step
// launched the job.
func (t *Training) followMetrics(ctx context.Context, group *sync.WaitGroup, shown *progress, began time.Time, send func(event)) {
	lines := metrics.Lines(func(value map[string]any) {
		if shown.add(value, time.Now()) && !began.IsZero() {
			step, _ := metrics.Number(value, "step")
			t.Log.Info(fmt.Sprintf("The first step that is reported, %s, was done %.1f s after the launch.",
				metrics.AtStep(step, 0, value["source"]), time.Since(began).Seconds()), "event", "first-step", "step", value["step"], "seconds",
				time.Since(began).Seconds())
		}
		if notice := shown.notice(); notice != "" {
			t.Log.Warn(notice)
		}
		send(t.measure(value))
	})
	group.Go(func() { _ = nodes.FollowLog(ctx, t.Nodes[0], t.ID, agent.MetricsLog, lines, nodes.RetryUntilDone(ctx)) })
}

func (t *Training) showProgress(ctx context.Context, shown *progress) {
	_ = wait.PollUntilContextCancel(ctx, t.ProgressEvery, false, func(ctx context.Context) (bool, error) {
		t.logProgress(shown, t.gpuText(ctx))
		return false, nil
	})
}

func (t *Training) logProgress(shown *progress, gpu string) {
	if line, step := shown.nextLine(gpu); line != "" {
		t.Log.Info(line, "event", "progress", "step", step)
	}
}

// course returns the state of an attempt that begins. began is as in followMetrics.
func (t *Training) course(began time.Time) *course {
	return &course{
		judge: t.judge(), phase: running, statuses: make([]agent.JobStatus, len(t.Nodes)), launched: began, started: began.IsZero(),
		nccl: ncclMonitor{
			wanted: t.wantedTransport(), environments: t.Network.Environments, ranks: len(t.Nodes) * t.Spec.RanksOfNode(), nodes: len(t.Nodes),
		},
		rules: watches(t.StopIf.Rules, t.RestartIf.Rules, t.Spec.DebugRank != nil),
		lost:  map[int]bool{}, silent: map[int]bool{},
	}
}

func (t *Training) wantedTransport() nccl.Transport {
	return agent.WantedTransport(t.Network.Mode, len(t.Nodes))
}

func (t *Training) judge() judge {
	return judge{spec: t.Spec, timeout: t.Timeout, gone: t.nodeGoneError,
		of: cause.Job{Run: t.Spec.Run, Environment: t.Name, Namespace: t.Clients.Namespace}}
}

// sender returns a function that sends an event, unless ctx is done.
func sender(ctx context.Context, events chan<- event) func(event) {
	return func(e event) {
		select {
		case events <- e:
		case <-ctx.Done():
		}
	}
}

// wait does what the course asks for, until it has ended or ctx is done.
func (t *Training) wait(ctx context.Context, c *course, events chan event) ([]agent.JobStatus, error) {
	waiting, done := context.WithCancel(ctx)
	var orders, questions sync.WaitGroup
	defer questions.Wait()
	defer done()
	send := sender(waiting, events)
	for {
		var e event
		select {
		case e = <-events:
		case <-ctx.Done():
			e = interrupted{ctx.Err()}
		}
		for _, do := range c.on(e, time.Now()) {
			switch do := do.(type) {
			case say:
				t.Log.Log(ctx, do.level, do.text, do.args...)
			case debugger:
				t.showDebugger(do.rank)
			case alarm:
				time.AfterFunc(do.after, func() { send(do.timer) })
			case question:
				questions.Go(func() { send(explained{t.explain(waiting, do)}) })
			case order: // a lost node must not delay the end of the others
				orders.Go(func() { t.stop(ctx, do.stop) })
			case finish:
				if ctx.Err() == nil {
					orders.Wait()
				}
				return c.statuses, do.err
			}
		}
	}
}

// explain answers a question about a node.
func (t *Training) explain(ctx context.Context, q question) error {
	node := q.status.Node
	switch q.about {
	case aboutRestart:
		return onNode{node: node, error: t.restarted(ctx, node)}
	case aboutLauncher:
		return t.launcherFailed(ctx, q.status)
	}
	if err := t.podGone(ctx, node); err != nil {
		return onNode{node: node, error: err}
	}
	return onNode{node: node, error: t.nodeGoneError(node, "its container was stopped, as when its pod is deleted or evicted")}
}

// showDebugger prints how to reach a rank that waits for a debugger.
func (t *Training) showDebugger(rank agent.RankStatus) {
	until := t.Spec.Deadline.UTC()
	t.Log.Info(fmt.Sprintf("Rank %d waits on node %d for a debugger, at most until the training's time is over at %s. Its port is "+
		"reached by: %s",
		rank.Rank, rank.Node, until.Format("2006-01-02 15:04 MST"), t.place().ReachCommand(rank.Node, rank.DebugPort)))
}

func (t *Training) launcherFailed(ctx context.Context, status agent.JobStatus) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var tail []string
	const most = 64 << 10
	if log, err := t.Nodes[status.Node].LogEnd(ctx, t.ID, agent.LauncherLog, most); err == nil {
		defer log.Close()
		if content, err := io.ReadAll(io.LimitReader(log, most)); err == nil && len(bytes.TrimSpace(content)) > 0 {
			lines := strings.Split(strings.TrimSpace(string(content)), "\n")
			tail = lines[max(0, len(lines)-20):]
		}
	}
	err := fail.Becausef(fail.RankFailed, "training: launcher %s of node %d %s and started %d of %d ranks",
		t.Spec.Launcher, status.Node, cause.Describe(status.Launcher), len(status.Ranks), t.Spec.RanksOfNode())
	return fail.Advise(fail.WithTail(err, tail), "%s",
		t.judge().causeJob(status).LogCommand(status.Node, fmt.Sprintf("launcher-%d.log", status.Node)))
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
		t.Log.Warn(fmt.Sprintf("Not all output has arrived within %s; the record on the nodes has all of it.", drain))
	}
}
