// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
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

// job is one run of the benchmark on some of the nodes. The ranks meet on the first one.
type job struct {
	jobs.Job
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
	devices      []fabric.Device
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

// news is what a node reports: a line, its status, or that its log is complete.
type news struct {
	node   int
	line   *fabric.Line
	status *agent.JobStatus
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
	all := make(chan news)
	var group sync.WaitGroup
	group.Go(func() { j.follow(ctx, all) })
	defer group.Wait()
	defer cancel()
	err := j.wait(ctx, all, &out)
	if err != nil {
		j.stop(ctx, "the check was interrupted")
	}
	return out, err
}

func (j *job) start(ctx context.Context, out *outcome) (err error) {
	ctx, cancel := context.WithTimeout(ctx, min(starting, j.bound))
	defer cancel()
	_, errs := j.Start(ctx, j.spec)
	out.unreachable, err = silentOf(j.Members, errs)
	return err
}

// spec returns a member's part. With launcher command every node has one process, which starts
// the ranks itself, so that any nodes can take part and not only the first ones.
func (j *job) spec(place int) (agent.JobSpec, error) {
	input, node := j.input, j.Members[place].Node()
	input.Node, input.Nodes = place, len(j.Members)
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

// follow sends what the members report, until all have ended or ctx is done.
func (j *job) follow(ctx context.Context, all chan<- news) {
	send := func(n news) {
		select {
		case all <- n:
		case <-ctx.Done():
		}
	}
	var group sync.WaitGroup
	for _, client := range j.Members {
		group.Go(func() {
			log := &lines.Splitter{Each: func(text []byte) {
				if line, ok := fabric.ParseLine(text); ok {
					send(news{node: client.Node(), line: &line})
				}
			}}
			_ = nodes.FollowLog(ctx, client, j.ID, fmt.Sprintf("%s%d", agent.RankLog, client.Node()), log, nodes.RetryUntilDone(ctx))
			log.Flush()
			send(news{node: client.Node(), logged: true})
		})
	}
	// A member that is silent or lost decides nothing: what counts is what the ranks print within their time.
	j.Follow(ctx, func(e jobs.Event) {
		if e.Kind == jobs.Reported {
			send(news{node: e.Node, status: &e.Status})
		}
	})
	group.Wait()
}

// wait takes the nodes' updates until all have ended, or are stopped.
func (j *job) wait(ctx context.Context, all <-chan news, out *outcome) error {
	statuses := map[int]agent.JobStatus{}
	logged := map[int]bool{}
	done := map[int]bool{}
	cut := false // short by the bound
	measured := func() bool { return len(done) == len(j.Members) }
	defer func() {
		for _, client := range j.Members {
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
		if len(out.joined) < len(j.Members) {
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
				out.take(n.node, *n.line, j.Members)
				last = time.Now()
				if out.importing == 0 && len(out.ready) == len(j.Members) {
					out.importing = last.Sub(began)
				}
				if out.meeting == 0 && len(out.joined) == len(j.Members) {
					out.meeting = last.Sub(began) - out.importing
				}
				if n.line.Event == fabric.Done {
					done[n.node] = true
				}
				if measured() && stopAt == nil && giveUp == nil {
					// torch may be slow to end, which shows nothing about the network.
					stopAt = time.After(settle)
				}
				if len(out.ready) == len(j.Members) {
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
			joined := len(out.joined) == len(j.Members)
			out.stalled = len(out.ready) == len(j.Members) && time.Since(last) >= patience()/2 && (joined || j.input.Backend != fabric.NCCL)
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
		if j.over(statuses) && len(logged) == len(j.Members) {
			return nil
		}
	}
}

// take takes a line of a node. The benchmark knows places among the members, and not nodes.
func (o *outcome) take(node int, line fabric.Line, members nodes.Set) {
	note := func(known *[]int) {
		if !slices.Contains(*known, node) {
			*known = append(*known, node)
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
	case fabric.OfDevice:
		known := slices.ContainsFunc(o.devices, func(d fabric.Device) bool { return d.Rank == line.Device.Rank })
		if line.Device.Node = node; !known {
			o.devices = append(o.devices, line.Device)
		}
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

// conclusive reports whether an end without a result shows something about the network: something failed, or ranks were silent for long
// after all members had imported torch. Members that had no time show nothing.
func (o *outcome) conclusive() bool { return o.stalled || o.failed }

func (j *job) over(statuses map[int]agent.JobStatus) bool {
	return !slices.ContainsFunc(j.Members, func(c *agent.Client) bool {
		status, known := statuses[c.Node()]
		return !known || status.State == agent.Running
	})
}

func failed(status agent.JobStatus) bool {
	_, failed := cause.Find([]agent.JobStatus{status})
	return failed || status.State == agent.Exited && len(status.Ranks) == 0
}

// stop asks all members to end the job. A member whose agent does not answer ends at the job's own deadline.
func (j *job) stop(ctx context.Context, why string) {
	j.Stop(ctx, agent.Stop{Reason: why, Grace: grace})
}
