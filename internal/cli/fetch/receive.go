// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// pageTime is how long the pod that reads a claim may work on a part of a list: less than the shortest limits of
// balancers, which are 30 seconds.
const pageTime = 15 * time.Second

// listing has the files at some paths of a claim.
type listing struct {
	Manifest tree.Manifest
	agent.Looked
}

// listFiles lists the files at the paths. Paths without a file are Absent. It reads no large file again of which known has the digest.
func (p *pod) listFiles(ctx context.Context, paths []string, known *memory) (found listing, err error) {
	request := agent.PageRequest{Paths: paths, From: tree.Cursor{Known: known.Files}, Seconds: pageTime.Seconds()}
	for {
		var page agent.FilePage
		if err := p.askAgain(ctx, request, &page, "page", agent.Workspace); err != nil {
			return found, fmt.Errorf("listing files: %w", err)
		}
		found.Manifest.Entries, found.Looked = append(found.Manifest.Entries, page.Entries...), page.Looked
		known.learn(page.Files)
		if page.Next == nil {
			break
		}
		request.From = *page.Next
	}
	return found, found.Manifest.Check()
}

// ask runs a file command with a request in JSON, and decodes its answer.
func (p *pod) ask(ctx context.Context, request, result any, args ...string) error {
	content, err := json.Marshal(request)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := p.run(ctx, bytes.NewReader(content), &out, args...); err != nil {
		return err
	}
	if err := json.Unmarshal(out.Bytes(), result); err != nil {
		return fmt.Errorf("reading the answer of pod %s: %w", p.name, errors.Join(io.ErrUnexpectedEOF, err))
	}
	return nil
}

// askAgain is ask over connections that may break.
func (p *pod) askAgain(ctx context.Context, request, result any, args ...string) error {
	for failures := 1; ; failures++ {
		err := p.ask(ctx, request, result, args...)
		if err == nil || failures == attempts || !broken(ctx, err) || !kube.SleepContext(ctx, p.pause) {
			return err
		}
	}
}

// receiver takes contents, and remembers the part of one that broke off.
type receiver interface {
	Missing() []tree.Digest
	From() map[tree.Digest]int64
	Begun(tree.Digest) tree.Begun
	Put(tree.Digest, io.Reader) error
}

// receive has the pod send the contents that the receiver misses. A connection may break any number of times, as those through a
// balancer with a time limit do, if something passes each time or nearly.
func (p *pod) receive(ctx context.Context, m tree.Manifest, to receiver) error {
	if len(to.Missing()) == 0 {
		return nil
	}
	for failures := 0; ; {
		before := progressOf(to)
		err := p.send(ctx, m, to)
		if err == nil {
			return nil
		}
		if failures++; progressOf(to) != before {
			failures = 0
		}
		if failures == attempts || !broken(ctx, err) || !kube.SleepContext(ctx, p.pause) {
			return err
		}
	}
}

// progress is how much a transfer has brought.
type progress struct {
	missing int
	bytes   int64
}

func progressOf(r receiver) progress {
	p := progress{missing: len(r.Missing())}
	for _, size := range r.From() {
		p.bytes += size
	}
	return p
}

// broken reports whether the connection was at fault, rather than the file, the command in the pod, or this machine.
func broken(ctx context.Context, err error) bool {
	var exit *kube.ExitError
	var local *fs.PathError
	final := errors.As(err, &exit) || errors.As(err, &local) || errors.Is(err, tree.ErrDamaged)
	return ctx.Err() == nil && !final
}

// send has the pod send once what the receiver misses; every content is verified as it is read.
func (p *pod) send(ctx context.Context, m tree.Manifest, to receiver) error {
	wanted, err := json.Marshal(agent.FileRequest{Manifest: m, Missing: to.Missing(), From: to.From()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader, writer := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := p.run(ctx, bytes.NewReader(wanted), writer, "send", agent.Workspace)
		writer.CloseWithError(err)
		sent <- err
	}()
	err = tree.ReadContents(ctx, reader, m.Sizes(), to.Begun, to.Put)
	reader.CloseWithError(context.Canceled)
	cancel()
	failed := <-sent
	if err == nil && len(to.Missing()) > 0 {
		return fmt.Errorf("receiving files: the stream has ended before the last one: %w", errors.Join(io.ErrUnexpectedEOF, failed))
	}
	// The reader's error contains the pod's, unless the stream was broken.
	if err != nil && failed != nil && !errors.Is(failed, context.Canceled) && !errors.Is(err, failed) {
		return fmt.Errorf("%w (%w)", err, failed)
	}
	return err
}

// memory is what the list of an earlier fetch, which broke off, knows of large files. It lies in the folder of the fetched files.
type memory struct {
	Claim string       `json:"claim"`
	Files []tree.Known `json:"files"`
	path  string
}

// openMemory reads what a fetch from the same claim has left, if there is something.
func openMemory(folder, claim string) *memory {
	const most = 16 << 20
	m := &memory{path: filepath.Join(folder, tree.Partial+"files")}
	if claimfile.ReadJSON(m.path, most, m) != nil || m.Claim != claim {
		m.Files = nil
	}
	m.Claim = claim
	m.Files = slices.DeleteFunc(m.Files, func(k tree.Known) bool { return k.Content == "" })
	return m
}

// learn replaces what is known of the files.
func (m *memory) learn(files []tree.Known) {
	m.Files = slices.DeleteFunc(m.Files, func(old tree.Known) bool {
		return slices.ContainsFunc(files, func(k tree.Known) bool { return k.Path == old.Path })
	})
	m.Files = append(m.Files, files...)
}

func (m *memory) save() error {
	if len(m.Files) == 0 {
		return nil
	}
	content, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return claimfile.Replace(m.path, filepath.Dir(m.path), content)
}

func (m *memory) remove() error {
	if err := os.Remove(m.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
