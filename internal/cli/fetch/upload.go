// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// worthContinuing is the size of contents of which a part is continued, in bytes. Smaller ones are sent again.
const worthContinuing = 1 << 20

// sending is an upload in progress.
type sending struct {
	*pod
	// dir is the folder here, to the one on the claim.
	dir, to string
	// missing has the files that the claim lacks, and all links and empty folders; parts is what the claim has of their contents.
	missing tree.Manifest
	parts   map[tree.Digest]tree.Part
	// all are the bytes that were missing at first, or 0 before they are known; files counts those files.
	all    int64
	files  int
	passed func(sent, all int64)
	// known is what the lists have shown of large files on the claim, so that no attempt reads them again.
	known memory
	// damaged counts the contents that the pod refused.
	damaged int
}

// upload sends the files of a manifest of dir into the folder to of the claim.
func (p *pod) upload(ctx context.Context, dir string, m tree.Manifest, to string, passed func(sent, all int64)) (upload Upload, err error) {
	upload.Files, upload.Bytes = m.Totals()
	s := &sending{pod: p, dir: dir, to: to, missing: m, passed: passed}
	switch err = p.again(ctx, s.progress, func() error { return s.try(ctx) }); {
	case olderAgent(err):
		upload.Sent, err = s.sendAtOnce(ctx)
	case err == nil:
		upload.Sent = s.files
	}
	return upload, err
}

func (s *sending) progress() progress {
	p := progress{missing: len(s.missing.Entries)}
	for _, part := range s.parts {
		p.bytes += part.Size
	}
	return p
}

// try looks what is missing, and sends it.
func (s *sending) try(ctx context.Context) error {
	if err := s.findParts(ctx); err != nil {
		return err
	}
	if err := s.findMissing(ctx); err != nil {
		return err
	}
	if len(s.missing.Entries) == 0 {
		return nil
	}
	result, err := s.sendRest(ctx)
	if err != nil || result.Damaged == "" {
		return err
	}
	if s.damaged++; s.damaged == attempts {
		return fail.Becausef(fail.SyncFailed, "sending files: %d contents were damaged on their way, the last one %s", s.damaged, result.Damaged)
	}
	if err := s.unchanged(ctx, result.Damaged); err != nil {
		return err
	}
	return s.try(ctx) // the pod has deleted the part, which was wrong
}

// unchanged fails if the file of a content has changed here since its hash was taken.
func (s *sending) unchanged(ctx context.Context, content tree.Digest) error {
	at := slices.IndexFunc(s.missing.Entries, func(e tree.Entry) bool { return e.Kind == tree.File && e.Content == content })
	if at < 0 {
		return fail.Becausef(fail.SyncFailed, "sending files: the answer of pod %s names content %s, which was not sent", s.name, content)
	}
	escaped := s.missing.Entries[at].Path
	name, err := tree.Unescape(escaped)
	if err != nil {
		return err
	}
	same := func(e tree.Entry) bool { return e.Path == escaped && e.Content == content }
	now, err := tree.Scan(ctx, s.dir, tree.Only([]string{name}))
	if err == nil && !slices.ContainsFunc(now.Entries, same) {
		err = fail.Becausef(fail.SyncFailed, "sending %s: the file changed since it was scanned: want content %s",
			path.Join(s.dir, name), content)
	}
	if err != nil {
		return &sourceError{err}
	}
	return nil
}

// findParts asks the pod for the parts of contents that broke off.
func (s *sending) findParts(ctx context.Context) error {
	request := agent.UploadRequest{Parts: s.parts, Seconds: pageTime.Seconds()}
	for _, e := range s.missing.Entries {
		if e.Kind == tree.File && e.Size >= worthContinuing {
			request.Manifest.Entries = append(request.Manifest.Entries, e)
		}
	}
	for {
		var found agent.UploadParts
		if err := s.askAgain(ctx, request, &found, "parts", s.folder()); err != nil {
			return fmt.Errorf("looking for parts of files: %w", err)
		}
		request.Parts, s.parts = found.Parts, found.Parts
		if found.All {
			return nil
		}
	}
}

// findMissing asks the pod which of the missing files have arrived.
func (s *sending) findMissing(ctx context.Context) error {
	const atOnce = 10_000
	present := map[string]tree.Digest{}
	for some := range slices.Chunk(s.missing.Entries, atOnce) {
		var paths []string
		for _, e := range some {
			if name, err := tree.Unescape(e.Path); err != nil {
				return err
			} else if e.Kind == tree.File {
				paths = append(paths, path.Join(s.to, name))
			}
		}
		if len(paths) == 0 {
			continue
		}
		found, err := s.list(ctx, paths, &s.known)
		if err != nil {
			return err
		}
		for _, e := range found.Manifest.Entries {
			present[e.Path] = e.Content
		}
	}
	s.missing.Entries = slices.Clone(s.missing.Entries)
	s.missing.Entries = slices.DeleteFunc(s.missing.Entries, func(e tree.Entry) bool {
		return e.Kind == tree.File && present[path.Join(tree.Escape(s.to), e.Path)] == e.Content
	})
	if s.all == 0 {
		s.files, _ = s.missing.Totals()
		for _, size := range s.missing.Sizes() {
			s.all += size
		}
	}
	return nil
}

func (s *sending) folder() string { return path.Join(agent.Workspace, s.to) }

// sendRest sends once what is missing; the pod verifies every content.
func (s *sending) sendRest(ctx context.Context) (result agent.UploadResult, err error) {
	sizes, from := s.missing.Sizes(), map[tree.Digest]int64{}
	var missing []tree.Digest
	for _, e := range s.missing.Entries {
		if size, once := sizes[e.Content]; e.Kind == tree.File && once {
			missing = append(missing, e.Content)
			delete(sizes, e.Content)
			from[e.Content] = min(s.parts[e.Content].Size, size)
		}
	}
	header, err := json.Marshal(agent.UploadRequest{Manifest: s.missing, Parts: s.parts})
	if err != nil {
		return result, err
	}
	content, err := s.stream(ctx, header, "continue", func(w io.Writer) error {
		return tree.WriteRest(ctx, &counter{Writer: w, sent: s.sent(from), all: s.all, passed: s.passed}, s.dir, s.missing, missing, from)
	})
	if err != nil {
		return result, err
	}
	if err := json.Unmarshal(content, &result); err != nil {
		return result, fmt.Errorf("reading the answer of pod %s: %w", s.name, errors.Join(io.ErrUnexpectedEOF, err))
	}
	return result, nil
}

// sent returns how much of all the claim has.
func (s *sending) sent(from map[tree.Digest]int64) int64 {
	sent := s.all
	for content, size := range s.missing.Sizes() {
		sent -= size - from[content]
	}
	return sent
}

// stream runs a file command with a line as its input, and what write writes after it. An error of write is the cause of the command's.
func (s *sending) stream(ctx context.Context, line []byte, command string, write func(io.Writer) error) ([]byte, error) {
	reader, writer := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		_, err := writer.Write(append(line, '\n'))
		if err == nil {
			err = write(writer)
		}
		writer.CloseWithError(err)
		wrote <- err
	}()
	var out bytes.Buffer
	err := s.run(ctx, reader, &out, command, s.folder())
	reader.CloseWithError(errStopped)
	if local := <-wrote; local != nil && !errors.Is(local, errStopped) {
		err = &sourceError{local}
	}
	return out.Bytes(), err
}

// sourceError is an error of a file here, which no other connection mends.
type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

// errStopped is for a writer whose reader, a command in the pod, has ended.
var errStopped = errors.New("the command has ended")

// sendAtOnce is for an older agent: it begins at 0.
func (s *sending) sendAtOnce(ctx context.Context) (sent int, err error) {
	m := s.missing
	header, err := json.Marshal(m)
	if err != nil {
		return 0, err
	}
	var out bytes.Buffer
	if err := s.run(ctx, bytes.NewReader(header), &out, "missing", s.folder()); err != nil {
		return 0, fmt.Errorf("listing files: %w", err)
	}
	var missing []tree.Digest
	if err := json.Unmarshal(out.Bytes(), &missing); err != nil {
		return 0, fmt.Errorf("listing files: reading the answer of pod %s: %w", s.name, err)
	}
	sizes := m.Sizes()
	for _, digest := range missing {
		s.all += sizes[digest]
	}
	content, err := s.stream(ctx, header, "land", func(w io.Writer) error {
		return tree.WriteContents(ctx, &counter{Writer: w, all: s.all, passed: s.passed}, s.dir, m, missing)
	})
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(content, &sent); err != nil {
		return 0, fmt.Errorf("reading the answer of pod %s: %w", s.name, err)
	}
	return sent, nil
}

// counter counts the bytes that pass.
type counter struct {
	io.Writer
	sent, all int64
	passed    func(sent, all int64)
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.sent += int64(n)
	c.passed(c.sent, c.all)
	return n, err
}
