// SPDX-License-Identifier: Apache-2.0

// Package jobs starts a job on the nodes of an environment, follows it through broken connections, and stops it.
package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
)

const (
	// Reachable is how long an agent may not answer before its node counts as lost.
	Reachable = 2 * time.Minute
	// stopTime is how long agents may take to accept the order to stop.
	stopTime = 5 * time.Second
	// Settle is how long the ranks have to show their own errors after a rank lost its peers.
	Settle = 3 * time.Second
	// Grace is between SIGTERM and SIGKILL after another rank failed. With Settle it keeps the promise that the
	// rest is stopped within 10 s.
	Grace = 5 * time.Second
	// answerTime bounds a question to a member that may be lost.
	answerTime = 10 * time.Second
	// SavingEvery is the time between two lines about ranks that are still saving.
	SavingEvery = 10 * time.Second
)

// Job is one job on some or all nodes of an environment, each of which runs a part of it.
type Job struct {
	ID      string
	Members nodes.Set
	// Gone returns an error if a member that does not answer will never answer again; nil if nothing else is known of the nodes.
	Gone func(ctx context.Context, node int) error
}

// SameSpec gives all members of a job the same spec.
func SameSpec(spec agent.JobSpec) func(place int) (agent.JobSpec, error) {
	return func(int) (agent.JobSpec, error) { return spec, nil }
}

// Start starts every member's part, and tries again while an agent does not answer. attached reports whether a part existed before.
// The errors are in the members' order. After an error Start waits for no agent that does not answer, and leaves it to the caller to
// stop the parts that have started.
func (j Job) Start(ctx context.Context, spec func(place int) (agent.JobSpec, error)) (attached bool, errs []error) {
	waiting, refused := context.WithCancel(ctx)
	defer refused()
	var existed atomic.Bool
	places := j.Members.Places()
	errs = parallel.Map(j.Members, func(client *agent.Client) error {
		own, err := spec(places[client])
		if err == nil {
			err = nodes.RetryUnreachable(waiting, func() error {
				// Not waiting: a request that is given up may start the part after the caller has stopped the job.
				status, err := client.StartJob(ctx, j.ID, own)
				if err == nil && !status.New {
					existed.Store(true)
				}
				return err
			})
		}
		if err != nil {
			refused()
		}
		return err
	})
	return existed.Load(), errs
}

// Stop asks all members at once to end their parts, even if ctx has ended, and does not wait for the end. A member without the job has
// nothing to end. The errors are in the members' order: what one member answers does not matter to the others.
func (j Job) Stop(ctx context.Context, stop agent.Stop) []error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	return parallel.Map(j.Members, func(client *agent.Client) error {
		return agent.IgnoreNotFound(client.StopJob(ctx, j.ID, stop))
	})
}

// StopAndWait stops what still runs of the job, and waits until it has ended. It tries for as long as ctx allows.
func (j Job) StopAndWait(ctx context.Context, stop agent.Stop) error {
	return j.Members.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return agent.IgnoreNotFound(nodes.RetryUnreachable(ctx, func() error {
			if err := client.StopJob(ctx, j.ID, stop); err != nil {
				return err
			}
			return j.watch(ctx, client, func(Event) {})
		}))
	})
}

// Run starts the job and waits until it has ended. If it cannot, or if ctx ends, it stops the job.
func (j Job) Run(ctx context.Context, spec agent.JobSpec, stop agent.Stop) (last []agent.JobStatus, err error) {
	starting, cancel := context.WithTimeout(ctx, Reachable)
	defer cancel()
	_, errs := j.Start(starting, SameSpec(spec))
	if err = errors.Join(errs...); err == nil {
		last, err = j.Wait(ctx)
	}
	if err != nil {
		j.Stop(ctx, stop)
	}
	return last, err
}

// Wait waits until all members' parts have ended, and returns their last statuses in the members' order. The first member that is lost
// ends it with an error; a member that does not know the job is agent.IsNotFound.
func (j Job) Wait(ctx context.Context) ([]agent.JobStatus, error) {
	last := make([]agent.JobStatus, len(j.Members))
	places := j.Members.Places()
	err := j.Members.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return j.watch(ctx, client, func(e Event) {
			if e.Kind == Reported {
				last[places[client]] = e.Status
			}
		})
	})
	return last, err
}

// Statuses asks all members for their parts once. A member that does not know the job has a status without ID. After an error the
// statuses of those that have answered stay.
func (j Job) Statuses(ctx context.Context) ([]agent.JobStatus, error) {
	statuses := make([]agent.JobStatus, len(j.Members))
	places := j.Members.Places()
	err := j.Members.Each(ctx, func(ctx context.Context, client *agent.Client) (err error) {
		statuses[places[client]], err = client.Job(ctx, j.ID)
		return agent.IgnoreNotFound(err)
	})
	return statuses, err
}

// Answers returns the statuses of the members that answer soon and know the job: a lost one does not delay the others, or end them.
func (j Job) Answers(ctx context.Context) []agent.JobStatus {
	statuses := parallel.Map(j.Members, func(client *agent.Client) agent.JobStatus {
		asking, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		status, err := client.Job(asking, j.ID)
		if err != nil {
			return agent.JobStatus{}
		}
		return status
	})
	return slices.DeleteFunc(statuses, func(s agent.JobStatus) bool { return s.ID == "" })
}

// ShowSaving calls say with the ranks that are still saving, again and again until ctx ends.
func (j Job) ShowSaving(ctx context.Context, say func(who string)) {
	ticker := time.NewTicker(SavingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if who := agent.Saving(j.Answers(ctx), time.Now()); who != "" && ctx.Err() == nil {
			say(who)
		}
	}
}

// Running asks all nodes once which jobs run on them. A job of several nodes has a status of each.
func Running(ctx context.Context, set nodes.Set) ([]agent.JobStatus, error) {
	found := make([][]agent.JobStatus, len(set))
	places := set.Places()
	err := set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		facts, err := client.Facts(ctx)
		if err != nil {
			return err
		}
		for _, id := range facts.Running {
			status, err := client.Job(ctx, id)
			if agent.IgnoreNotFound(err) != nil {
				return err
			}
			if err == nil && status.State == agent.Running { // else it has ended meanwhile
				found[places[client]] = append(found[places[client]], status)
			}
		}
		return nil
	})
	return slices.Concat(found...), err
}

// Kind is what an Event reports.
type Kind int

const (
	// Reported means that the member has a new status.
	Reported Kind = iota
	// Silent means that the member does not answer any more, or not yet; the follower tries again.
	Silent
	// Lost means that the member reports nothing any more.
	Lost
)

// Event is news of one member.
type Event struct {
	Node   int
	Kind   Kind
	Status agent.JobStatus
	// Err is why the member is Silent or Lost: an answer of agent.IsNotFound, the error of Gone, or Reachable has passed.
	Err error
}

// Follow calls each for the events of all members until all parts have ended or are lost, or ctx is done. It calls each for several
// members at once.
func (j Job) Follow(ctx context.Context, each func(Event)) {
	parallel.Map(j.Members, func(client *agent.Client) error { return j.watch(ctx, client, each) })
}

// watch calls each for the events of one member, until its part has ended, which is not an error, or it is lost, or ctx is done.
func (j Job) watch(ctx context.Context, client *agent.Client, each func(Event)) error {
	var silentSince time.Time
	var broken error
	again := nodes.RetryUntilDone(ctx)
	for {
		over := false
		err := client.WatchJob(ctx, j.ID, func(status agent.JobStatus) error {
			silentSince, broken, over = time.Time{}, nil, status.State != agent.Running
			each(Event{Node: client.Node(), Status: status})
			return ctx.Err()
		})
		switch {
		case over:
			return nil
		case ctx.Err() != nil: // an earlier error is the cause
			return cmp.Or(broken, err, ctx.Err())
		case err == nil:
			// The agent ends, or knows a job that runs no more and has not recorded its end.
			err = fail.Becausef(fail.AgentUnreachable, "watching job %s on node %d: its end is not recorded", j.ID, client.Node())
		}
		if silentSince.IsZero() && !agent.IsNotFound(err) {
			silentSince = time.Now()
			each(Event{Node: client.Node(), Kind: Silent, Err: err})
		}
		broken = err
		if err := j.lost(ctx, client.Node(), silentSince, err); err != nil {
			each(Event{Node: client.Node(), Kind: Lost, Err: err})
			return err
		}
		_ = again(err)
	}
}

// lost returns the error of a member that will report nothing any more; err ended the latest connection.
func (j Job) lost(ctx context.Context, node int, silentSince time.Time, err error) error {
	if agent.IsNotFound(err) {
		return err
	}
	if j.Gone != nil {
		if gone := j.Gone(ctx, node); gone != nil {
			return gone
		}
	}
	if time.Since(silentSince) > Reachable {
		return fmt.Errorf("the agent of node %d has not answered for %s: %w", node, Reachable, err)
	}
	return nil
}
