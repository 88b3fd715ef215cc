// Package syncrepo puts one commit of a repository on all nodes of an
// environment.
package syncrepo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/words"
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
	hash := m.Hash()
	volumes, err := s.volumes(ctx)
	if err != nil {
		return "", err
	}
	began := time.Now()
	var sent atomic.Int64
	stop := s.progress(ctx, &sent)
	err = volumes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return s.sendTo(ctx, client, dir, hash, m, &sent)
	})
	stop()
	if err != nil {
		return "", err
	}
	// Every node looks for itself, those too that only share what another got.
	err = s.nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		plan, err := client.PlanTree(ctx, hash, m)
		if err == nil && !plan.Present {
			err = fail.Becausef(fail.SyncFailed, "confirming tree %s: node %d does not hold it", hash, client.Node())
		}
		return err
	})
	if err != nil {
		return "", err
	}
	s.log.Info(fmt.Sprintf("Tree %.12s is on %s after %.2f s; %.1f MB were sent, compressed, to %s.",
		hash, words.Count(len(s.nodes), "node"), time.Since(began).Seconds(), float64(sent.Load())/1e6, words.Count(len(volumes), "volume")))
	return hash, nil
}

// volumes picks one node of each distinct workspace.
func (s sender) volumes(ctx context.Context) (nodes.Set, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	ids := make([]string, len(s.nodes))
	err := s.nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return nodes.Retry(ctx, func() error {
			facts, err := client.Facts(ctx)
			if err == nil && facts.Workspace.ID == "" {
				err = fail.Becausef(fail.SyncFailed, "looking at the workspace of node %d: %s", client.Node(), facts.Workspace.Problem)
			}
			ids[client.Node()] = facts.Workspace.ID
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var distinct nodes.Set
	for i, client := range s.nodes {
		if !seen[ids[i]] {
			distinct = append(distinct, client)
		}
		seen[ids[i]] = true
	}
	return distinct, nil
}

// sendTo sends what the node does not have. A connection that breaks is tried
// again: the node remembers what it got. A node whose files changed between what
// it said and what it was sent, so that it misses more, is asked once more.
func (s sender) sendTo(ctx context.Context, client *agent.Client, dir string, hash tree.Digest, m tree.Manifest, sent *atomic.Int64) error {
	const attempts = 5
	asked := false
	for attempt := 1; ; attempt++ {
		plan, err := client.PlanTree(ctx, hash, m)
		if err == nil && plan.Present {
			return nil
		}
		if err == nil {
			err = s.stream(ctx, client, dir, hash, m, plan.Missing, sent)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		switch fail.ReasonOf(err) {
		case fail.AgentUnreachable:
			if attempt == attempts {
				return fail.Because(fail.SyncFailed, fmt.Errorf("sending tree %s: gave up after %d attempts: %w", hash, attempts, err))
			}
			if err := reach(ctx, client); err != nil {
				return err
			}
		case fail.SyncFailed:
			if asked || !s.missesMore(ctx, client, hash, m, plan.Missing) {
				return err
			}
			asked = true
		default:
			return err
		}
		s.log.Warn(fmt.Sprintf("Sending to node %d again: %v", client.Node(), err))
	}
}

// missesMore is true of a node that does not have what it had when it was asked.
func (s sender) missesMore(ctx context.Context, client *agent.Client, hash tree.Digest, m tree.Manifest, missing []tree.Digest) bool {
	plan, err := client.PlanTree(ctx, hash, m)
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

func (s sender) stream(ctx context.Context, client *agent.Client, dir string, hash tree.Digest, m tree.Manifest, missing []tree.Digest, sent *atomic.Int64) error {
	reader, writer := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := tree.WriteContents(ctx, writer, dir, m, missing)
		writer.CloseWithError(err)
		wrote <- err
	}()
	state, err := client.SendTree(ctx, hash, &counted{Reader: reader, n: sent})
	reader.CloseWithError(context.Canceled)
	// What went wrong with the files is the cause of what the node says.
	if own := <-wrote; own != nil && !errors.Is(own, context.Canceled) && fail.ReasonOf(own) != fail.Internal {
		return own
	}
	if err == nil && state.Hash != hash {
		return fail.Becausef(fail.SyncFailed, "sending tree %s: node %d holds %s", hash, client.Node(), state.Hash)
	}
	return err
}

type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
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
				s.log.Info(fmt.Sprintf("  %.1f MB sent", float64(sent.Load())/1e6))
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
		s.log.Info(fmt.Sprintf("%s is tree %.12s on all nodes now.", agent.Current, hash))
	}
	return err
}
