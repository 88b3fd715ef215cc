// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
)

const (
	// ending is how long a job of the benchmark may take to end after it is stopped.
	ending = 4 * time.Second
	// grace is the time between SIGTERM and SIGKILL of the benchmark.
	grace = time.Second
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

// runToEnd runs the job to its end, within its bound. Its error is not about the network: the job could not be started, or ctx ended.
func (j *job) runToEnd(ctx context.Context) (outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if unreachable, err := j.start(ctx); err != nil || len(unreachable) > 0 {
		j.stop(ctx, "the check cannot begin")
		return outcome{rail: noRail, unreachable: unreachable}, err
	}
	events := make(chan event)
	send := func(e event) {
		select {
		case events <- e:
		case <-ctx.Done():
		}
	}
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { j.follow(ctx, send) })
	c := course{job: j, began: time.Now()}
	for effects := c.begin(); ; {
		for _, effect := range effects {
			switch e := effect.(type) {
			case alarm:
				group.Go(func() {
					select {
					case <-time.After(e.after):
						send(e.timer)
					case <-ctx.Done():
					}
				})
			case order: // an agent that does not answer must not delay the verdict
				go j.stop(ctx, string(e))
			}
		}
		if c.phase == ended {
			return c.outcome(), nil
		}
		select {
		case e := <-events:
			effects = c.on(e, time.Now())
		case <-ctx.Done():
			j.stop(ctx, "the check was interrupted")
			return c.outcome(), ctx.Err()
		}
	}
}

// start returns the errors of nodes whose agents do not answer.
func (j *job) start(ctx context.Context) (unreachable map[int]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(starting, j.bound))
	defer cancel()
	_, errs := j.Start(ctx, j.spec)
	return silentOf(j.Members, errs)
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
func (j *job) follow(ctx context.Context, send func(event)) {
	var group sync.WaitGroup
	for _, client := range j.Members {
		group.Go(func() {
			log := &lines.Splitter{Each: func(text []byte) {
				if line, ok := fabric.ParseLine(text); ok {
					send(printed{client.Node(), line})
				}
			}}
			_ = nodes.FollowLog(ctx, client, j.ID, fmt.Sprintf("%s%d", agent.RankLog, client.Node()), log, nodes.RetryUntilDone(ctx))
			log.Flush()
			send(logged(client.Node()))
		})
	}
	j.Follow(ctx, func(e jobs.Event) { send(e) })
	group.Wait()
}

// stop asks all members to end the job. A member whose agent does not answer ends at the job's own deadline.
func (j *job) stop(ctx context.Context, why string) {
	j.Stop(ctx, agent.Stop{Reason: why, Grace: grace})
}
