// Package syncrepo puts one commit of a repository on all nodes of an
// environment.
package syncrepo

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// reachTime is how long agents may take to answer the first question.
const reachTime = time.Minute

// sender sends a tree to the nodes.
type sender struct {
	nodes nodes.Set
	log   *slog.Logger
}

// send brings the tree to every node that has a volume of its own, in parallel,
// and returns when all nodes have confirmed its hash. Nothing is switched yet.
func (s sender) send(ctx context.Context, dir string, m tree.Manifest) (tree.Digest, error) {
	p := parcel{dir: dir, manifest: m, hash: m.Hash()}
	volumes, sharing, err := s.volumes(ctx)
	if err != nil {
		return "", err
	}
	began := time.Now()
	stop := s.progress(ctx, &p.sent)
	err = s.sendAll(ctx, volumes, &p)
	stop()
	if err != nil {
		return "", err
	}
	// A node that was sent the tree has confirmed it. The others look for themselves.
	err = sharing.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		plan, err := client.PlanTree(ctx, p.hash, m)
		if err == nil && !plan.Present {
			err = fail.Becausef(fail.SyncFailed, "confirming tree %s: node %d does not hold it", p.hash, client.Node())
		}
		return err
	})
	if err != nil {
		return "", err
	}
	s.log.Info(fmt.Sprintf("Tree %.12s is on %s after %.2f s; %s were sent, compressed, to %s.",
		p.hash, humanize.Count(len(s.nodes), "node"), time.Since(began).Seconds(), humanize.Bytes(p.sent.Load()), humanize.Count(len(volumes), "volume")), "tree", p.hash, "nodes", len(s.nodes), "seconds", time.Since(began).Seconds(), "bytes", p.sent.Load(), "volumes", len(volumes))
	return p.hash, nil
}

// volumes picks one node of each distinct workspace; sharing are the others.
func (s sender) volumes(ctx context.Context) (volumes, sharing nodes.Set, err error) {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	ids := make([]string, len(s.nodes))
	err = s.nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return nodes.Retry(ctx, func() error {
			workspace, err := client.Workspace(ctx)
			if err == nil && workspace.ID == "" {
				err = fail.Becausef(fail.SyncFailed, "looking at the workspace of node %d: %s", client.Node(), workspace.Problem)
			}
			ids[client.Node()] = workspace.ID
			return err
		})
	})
	if err != nil {
		return nil, nil, err
	}
	seen := map[string]bool{}
	for i, client := range s.nodes {
		if seen[ids[i]] {
			sharing = append(sharing, client)
		} else {
			volumes = append(volumes, client)
		}
		seen[ids[i]] = true
	}
	return volumes, sharing, nil
}

// sendAll asks all nodes what they miss. Those that miss the same, as they mostly
// do, get one stream, which is read and compressed once.
func (s sender) sendAll(ctx context.Context, volumes nodes.Set, p *parcel) error {
	tries := make([]try, len(volumes))
	index := map[*agent.Client]int{}
	for i, client := range volumes {
		index[client] = i
	}
	err := volumes.Each(ctx, func(ctx context.Context, client *agent.Client) (err error) {
		t := &tries[index[client]]
		t.plan, t.err = client.PlanTree(ctx, p.hash, p.manifest)
		return nil // what can be done about it is decided below
	})
	if err != nil {
		return err
	}
	var streams sync.WaitGroup
	for i := range tries {
		if tries[i].err != nil || tries[i].plan.Present || tries[i].streamed {
			continue
		}
		var same nodes.Set
		for j := i; j < len(tries); j++ {
			if t := &tries[j]; t.err == nil && !t.plan.Present && !t.streamed && slices.Equal(t.plan.Missing, tries[i].plan.Missing) {
				t.streamed = true
				same = append(same, volumes[j])
			}
		}
		streams.Go(func() {
			for client, err := range s.stream(ctx, same, p, tries[i].plan.Missing) {
				tries[index[client]].err = err
			}
		})
	}
	streams.Wait()
	return volumes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return s.persist(ctx, client, p, tries[index[client]])
	})
}

// try is one attempt to send a node what it misses.
type try struct {
	plan     agent.TreePlan
	streamed bool
	err      error
}

// persist goes on after a try that failed. A connection that breaks is tried
// again: the node remembers what it got. A node whose files changed between what
// it said and what it was sent, so that it misses more, is asked once more.
func (s sender) persist(ctx context.Context, client *agent.Client, p *parcel, t try) error {
	const attempts = 5
	asked := false
	for attempt := 1; t.err != nil && ctx.Err() == nil; attempt++ {
		switch fail.ReasonOf(t.err) {
		case fail.AgentUnreachable:
			if attempt == attempts {
				return fail.Because(fail.SyncFailed, fmt.Errorf("sending tree %s: gave up after %d attempts: %w", p.hash, attempts, t.err))
			}
			if err := reach(ctx, client); err != nil {
				return err
			}
		case fail.SyncFailed:
			if asked || !s.missesMore(ctx, client, p, t.plan.Missing) {
				return t.err
			}
			asked = true
		default:
			return t.err
		}
		s.log.Warn(fmt.Sprintf("Sending to node %d again: %v", client.Node(), t.err), "node", client.Node(), "error", t.err)
		if t.plan, t.err = client.PlanTree(ctx, p.hash, p.manifest); t.err == nil && !t.plan.Present {
			t.err = s.stream(ctx, nodes.Set{client}, p, t.plan.Missing)[client]
		}
	}
	return t.err
}

// missesMore is true of a node that does not have what it had when it was asked.
func (s sender) missesMore(ctx context.Context, client *agent.Client, p *parcel, missing []tree.Digest) bool {
	plan, err := client.PlanTree(ctx, p.hash, p.manifest)
	return err == nil && slices.ContainsFunc(plan.Missing, func(content tree.Digest) bool { return !slices.Contains(missing, content) })
}

// reach waits until the agent answers.
func reach(ctx context.Context, client *agent.Client) error {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	return nodes.Retry(ctx, func() error {
		_, err := client.Health(ctx)
		return err
	})
}

// progress says now and then how much was sent, until the returned function is called.
func (s sender) progress(ctx context.Context, sent *atomic.Int64) func() {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		ticker := time.NewTicker(5 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				s.log.Info(fmt.Sprintf("  %s sent", humanize.Bytes(sent.Load())), "bytes", sent.Load())
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); group.Wait() }
}

// switchTo makes the tree the current one on all nodes. Where nodes share the
// workspace the switch is repeated, which changes nothing.
func (s sender) switchTo(ctx context.Context, hash tree.Digest, venv string) error {
	err := s.nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		_, err := client.SwitchTree(ctx, hash, agent.Switch{Venv: venv})
		return err
	})
	if err == nil {
		s.log.Info(fmt.Sprintf("%s is tree %.12s on all nodes now.", agent.Current, hash), "tree", hash)
	}
	return err
}
