package checkfabric

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Bounds within one run of the benchmark.
const (
	// starting is how long an agent may take to start its part.
	starting = 10 * time.Second
	// settle is how long ranks have to show their own errors after the first has failed.
	settle = 2 * time.Second
	// ending is how long the end of what is stopped may take; grace is of that.
	ending = 4 * time.Second
	grace  = time.Second
)

// job is one run of the benchmark on some of the nodes.
type job struct {
	id string
	// members take part, in this order: the first is where the ranks meet.
	members nodes.Set
	// input is common; own adds what is a member's.
	input fabric.Input
	own   func(node int, input *fabric.Input, env map[string]string)
	// bound is how long all of it may take, stall how long it may be silent once torch is
	// there on all members.
	bound, stall time.Duration
	run          string
}

// outcome is how it ended.
type outcome struct {
	measurements []fabric.Measurement
	// rail is the one whose turn it was last, -1 before the first.
	rail int
	// withoutGPU are the nodes whose torch sees no GPU; ready and joined those that have
	// got so far.
	withoutGPU, ready, joined []int
	// done: all was measured, or as much as there was time for.
	done bool
	// failed is true where a rank ended by itself with an error.
	failed bool
	// stalled is true where it was stopped because nothing came any more.
	stalled  bool
	statuses []agent.JobStatus
	// unreachable are the errors of nodes whose agents do not answer.
	unreachable map[int]error
}

// news is what one node's followers say.
type news struct {
	node   int
	line   *fabric.Line
	status *agent.JobStatus
	// logged: its log is complete.
	logged bool
}

// do runs the job to its end, within its bound. The error is one that is not about the
// network: of a job that could not be started, or ctx's.
func (j *job) do(ctx context.Context) (outcome, error) {
	out := outcome{rail: -1, unreachable: map[int]error{}}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := j.start(ctx, &out); err != nil || len(out.unreachable) > 0 {
		j.stop(ctx, "the check cannot begin")
		return out, err
	}
	all := make(chan news)
	var group sync.WaitGroup
	for _, client := range j.members {
		group.Go(func() { j.follow(ctx, client, all) })
	}
	defer group.Wait()
	defer cancel()
	err := j.wait(ctx, all, &out)
	if err != nil {
		j.stop(ctx, "the check was told to end")
	}
	return out, err
}

// start starts every member's part.
func (j *job) start(ctx context.Context, out *outcome) error {
	ctx, cancel := context.WithTimeout(ctx, min(starting, j.bound))
	defer cancel()
	var mu sync.Mutex
	var errs []error
	var group sync.WaitGroup
	for place, client := range j.members {
		group.Go(func() {
			spec, err := j.spec(place, client.Node())
			if err == nil {
				err = nodes.Retry(ctx, func() error {
					_, err := client.StartJob(ctx, j.id, spec)
					return err
				})
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
			case fail.ReasonOf(err) == fail.AgentUnreachable:
				out.unreachable[client.Node()] = err
			default:
				errs = append(errs, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// spec is a member's part. Of launcher command every node has one process, which starts
// the ranks itself: so any nodes may take part, and not the first ones alone.
func (j *job) spec(place, node int) (agent.JobSpec, error) {
	input := j.input
	input.Node, input.Nodes = place, len(j.members)
	env := map[string]string{}
	if j.own != nil {
		j.own(node, &input, env)
	}
	args, err := input.Arguments()
	return agent.JobSpec{
		Run: j.run, Launcher: agent.Command, Script: "python3", Args: args, Nodes: node + 1, RanksPerNode: 1, Env: env,
		Deadline: time.Now().Add(j.bound + ending), Grace: grace,
	}, err
}

// follow sends what a node says until ctx is done.
func (j *job) follow(ctx context.Context, client *agent.Client, all chan<- news) {
	send := func(n news) error {
		n.node = client.Node()
		select {
		case all <- n:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	again := nodes.RetryUntilDone(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		reader, writer := io.Pipe()
		go func() {
			err := nodes.FollowLog(ctx, client, j.id, fmt.Sprintf("%s%d", agent.RankLog, client.Node()), writer, again)
			writer.CloseWithError(err)
		}()
		lines := bufio.NewScanner(reader)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if line, ok := fabric.ParseLine(lines.Bytes()); ok && send(news{line: &line}) != nil {
				break
			}
		}
		_ = reader.Close()
		_ = send(news{logged: true})
	})
	for ctx.Err() == nil {
		over := false
		err := client.WatchJob(ctx, j.id, func(status agent.JobStatus) error {
			over = status.State != agent.Running
			return send(news{status: &status})
		})
		if over || err != nil && again(err) != nil {
			break
		}
	}
	group.Wait()
}

// wait gathers what the nodes say until all have ended, or are stopped.
func (j *job) wait(ctx context.Context, all <-chan news, out *outcome) error {
	statuses := map[int]agent.JobStatus{}
	logged := map[int]bool{}
	done := map[int]bool{}
	cut := false // short by the bound
	measured := func() bool { return len(done) == len(j.members) }
	defer func() {
		for _, client := range j.members {
			if status, ok := statuses[client.Node()]; ok {
				out.statuses = append(out.statuses, status)
			}
		}
		out.done = measured() || cut && !out.stalled
	}()
	bound := time.After(j.bound)
	silent := time.NewTimer(j.bound)
	last := time.Now()
	var stopAt, giveUp <-chan time.Time
	stop := func(why string) {
		if giveUp == nil {
			giveUp = time.After(ending)
			// Who does not answer must not hold up the verdict.
			go j.stop(ctx, why)
		}
	}
	for {
		select {
		case n := <-all:
			switch {
			case n.line != nil:
				out.take(n.node, *n.line, j.members)
				last = time.Now()
				if n.line.Event == fabric.Done {
					done[n.node] = true
				}
				if measured() && stopAt == nil && giveUp == nil {
					// torch may take its time to end; there is nothing to learn from that.
					stopAt = time.After(settle)
				}
				if len(out.ready) == len(j.members) {
					silent.Reset(j.stall)
				}
			case n.status != nil:
				statuses[n.node] = *n.status
				if failed(*n.status) && stopAt == nil && giveUp == nil {
					out.failed = true
					stopAt = time.After(settle)
				}
			case n.logged:
				logged[n.node] = true
			}
		case <-silent.C:
			out.stalled = true
			stop("no rank answers any more")
		case <-bound:
			// A machine that is busy measures longer than the program reckons.
			cut = len(out.joined) == len(j.members) && time.Since(last) < j.stall/2
			out.stalled = !cut
			stop("the time for the check is over")
		case <-stopAt:
			why := "another rank failed"
			if measured() {
				why = "all is measured"
			}
			stop(why)
		case <-giveUp:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		if j.over(statuses) && len(logged) == len(j.members) {
			return nil
		}
	}
}

// take notes what a line says. The benchmark knows places among the members, and not nodes.
func (o *outcome) take(node int, line fabric.Line, members nodes.Set) {
	switch line.Event {
	case fabric.WithoutGPU:
		o.withoutGPU = append(o.withoutGPU, node)
	case fabric.Ready:
		o.ready = append(o.ready, node)
	case fabric.Joined:
		o.joined = append(o.joined, node)
	case fabric.OnRail:
		o.rail = line.Rail
	case fabric.Done:
	default:
		if p := line.Pair; line.Scope == fabric.InPair && min(p[0], p[1]) >= 0 && max(p[0], p[1]) < len(members) {
			a, b := members[p[0]].Node(), members[p[1]].Node()
			line.Pair = fabric.Pair{min(a, b), max(a, b)}
		}
		if line.Scope == fabric.InNode {
			line.Node = node
		}
		o.measurements = append(o.measurements, line.Measurement)
	}
}

// began is true where torch was there on all members, or something failed before: only then
// does an end without a result say anything about the network.
func (o *outcome) began(members int) bool {
	return len(o.ready) == members || o.failed
}

// over is true when no member runs any more.
func (j *job) over(statuses map[int]agent.JobStatus) bool {
	return !slices.ContainsFunc(j.members, func(c *agent.Client) bool {
		status, known := statuses[c.Node()]
		return !known || status.State == agent.Running
	})
}

func failed(status agent.JobStatus) bool {
	_, failed := cause.Find([]agent.JobStatus{status})
	return failed || status.State == agent.Exited && len(status.Ranks) == 0
}

// stop ends the job on all members and does not wait for it. It works after ctx has ended too.
func (j *job) stop(ctx context.Context, why string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ending)
	defer cancel()
	var group sync.WaitGroup
	for _, client := range j.members {
		// Who does not answer ends by the job's own deadline.
		group.Go(func() { _ = client.StopJob(ctx, j.id, agent.Stop{Reason: why, Grace: grace}) })
	}
	group.Wait()
}
