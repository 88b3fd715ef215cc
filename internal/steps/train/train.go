// Package train launches a training on the nodes of an environment, follows it,
// and says which rank failed and why.
package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/metrics"
)

// Bounds of the end of a job.
const (
	// settle is how long the ranks have to show their own errors after the first
	// one was ended by the loss of a peer.
	settle = 3 * time.Second
	// grace is between SIGTERM and SIGKILL when another rank has failed. With settle
	// it keeps the promise that the rest is stopped within 10 s.
	grace = 5 * time.Second
	// reachable is how long an agent may not answer before its node counts as lost.
	reachable = 2 * time.Minute
	// drain is how long logs may take to arrive after their ranks have ended.
	drain = 30 * time.Second
)

// Training is one job on all its nodes.
type Training struct {
	Nodes nodes.Set
	// ID of the job: the PipelineRun's UID, so that a retried step finds it again.
	ID   string
	Spec agent.JobSpec
	// Network is how the nodes talk.
	Network network.Network
	// Pods tells what became of a node that does not answer.
	Pods Pods
	// Forward is the command that makes a port of a node reachable for a person.
	Forward func(node, port int) string
	Log     *slog.Logger
	// Out gets the ranks' output; without it each line is a record of Log.
	Out io.Writer
	// Told is true where an earlier attempt of the step has told how the job ended.
	Told bool
	// Every is how often progress is shown.
	Every time.Duration
}

// Pods looks at the nodes' pods.
type Pods interface {
	// Lost is the error of a pod that is not the one that the job was started in, nil
	// while it may come back.
	Lost(ctx context.Context, client *agent.Client) error
	// Restarted is the error of a container that was restarted under the job.
	Restarted(ctx context.Context, client *agent.Client) error
}

// Result of a training that ended well.
type Result struct {
	// Metrics are the last values of all metrics as one JSON object, "" for none.
	Metrics string
	// Statuses of all nodes at the end.
	Statuses []agent.JobStatus
}

// update is news of one node.
type update struct {
	node   int
	status agent.JobStatus
	err    error
}

// Run starts the job, or attaches to it, and returns when its verdict is known.
// When ctx is done the job is left as it is.
func (t *Training) Run(ctx context.Context) (Result, error) {
	began := time.Now()
	found, err := t.start(ctx)
	if err != nil {
		return Result{}, err
	}
	// What is told a second time looks like a second training.
	again := found.over && t.Told
	switch {
	case again:
		t.Log.Info(fmt.Sprintf("Job %s has ended, as was told already; its whole output is in the record.", t.ID), "job", t.ID)
	case found.attached:
		t.Log.Info(fmt.Sprintf("Attached to job %s, which is there already.", t.ID), "job", t.ID)
	default:
		t.Log.Info(fmt.Sprintf("Launched %s with %s: %s, %s on each; job %s.", t.Spec.Script, t.Spec.Launcher, humanize.Count(len(t.Nodes), "node"), humanize.Count(t.Spec.RanksOfNode(), "rank"), t.ID), "script", t.Spec.Script, "launcher", t.Spec.Launcher, "nodes", len(t.Nodes), "ranksPerNode", t.Spec.RanksOfNode(), "job", t.ID)
	}
	following, stopFollowing := context.WithCancel(ctx)
	defer stopFollowing()
	updates := make(chan update)
	for _, client := range t.Nodes {
		go t.watch(following, client, updates)
	}
	show := &progress{}
	var logs sync.WaitGroup
	if !again {
		t.followRanks(following, &logs)
	}
	if found.attached {
		began = time.Time{}
	}
	t.followMetrics(following, &logs, show, began)

	statuses, err := t.wait(ctx, updates, began)
	// The verdict is known; what the ranks have printed must still arrive.
	if ctx.Err() == nil {
		t.drain(&logs)
	}
	if line := show.line(""); line != "" && !again {
		t.Log.Info(line)
	}
	const metricsResult = 600
	return Result{Metrics: show.final(metricsResult), Statuses: statuses}, err
}

// launched is what start found.
type launched struct {
	// attached is true where the job was there already, over where it has ended too.
	attached, over bool
}

// start starts every node's part. Where one refuses, none is left running.
func (t *Training) start(ctx context.Context) (launched, error) {
	var mu sync.Mutex
	result := launched{over: true}
	err := t.Nodes.Each(ctx, func(trying context.Context, client *agent.Client) error {
		var status agent.JobStatus
		err := nodes.Retry(trying, func() (err error) {
			// Not trying, which ends when another node refuses: a request that is given up may
			// still start the job, after the stop that follows has found none.
			status, err = client.StartJob(ctx, t.ID, t.Spec)
			return err
		})
		mu.Lock()
		defer mu.Unlock()
		result.attached = result.attached || err == nil && !status.New
		result.over = result.over && status.State != agent.Running
		return err
	})
	if err != nil {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		t.Stop(stopping, "another node could not start")
		return launched{}, first(err)
	}
	return result, nil
}

// first is one of errors that say the same of several nodes.
func first(err error) error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()[0]
	}
	return err
}

// Stop stops every node's part; it does not wait.
func (t *Training) Stop(ctx context.Context, reason string) {
	t.stop(ctx, agent.Stop{Reason: reason, Grace: grace})
}

func (t *Training) stop(ctx context.Context, stop agent.Stop) {
	var group sync.WaitGroup
	for _, client := range t.Nodes {
		group.Go(func() {
			err := client.StopJob(ctx, t.ID, stop)
			if err != nil && !agent.IsNotFound(err) && ctx.Err() == nil {
				t.Log.Warn(fmt.Sprintf("Node %d could not be told to stop: %v", client.Node(), err), "node", client.Node(), "error", err)
			}
		})
	}
	group.Wait()
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
	var since time.Time
	for ctx.Err() == nil {
		over := false
		err := client.WatchJob(ctx, t.ID, func(status agent.JobStatus) error {
			since = time.Time{}
			over = status.State != agent.Running
			return send(update{node: client.Node(), status: status})
		})
		switch {
		case ctx.Err() != nil || over:
			return
		case agent.IsNotFound(err):
			_ = send(update{node: client.Node(), err: gone(client, "its agent does not know the job any more: the pod and its storage are new")})
			return
		case err == nil:
			continue
		}
		if since.IsZero() {
			since = time.Now()
			t.Log.Warn(fmt.Sprintf("Node %d does not answer; the training may go on. Trying again. (%v)", client.Node(), err), "node", client.Node(), "error", err)
		}
		if lost := t.lost(ctx, client, since); lost != nil {
			_ = send(update{node: client.Node(), err: lost})
			return
		}
	}
}

// lost decides whether a node that does not answer can still come back, and
// waits a little if so.
func (t *Training) lost(ctx context.Context, client *agent.Client, since time.Time) error {
	if err := t.Pods.Lost(ctx, client); err != nil {
		return err
	}
	if time.Since(since) > reachable {
		return gone(client, "its agent has not answered for %s", reachable)
	}
	select {
	case <-time.After(500 * time.Millisecond):
	case <-ctx.Done():
	}
	return nil
}

// followRanks shows the output of all ranks. After a log's connection broke it goes on,
// until watch has decided that the node is lost, which ends ctx.
func (t *Training) followRanks(ctx context.Context, group *sync.WaitGroup) {
	output := &merged{out: t.Out}
	if t.Out == nil {
		output.log = t.Log
	}
	for _, client := range t.Nodes {
		for _, rank := range t.Spec.Ranks(client.Node()) {
			group.Go(func() {
				to := output.writer(client.Node(), rankName(t.Spec.Launcher, rank))
				_ = nodes.FollowLog(ctx, client, t.ID, agent.RankLog+strconv.Itoa(rank), to, nodes.RetryUntilDone(ctx))
				_ = to.Close()
			})
		}
	}
}

// followMetrics reads what rank 0 writes on node 0, and shows progress. began is
// zero where the launch was an earlier step's.
func (t *Training) followMetrics(ctx context.Context, group *sync.WaitGroup, show *progress, began time.Time) {
	lines := &metrics.Lines{Each: func(value map[string]any) {
		if show.add(value, time.Now()) && !began.IsZero() {
			t.Log.Info(fmt.Sprintf("Step %v, the first that is reported, was done %.1f s after the launch.", value["step"], time.Since(began).Seconds()), "step", value["step"], "seconds", time.Since(began).Seconds())
		}
	}}
	group.Go(func() { _ = nodes.FollowLog(ctx, t.Nodes[0], t.ID, agent.MetricsLog, lines, nodes.RetryUntilDone(ctx)) })
	go t.showProgress(ctx, show)
}

// showProgress prints a line now and then, where the training writes metrics.
func (t *Training) showProgress(ctx context.Context, show *progress) {
	ticker := time.NewTicker(t.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if line := show.line(t.gpuUse(ctx)); line != "" {
			t.Log.Info(line)
		}
	}
}

// gpuUse is how busy the GPUs of all nodes are, "" where there are none.
func (t *Training) gpuUse(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var mu sync.Mutex
	var use []int
	_ = t.Nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		facts, err := client.Facts(ctx)
		mu.Lock()
		defer mu.Unlock()
		for _, gpu := range facts.GPUs {
			use = append(use, gpu.Utilization)
		}
		return err
	})
	if len(use) == 0 {
		return ""
	}
	sum := 0
	for _, percent := range use {
		sum += percent
	}
	return fmt.Sprintf("GPUs %d%% busy", sum/len(use))
}

// wait returns when all ranks have ended well, or when one has not and the rest
// is stopped. began is as followMetrics has it.
func (t *Training) wait(ctx context.Context, updates <-chan update, began time.Time) ([]agent.JobStatus, error) {
	statuses := make([]agent.JobStatus, len(t.Nodes))
	// wrong is of the network, as much as is known of it.
	var failure, wrong error
	var stopAt, giveUp <-chan time.Time
	started, waiting := began.IsZero(), false
	shown := shown{
		log: t.Log, wanted: agent.WantedTransport(t.Network.Mode, len(t.Nodes)), environments: t.Network.Environments, ranks: len(t.Nodes) * t.Spec.RanksOfNode(),
	}
	stop := func(why string) {
		stopAt = nil
		if giveUp == nil {
			giveUp = time.After(grace + settle)
			// A node that is gone must not hold up what is known of the others.
			stopping, cancel := context.WithTimeout(ctx, grace)
			defer cancel()
			t.Stop(stopping, why)
		}
	}
	for {
		select {
		case u := <-updates:
			if u.err != nil {
				failure = errors.Join(failure, u.err)
				stop("another node is gone")
				break
			}
			statuses[u.node] = u.status
			if wrong = shown.look(statuses); wrong != nil {
				stop("ranks talk over sockets")
			}
			if !started && slices.ContainsFunc(u.status.Ranks, func(r agent.RankStatus) bool { return !r.Started.IsZero() }) {
				started = true
				t.Log.Info(fmt.Sprintf("The first rank started %.1f s after the launch.", time.Since(began).Seconds()), "seconds", time.Since(began).Seconds())
			}
			if i := slices.IndexFunc(u.status.Ranks, waits); i >= 0 && !waiting {
				waiting = true
				t.Log.Info(fmt.Sprintf("Rank %d waits on node %d for a debugger, at most until the training's time is over at %s. Its port is reached by: %s",
					u.status.Ranks[i].Rank, u.node, t.Spec.Deadline.UTC().Format("2006-01-02 15:04 MST"), t.Forward(u.node, u.status.Ranks[i].DebugPort)), "rank", u.status.Ranks[i].Rank, "node", u.node, "deadline", t.Spec.Deadline.UTC(), "port", u.status.Ranks[i].DebugPort)
			}
			switch {
			case u.status.State == agent.Restarted:
				failure = errors.Join(failure, t.Pods.Restarted(ctx, t.Nodes[u.node]))
				stop("a container was restarted")
			case t.done(statuses) && wrong == nil:
				return statuses, nil
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
		case <-giveUp:
			return statuses, t.verdict(statuses, errors.Join(failure, wrong))
		case <-ctx.Done():
			return statuses, ctx.Err()
		}
		if t.over(statuses, failure) {
			return statuses, t.verdict(statuses, errors.Join(failure, wrong))
		}
	}
}

// waits is true of a rank that can be reached by a debugger.
func waits(rank agent.RankStatus) bool { return rank.DebugPort != 0 && rank.Ended.IsZero() }

// done is true when every rank of every node has exited with 0.
func (t *Training) done(statuses []agent.JobStatus) bool {
	for _, status := range statuses {
		if len(status.Ranks) != t.Spec.RanksOfNode() {
			return false
		}
		for _, rank := range status.Ranks {
			if rank.Ended.IsZero() || rank.Exit != (agent.Exit{}) {
				return false
			}
		}
	}
	return true
}

// over is true when no node can have more to say.
func (t *Training) over(statuses []agent.JobStatus, failure error) bool {
	waiting := 0
	for _, status := range statuses {
		if status.State == agent.Running || status.State == "" {
			waiting++
		}
	}
	// A node that is gone will not report.
	return waiting == 0 || (failure != nil && waiting == 1 && fail.ReasonOf(failure) == fail.NodeLost)
}

// failing says why a node's part cannot end well any more, and whether the cause
// is certain: a rank with an error of its own, not one that lost its peers.
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

// verdict is the error of a training that did not end well.
func (t *Training) verdict(statuses []agent.JobStatus, failure error) error {
	if failure != nil {
		return first(failure)
	}
	for _, status := range statuses {
		switch status.StopCause {
		case agent.StopDeadline:
			return fail.Advise(fail.Becausef(fail.TrainingTimeout, "training: it had not ended after %s", status.Ended.Sub(status.Started).Round(time.Second)),
				"give it more time with the param timeout, and the PipelineRun with --pipeline-timeout")
		case agent.StopReplaced:
			return fail.Becausef(fail.Cancelled, "training: %s", status.StopReason)
		}
	}
	if found, failed := cause.Find(statuses); failed {
		return found.Err(statuses[found.Rank.Node].Record)
	}
	for _, status := range statuses {
		if status.State == agent.Stopped {
			return fail.Becausef(fail.Cancelled, "training: node %d was told to stop: %s", status.Node, status.StopReason)
		}
	}
	for _, status := range statuses {
		if len(status.Ranks) < t.Spec.RanksOfNode() {
			return t.launcherFailed(status)
		}
	}
	return fail.Becausef(fail.RankFailed, "training: it did not end well, and no rank shows why")
}

// launcherFailed is the error of a launcher that did not get to its ranks.
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
	return fail.Advise(fail.WithTail(err, tail), "the launcher's log is %s/launcher-%d.log on node %d", status.Record, status.Node, status.Node)
}

// drain waits until the logs are complete, within bounds.
func (t *Training) drain(logs *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		logs.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(drain):
		t.Log.Warn(fmt.Sprintf("Not all output has arrived within %s; the whole of it is in the record on the nodes.", drain), "seconds", drain.Seconds())
	}
}
