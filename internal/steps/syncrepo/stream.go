package syncrepo

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// parcel is what is sent.
type parcel struct {
	dir      string
	manifest tree.Manifest
	hash     tree.Digest
	// sent counts bytes to all nodes, as they are compressed.
	sent atomic.Int64
}

// stream sends the same contents to several nodes at once and returns the errors
// of those that did not take them whole.
func (s sender) stream(ctx context.Context, to nodes.Set, p *parcel, missing []tree.Digest) map[*agent.Client]error {
	var mu sync.Mutex
	failed := map[*agent.Client]error{}
	out := &fanOut{}
	var sending sync.WaitGroup
	for _, client := range to {
		reader, writer := io.Pipe()
		out.to = append(out.to, writer)
		sending.Go(func() {
			state, err := client.SendTree(ctx, p.hash, &counted{Reader: reader, n: &p.sent})
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
	wrote := tree.WriteContents(ctx, out, p.dir, p.manifest, missing)
	out.close(wrote)
	sending.Wait()
	// What went wrong with the files is the cause of what the nodes say.
	if wrote != nil && !errors.Is(wrote, context.Canceled) && fail.ReasonOf(wrote) != fail.Internal {
		for _, client := range to {
			failed[client] = wrote
		}
	}
	return failed
}

// fanOut writes the same to several pipes at once. One whose reader is gone is
// left out from then on; when none is left, that is context.Canceled.
type fanOut struct{ to []*io.PipeWriter }

func (f *fanOut) Write(data []byte) (int, error) {
	errs := make([]error, len(f.to))
	var writing sync.WaitGroup
	for i, pipe := range f.to {
		writing.Go(func() { _, errs[i] = pipe.Write(data) })
	}
	writing.Wait()
	left := f.to[:0]
	for i, pipe := range f.to {
		if errs[i] == nil {
			left = append(left, pipe)
		}
	}
	if f.to = slices.Clip(left); len(left) == 0 {
		return 0, context.Canceled
	}
	return len(data), nil
}

// close ends the pipes, well where err is nil.
func (f *fanOut) close(err error) {
	for _, pipe := range f.to {
		pipe.CloseWithError(err)
	}
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
