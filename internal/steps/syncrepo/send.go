// SPDX-License-Identifier: Apache-2.0

// Package syncrepo puts one commit of a repository on all nodes of an environment.
package syncrepo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// reachTime is how long agents may take to answer the first request.
const reachTime = time.Minute

type sender struct {
	nodes nodes.Set
	log   *slog.Logger
	// volumes looks at the nodes' workspaces, once.
	volumes func() (storage, error)
}

func newSender(ctx context.Context, set nodes.Set, log *slog.Logger) sender {
	return sender{nodes: set, log: log, volumes: sync.OnceValues(func() (storage, error) { return look(ctx, set) })}
}

// send sends the tree to every node that has a volume of its own, in parallel, and returns when all nodes have confirmed
// its hash. It switches nothing.
func (s sender) send(ctx context.Context, dir string, m tree.Manifest) (tree.Digest, error) {
	p, err := newParcel(dir, m)
	if err != nil {
		return "", err
	}
	found, err := s.volumes()
	if err != nil {
		return "", err
	}
	volumes, sharing := found.volumes, found.sharing
	began := time.Now()
	stop := s.progress(ctx, &p.sent)
	err = s.sendAll(ctx, volumes, p)
	stop()
	if err != nil {
		return "", err
	}
	// The nodes that received the tree have confirmed it. The others check their shared volume.
	err = sharing.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		t := p.askMissing(ctx, client)
		if t.err == nil && !t.present {
			return fail.Becausef(fail.SyncFailed, "confirming tree %s: node %d does not hold it", p.hash, client.Node())
		}
		return t.err
	})
	if err != nil {
		return "", err
	}
	passed := ""
	if p.passed > 0 {
		passed = fmt.Sprintf("; in %s nodes passed the tree on to %d of them", humanize.Count(p.waves, "wave"), p.passed)
	}
	s.log.Info(fmt.Sprintf("Tree %.12s is on %s after %.2f s; %s were sent, compressed, to %s%s.",
		p.hash, humanize.Count(len(s.nodes), "node"), time.Since(began).Seconds(), humanize.Bytes(p.sent.Load()),
		humanize.Count(len(volumes), "volume"), passed), "event", "tree-sent",
		"tree", p.hash, "nodes", len(s.nodes), "seconds", time.Since(began).Seconds(), "bytes", p.sent.Load(), "volumes", len(volumes), "passed",
		p.passed, "waves", p.waves)
	return p.hash, nil
}

// storage has one node of each distinct workspace in volumes; sharing are the others.
type storage struct{ volumes, sharing nodes.Set }

// look asks the nodes for their workspaces.
func look(ctx context.Context, set nodes.Set) (found storage, err error) {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	workspaces, err := nodes.AskAll(ctx, set, func(client *agent.Client, ctx context.Context) (agent.Volume, error) {
		workspace, err := client.Workspace(ctx)
		if err == nil && workspace.ID == "" {
			err = fail.Becausef(fail.SyncFailed, "looking at the workspace of node %d: %s", client.Node(), workspace.Problem)
		}
		return workspace, err
	})
	seen := map[string]bool{}
	for i, client := range set {
		if seen[workspaces[i].ID] {
			found.sharing = append(found.sharing, client)
		} else {
			found.volumes = append(found.volumes, client)
		}
		seen[workspaces[i].ID] = true
	}
	return found, err
}

// sendAll asks all nodes what they miss. Nodes that miss the same contents, as most do, share one stream, which is read
// and compressed once. Many nodes pass the tree on to each other.
func (s sender) sendAll(ctx context.Context, volumes nodes.Set, p *parcel) error {
	tries := make([]try, len(s.nodes)) // by node
	err := volumes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		tries[client.Node()] = p.askMissing(ctx, client)
		return nil // persist decides about the error
	})
	if err != nil {
		return err
	}
	if slices.ContainsFunc(volumes, func(client *agent.Client) bool { return !tries[client.Node()].present }) {
		defer s.nodes.WaitForTurn(ctx, s.log, nodes.TurnTime)()
	}
	direct, passed := p.splitTargets(volumes, tries)
	s.streamAll(ctx, direct, p, tries)
	s.streamAll(ctx, s.passOn(ctx, volumes, passed, p, tries), p, tries)
	return volumes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return s.persist(ctx, client, p, tries[client.Node()])
	})
}

// streamAll sends to nodes what they miss, with one stream for those that miss the same.
func (s sender) streamAll(ctx context.Context, to nodes.Set, p *parcel, tries []try) {
	var streams sync.WaitGroup
	for i, first := range to {
		if tries[first.Node()].streamed { // its stream may have set its error since
			continue
		}
		want := tries[first.Node()]
		var same nodes.Set
		for _, client := range to[i:] {
			if t := &tries[client.Node()]; !t.streamed && t.first == want.first && t.begun == want.begun && slices.Equal(t.missing, want.missing) {
				t.streamed = true
				same = append(same, client)
			}
		}
		streams.Go(func() {
			for client, err := range s.stream(ctx, same, p, want) {
				tries[client.Node()].err = err
			}
		})
	}
	streams.Wait()
}

// try is one attempt to send a node what it misses.
type try struct {
	// present is true if the node has the whole tree.
	present bool
	// missing marks the entries of the manifest whose contents the node misses, each content once; nil for none. Lists of
	// digests would need eighty times the memory, for each node.
	missing []bool
	// first is the content of which the node has the first bytes, begun of them, "" for none. It is sent first.
	first    tree.Digest
	begun    int64
	streamed bool
	err      error
}

// persist retries a failed try. After a broken connection the node still has what it received. The connection may break any number of
// times, as one through a balancer with a time limit does, if enough passes each time. A node that misses more than it reported, because
// its files changed meanwhile, is asked once more.
func (s sender) persist(ctx context.Context, client *agent.Client, p *parcel, t try) error {
	const attempts = 5
	asked, left := false, p.bytesMissing(t)
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
			if asked || !p.missesMore(ctx, client, t) {
				return t.err
			}
			asked = true
		default:
			return t.err
		}
		s.log.Warn(fmt.Sprintf("Sending to node %d again: %v", client.Node(), t.err))
		if t = p.askMissing(ctx, client); t.err == nil && !t.present {
			if now := p.bytesMissing(t); left-now >= leastPassed {
				left, attempt = now, 0
			}
			t.err = s.stream(ctx, nodes.Set{client}, p, t)[client]
		}
	}
	return t.err
}

func reach(ctx context.Context, client *agent.Client) error {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	return nodes.RetryUnreachable(ctx, func() error {
		_, err := client.Health(ctx)
		return err
	})
}

// progress logs every few seconds how much was sent, until the returned function is called.
func (s sender) progress(ctx context.Context, sent *atomic.Int64) func() {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		_ = wait.PollUntilContextCancel(ctx, 5*time.Second, false, func(context.Context) (bool, error) {
			s.log.Info(fmt.Sprintf("  %s sent", humanize.Bytes(sent.Load())))
			return false, nil
		})
	})
	return func() { cancel(); group.Wait() }
}

// switchTo makes the tree the current one on all nodes. On a shared workspace the repeated switch changes nothing.
func (s sender) switchTo(ctx context.Context, hash tree.Digest, venv string) error {
	err := s.nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		_, err := client.SwitchTree(ctx, hash, agent.Switch{Venv: venv})
		return err
	})
	if err == nil {
		s.log.Debug(fmt.Sprintf("Tree %.12s is the current one on all nodes.", hash))
	}
	return err
}

// parcel is the tree to send.
type parcel struct {
	dir      string
	manifest tree.Manifest
	// encoded is the manifest in JSON, once for all nodes.
	encoded []byte
	hash    tree.Digest
	// first is the first entry of each content.
	first map[tree.Digest]int
	// streams limits the streams at the same time: each has a compressor, and a table of the tree's files.
	streams chan struct{}
	// sent counts the compressed bytes to all nodes.
	sent atomic.Int64
	// passed counts the nodes that got the tree from others, in so many waves.
	passed, waves int
}

func newParcel(dir string, m tree.Manifest) (*parcel, error) {
	encoded, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding the manifest of %s: %w", dir, err)
	}
	const streams = 4
	p := &parcel{dir: dir, manifest: m, encoded: encoded, hash: m.Hash(), first: make(map[tree.Digest]int, len(m.Entries)),
		streams: make(chan struct{}, streams)}
	for i, e := range slices.Backward(m.Entries) {
		if e.Kind == tree.File {
			p.first[e.Content] = i
		}
	}
	return p, nil
}

// askMissing asks a node what it misses: contents of the tree, each once. An agent that asks for more could keep the step
// sending without end.
func (p *parcel) askMissing(ctx context.Context, client *agent.Client) (t try) {
	var first tree.Digest
	t.present, t.begun, t.err = client.PlanTree(ctx, p.hash, p.encoded, func(content tree.Digest) error {
		if t.missing == nil {
			first, t.missing = content, make([]bool, len(p.manifest.Entries))
		}
		i, ok := p.first[content]
		if !ok || t.missing[i] {
			return fail.Becausef(fail.SyncFailed, "sending tree %s: node %d asks for content %.64q, which is not in the tree or was asked "+
				"for before", p.hash, client.Node(), content)
		}
		t.missing[i] = true
		return nil
	})
	if i, ok := p.first[first]; ok && t.begun > 0 && t.begun < p.manifest.Entries[i].Size {
		t.first = first
	} else {
		t.begun = 0
	}
	return t
}

// missesMore reports whether a node has lost contents, or the part of one, since it was asked.
func (p *parcel) missesMore(ctx context.Context, client *agent.Client, before try) bool {
	now := p.askMissing(ctx, client)
	lost := now.first != before.first || now.begun != before.begun
	for i, missing := range now.missing {
		lost = lost || missing && (before.missing == nil || !before.missing[i])
	}
	return lost && now.err == nil
}

// bytesMissing returns how many bytes a node misses, the most possible ones if it was not asked.
func (p *parcel) bytesMissing(t try) int64 {
	if t.missing == nil {
		return math.MaxInt64
	}
	return p.sizeOf(t.missing) - t.begun
}

// contents lists what a node misses, in the order in which it is sent.
func (p *parcel) contents(t try) (contents []tree.Digest) {
	if t.first != "" {
		contents = append(contents, t.first)
	}
	for i, wanted := range t.missing {
		if content := p.manifest.Entries[i].Content; wanted && content != t.first {
			contents = append(contents, content)
		}
	}
	return contents
}

// stream sends the same contents to several nodes at once and returns the errors of those that did not receive them all.
func (s sender) stream(ctx context.Context, to nodes.Set, p *parcel, t try) map[*agent.Client]error {
	p.streams <- struct{}{}
	defer func() { <-p.streams }()
	var mu sync.Mutex
	failed := map[*agent.Client]error{}
	out := &fanOut{}
	var sending sync.WaitGroup
	for _, client := range to {
		reader, writer := io.Pipe()
		out.to = append(out.to, writer)
		sending.Go(func() {
			state, err := client.SendTree(ctx, p.hash, t.begun, &byteCounter{Reader: reader, n: &p.sent})
			reader.CloseWithError(context.Canceled)
			if err == nil && state.Hash != p.hash {
				err = fail.Becausef(fail.SyncFailed, "sending tree %s: node %d holds %s", p.hash, client.Node(), state.Hash)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[client] = err
			}
		})
	}
	wrote := tree.WriteContents(ctx, out, p.dir, p.manifest, p.contents(t), map[tree.Digest]int64{t.first: t.begun})
	out.close(wrote)
	sending.Wait()
	// A problem with the files is the cause of the nodes' errors.
	if wrote != nil && !errors.Is(wrote, context.Canceled) && fail.ReasonOf(wrote) != fail.Internal {
		for _, client := range to {
			failed[client] = wrote
		}
	}
	return failed
}

// fanOut writes to several pipes at once. It drops a pipe whose reader has closed; without pipes it returns
// context.Canceled.
type fanOut struct{ to []*io.PipeWriter }

func (f *fanOut) Write(data []byte) (int, error) {
	f.to = slices.DeleteFunc(parallel.Map(f.to, func(pipe *io.PipeWriter) *io.PipeWriter {
		if _, err := pipe.Write(data); err != nil {
			return nil
		}
		return pipe
	}), func(pipe *io.PipeWriter) bool { return pipe == nil })
	if len(f.to) == 0 {
		return 0, context.Canceled
	}
	return len(data), nil
}

func (f *fanOut) close(err error) {
	for _, pipe := range f.to {
		pipe.CloseWithError(err)
	}
}

type byteCounter struct {
	io.Reader
	n *atomic.Int64
}

func (c *byteCounter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}
