package checkfabric

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
)

const (
	// settle is how long ranks have to print their own errors after the first one has failed.
	settle = 2 * time.Second
	// ending is how long a job may take to end after it is stopped; grace is the part of it before SIGKILL.
	ending = 4 * time.Second
	grace  = time.Second
	// mostMeasurements is many more than the benchmark prints.
	mostMeasurements = 1 << 14
)

// job is one run of the benchmark on some of the nodes.
type job struct {
	id string
	// members take part, in this order: the ranks meet on the first one.
	members nodes.Set
	// input is common to all members; own adds what differs.
	input fabric.Input
	own   []ownPart
	// bound is how long the job may take. Once all members have imported torch it may be silent for joining, which is the time for
	// devices and for the ranks to meet, and once they have met for stall.
	bound, joining, stall time.Duration
	run                   string
}

// ownPart adds what one member has to the input, and to the variables of its ranks.
type ownPart func(node int, input *fabric.Input, env map[string]string)

type outcome struct {
	measurements []fabric.Measurement
	// rail is the one that was measured last, -1 before the first.
	rail int
	// withoutGPU are the nodes whose torch sees no GPU; ready and joined those that printed these events.
	withoutGPU, ready, joined []int
	// importing is how long all members took to import torch, and meeting how long they then took to meet; 0 if they did not.
	importing, meeting time.Duration
	// done: all was measured, or as much as there was time for.
	done bool
	// failed is true if a rank ended by itself with an error.
	failed bool
	// stalled is true if the job was stopped because no rank printed anything any more, though all had imported torch.
	stalled  bool
	statuses []agent.JobStatus
	// unreachable are the errors of nodes whose agents do not answer.
	unreachable map[int]error
}

type update struct {
	node   int
	line   *fabric.Line
	status *agent.JobStatus
	// logged: the node's log is complete.
	logged bool
}

// do runs the job to its end, within its bound. Its error is not about the network: the job
// could not be started, or ctx ended.
func (j *job) do(ctx context.Context) (outcome, error) {
	out := outcome{rail: -1}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := j.start(ctx, &out); err != nil || len(out.unreachable) > 0 {
		j.stop(ctx, "the check cannot begin")
		return out, err
	}
	all := make(chan update)
	var group sync.WaitGroup
	for _, client := range j.members {
		group.Go(func() { j.follow(ctx, client, all) })
	}
	defer group.Wait()
	defer cancel()
	err := j.wait(ctx, all, &out)
	if err != nil {
		j.stop(ctx, "the check was interrupted")
	}
	return out, err
}

func (j *job) start(ctx context.Context, out *outcome) (err error) {
	specs := map[*agent.Client]agent.JobSpec{}
	for place, client := range j.members {
		if specs[client], err = j.spec(place, client.Node()); err != nil {
			return err
		}
	}
	_, out.unreachable, err = ask(ctx, j.members, j.bound, func(client *agent.Client, ctx context.Context) (agent.JobStatus, error) {
		return client.StartJob(ctx, j.id, specs[client])
	})
	return err
}

// spec is a member's part. With launcher command every node has one process, which starts
// the ranks itself, so that any nodes can take part and not only the first ones.
func (j *job) spec(place, node int) (agent.JobSpec, error) {
	input := j.input
	input.Node, input.Nodes = place, len(j.members)
	env := map[string]string{}
	for _, add := range j.own {
		add(node, &input, env)
	}
	args, err := input.Arguments()
	return agent.JobSpec{
		Run: j.run, Launcher: agent.Command, Script: "python3", Args: args, Nodes: node + 1, RanksPerNode: 1, Env: env,
		Deadline: time.Now().Add(j.bound + ending), Grace: grace,
	}, err
}

func (j *job) follow(ctx context.Context, client *agent.Client, all chan<- update) {
	send := func(n update) error {
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
		log := &lines.Splitter{Each: func(text []byte) {
			if line, ok := fabric.ParseLine(text); ok {
				_ = send(update{line: &line}) // fails as FollowLog does
			}
		}}
		_ = nodes.FollowLog(ctx, client, j.id, fmt.Sprintf("%s%d", agent.RankLog, client.Node()), log, again)
		log.Flush()
		_ = send(update{logged: true})
	})
	for ctx.Err() == nil {
		over := false
		err := client.WatchJob(ctx, j.id, func(status agent.JobStatus) error {
			over = status.State != agent.Running
			return send(update{status: &status})
		})
		if over || err != nil && again(err) != nil {
			break
		}
	}
	group.Wait()
}

// wait takes the nodes' updates until all have ended, or are stopped.
func (j *job) wait(ctx context.Context, all <-chan update, out *outcome) error {
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
		out.done = measured() || cut
	}()
	bound := time.After(j.bound)
	silent := time.NewTimer(j.bound)
	silent.Stop()
	began := time.Now()
	last := began
	patience := func() time.Duration {
		if len(out.joined) < len(j.members) {
			return j.joining
		}
		return j.stall
	}
	var stopAt, giveUp <-chan time.Time
	stop := func(why string) {
		if giveUp == nil {
			giveUp = time.After(ending)
			// An agent that does not answer must not delay the verdict.
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
				if out.importing == 0 && len(out.ready) == len(j.members) {
					out.importing = last.Sub(began)
				}
				if out.meeting == 0 && len(out.joined) == len(j.members) {
					out.meeting = last.Sub(began) - out.importing
				}
				if n.line.Event == fabric.Done {
					done[n.node] = true
				}
				if measured() && stopAt == nil && giveUp == nil {
					// torch may be slow to end, which shows nothing about the network.
					stopAt = time.After(settle)
				}
				if len(out.ready) == len(j.members) {
					silent.Reset(patience())
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
			// On a busy machine measuring takes longer than the program estimates, and importing torch or meeting longer than there is time.
			// NCCL that had less than its time to start shows nothing.
			joined := len(out.joined) == len(j.members)
			out.stalled = len(out.ready) == len(j.members) && time.Since(last) >= patience()/2 && (joined || j.input.Backend != fabric.NCCL)
			cut = joined && !out.stalled
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

// take takes a line of a node. The benchmark knows places among the members, and not nodes.
func (o *outcome) take(node int, line fabric.Line, members nodes.Set) {
	note := func(nodes *[]int) {
		if !slices.Contains(*nodes, node) {
			*nodes = append(*nodes, node)
		}
	}
	switch line.Event {
	case fabric.WithoutGPU:
		note(&o.withoutGPU)
	case fabric.Ready:
		note(&o.ready)
	case fabric.Joined:
		note(&o.joined)
	case fabric.OnRail:
		o.rail = line.Rail
	case "": // a measurement
		if line.Scope == fabric.InPair {
			p := line.Pair
			if !p.Within(len(members)) {
				return
			}
			a, b := members[p[0]].Node(), members[p[1]].Node()
			line.Pair = fabric.Pair{min(a, b), max(a, b)}
		}
		if line.Scope == fabric.InNode {
			line.Node = node
		}
		if len(o.measurements) < mostMeasurements {
			o.measurements = append(o.measurements, line.Measurement)
		}
	}
}

// telling is true if an end without a result shows something about the network: something failed, or ranks were silent for long
// after all members had imported torch. Members that had no time show nothing.
func (o *outcome) telling() bool { return o.stalled || o.failed }

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

// stop asks all members to end the job, even if ctx has ended, and does not wait for the end.
func (j *job) stop(ctx context.Context, why string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ending)
	defer cancel()
	// A member whose agent does not answer ends at the job's own deadline.
	parallel.Map(j.members, func(client *agent.Client) error {
		return client.StopJob(ctx, j.id, agent.Stop{Reason: why, Grace: grace})
	})
}
