// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// Script is a training that shows how fast the network makes it.
type Script struct {
	// Path is one in the tree that was synced last, an absolute one, or -m PACKAGE.MODULE.
	Path     string
	Args     []string
	Launcher agent.Launcher
	// Time is how long it runs over each transport, unless it ends before.
	Time time.Duration
}

// compareSpeed trains the script as the environment would, and then over sockets on the pod network. Errors: EnvironmentBusy if a job
// runs on the nodes, and the error of a rank that failed.
func (c *Check) compareSpeed(ctx context.Context) (err error) {
	for _, f := range c.facts {
		if len(f.Running) > 0 {
			return fail.Advise(fail.Becausef(fail.EnvironmentBusy, "comparing the speed of %s: job %s runs on node %d", c.Script.Path, f.Running[0],
				f.Node),
				"wait until it ends, or stop it")
		}
	}
	speed := fabric.Speed{Script: c.Script.Path}
	if speed.TokensPerSecond, err = c.train(ctx, "script", c.report.Transport, nil); err != nil {
		return err
	}
	speed.SocketsTokensPerSecond, err = c.train(ctx, "script-tcp", "TCP sockets", func(node int) map[string]string {
		env := map[string]string{}
		nccl.OverSockets(env, c.devices[node].PodInterface)
		return env
	})
	c.report.Speed = &speed
	return err
}

// train runs the script on all nodes until it ends, a rank fails, or its time is over, and returns the tokens per second in its metrics.
func (c *Check) train(ctx context.Context, name, over string, env func(node int) map[string]string) (float64, error) {
	c.Log.Info(fmt.Sprintf("Training %s over %s, for at most %s.", c.Script.Path, over, humanize.Duration(c.Script.Time)))
	tree, err := c.Nodes[0].CurrentTree(ctx)
	if err != nil {
		return 0, err
	}
	j := jobs.Job{ID: c.ID + "-" + name, Members: c.Nodes}
	bound, cancel := context.WithTimeout(ctx, c.Script.Time+ending)
	defer cancel()
	_, errs := j.Start(bound, func(place int) (agent.JobSpec, error) {
		spec := agent.JobSpec{
			Run: c.RunName, Launcher: c.Script.Launcher, Script: c.Script.Path, Args: c.Script.Args, Tree: tree.Hash, Nodes: len(c.Nodes),
			RanksPerNode: max(1, c.facts[0].GPUsExpected), Order: network.Order(c.settings.Racks), Deadline: time.Now().Add(c.Script.Time),
			Grace: grace,
		}
		if env != nil {
			spec.Env = env(c.Nodes[place].Node())
		}
		return spec, nil
	})
	if err := errors.Join(errs...); err != nil {
		j.Stop(ctx, agent.Stop{Reason: "another node did not start it", Grace: grace})
		return 0, err
	}
	var rate tokenRate
	var group sync.WaitGroup
	group.Go(func() {
		lines := metrics.Lines(func(line map[string]any) { rate.add(line, time.Now()) })
		_ = nodes.FollowLog(bound, c.Nodes[0], j.ID, agent.MetricsLog, lines, nodes.RetryUntilDone(bound)) // shown by the rate
	})
	statuses := c.watch(bound, j)
	group.Wait()
	if ctx.Err() != nil {
		j.Stop(ctx, agent.Stop{Reason: "the check was interrupted", Grace: grace})
		return 0, ctx.Err()
	}
	if found, failed := cause.Find(statuses); failed {
		return 0, found.Err(cause.Job{Record: statuses[0].Record})
	}
	if rate.perSecond() == 0 {
		c.Log.Warn(fmt.Sprintf("%s wrote no two lines of metrics with tokens, so its speed is not known. docs/reference/metrics.md "+
			"explains them.",
			c.Script.Path))
	}
	return rate.perSecond(), nil
}

// watch returns the last statuses of the job once it has ended on all nodes. If a rank fails it stops the others, which may wait for it.
func (c *Check) watch(ctx context.Context, j jobs.Job) []agent.JobStatus {
	var mu sync.Mutex
	last := map[int]agent.JobStatus{}
	stop := sync.OnceFunc(func() { j.Stop(ctx, agent.Stop{Reason: "another rank failed", Grace: grace}) })
	j.Follow(ctx, func(e jobs.Event) {
		if e.Kind != jobs.Reported {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if last[e.Node] = e.Status; failed(e.Status) {
			go stop()
		}
	})
	var statuses []agent.JobStatus
	for _, client := range c.Nodes {
		if status, known := last[client.Node()]; known {
			statuses = append(statuses, status)
		}
	}
	return statuses
}

// tokenRate is the tokens that were processed between the first and the last line of metrics: what comes before the first step is
// no training.
type tokenRate struct {
	first, last struct {
		at     time.Time
		tokens float64
	}
}

func (r *tokenRate) add(line map[string]any, now time.Time) {
	tokens, ok := metrics.Number(line, "tokens")
	if !ok {
		return
	}
	if written, ok := metrics.Time(line); ok {
		now = written
	}
	r.last.at, r.last.tokens = now, tokens
	if r.first.at.IsZero() {
		r.first = r.last
	}
}

func (r *tokenRate) perSecond() float64 {
	elapsed := r.last.at.Sub(r.first.at).Seconds()
	if elapsed <= 0 {
		return 0
	}
	return max(0, r.last.tokens-r.first.tokens) / elapsed
}
