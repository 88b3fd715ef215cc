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
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Upload summarizes what Send copied to a claim.
type Upload struct {
	// Files and Bytes count the files of the manifest; Sent of them were new there.
	Files, Sent int
	Bytes       int64
}

// Send copies the files of a manifest of the folder dir into the folder to of the claim. The pod verifies every file by
// its SHA-256 before the file gets its name; files that are already there with the same content are not sent. Send
// calls progress with the bytes sent so far. Errors: UnsafeTree, PodsNotReady, PermissionDenied.
func Send(ctx context.Context, clients *kube.Clients, claim Claim, dir string, m tree.Manifest, to string, progress func(sent, all int64)) (upload Upload, err error) {
	claim.write = true
	p, err := open(ctx, clients, claim)
	if err != nil {
		return upload, err
	}
	defer func() { err = errors.Join(err, p.remove(ctx)) }()
	folder := path.Join(agent.Workspace, to)
	header, err := json.Marshal(m)
	if err != nil {
		return upload, err
	}
	var out bytes.Buffer
	if err := p.run(ctx, bytes.NewReader(header), &out, "missing", folder); err != nil {
		return upload, fmt.Errorf("listing what is on claim %s: %w", claim.Name, err)
	}
	var missing []tree.Digest
	if err := json.Unmarshal(out.Bytes(), &missing); err != nil {
		return upload, fmt.Errorf("listing what is on claim %s: reading the answer of pod %s: %w", claim.Name, p.name, err)
	}
	upload.Files, upload.Bytes = m.Totals()
	var all int64
	sizes := m.Sizes()
	for _, digest := range missing {
		all += sizes[digest]
	}
	reader, writer := io.Pipe()
	counted := &progressWriter{Writer: writer, all: all, progress: progress}
	go func() {
		_, err := writer.Write(append(header, '\n'))
		if err == nil {
			err = tree.WriteContents(ctx, counted, dir, m, missing)
		}
		writer.CloseWithError(err)
	}()
	out.Reset()
	err = p.run(ctx, reader, &out, "land", folder)
	reader.CloseWithError(context.Canceled)
	if err != nil {
		return upload, fmt.Errorf("filling claim %s: %w", claim.Name, err)
	}
	if err := json.Unmarshal(out.Bytes(), &upload.Sent); err != nil {
		return upload, fmt.Errorf("filling claim %s: reading the answer of pod %s: %w", claim.Name, p.name, err)
	}
	return upload, nil
}

// Remove deletes paths, relative to the claim's top. Missing ones are no error. Errors: PodsNotReady, PermissionDenied.
func Remove(ctx context.Context, clients *kube.Clients, claim Claim, paths []string) (err error) {
	claim.write = true
	p, err := open(ctx, clients, claim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove(ctx)) }()
	const atOnce = 100 // they are part of a URL
	for some := range slices.Chunk(paths, atOnce) {
		if err := p.run(ctx, nil, io.Discard, append([]string{"remove", agent.Workspace}, some...)...); err != nil {
			return fmt.Errorf("deleting files of claim %s: %w", claim.Name, err)
		}
	}
	return nil
}

// Download has the pod download files from URLs into the folder to of the claim. The pod prints the SHA-256, path and
// size of each file to out. Errors: PodsNotReady, PermissionDenied.
func Download(ctx context.Context, clients *kube.Clients, claim Claim, wanted []agent.Download, to string, out io.Writer) (err error) {
	claim.write = true
	p, err := open(ctx, clients, claim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove(ctx)) }()
	list, err := json.Marshal(wanted)
	if err != nil {
		return err
	}
	return p.run(ctx, bytes.NewReader(list), out, "download", path.Join(agent.Workspace, to))
}

type progressWriter struct {
	io.Writer
	sent, all int64
	progress  func(sent, all int64)
}

func (w *progressWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.sent += int64(n)
	w.progress(w.sent, w.all)
	return n, err
}
