package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Given is what came onto a claim.
type Given struct {
	// Files there are, and bytes of them; Sent of these were not there yet.
	Files, Sent int
	Bytes       int64
}

// Give puts what the manifest of folder dir lists into the folder to of the claim. Every file
// is verified by its SHA-256 before it has its name there; one that is there with the same
// content is not sent again, so that what broke off goes on. progress is told of bytes that
// were sent, as they are. Errors: UnsafeTree, PodsNotReady, PermissionDenied.
func Give(ctx context.Context, clients *kube.Clients, claim Claim, dir string, m tree.Manifest, to string, progress func(sent, all int64)) (given Given, err error) {
	claim.write = true
	s, err := open(ctx, clients, claim)
	if err != nil {
		return given, err
	}
	defer func() { err = errors.Join(err, s.remove(ctx)) }()
	there := path.Join(mounted, to)
	header, err := json.Marshal(m)
	if err != nil {
		return given, err
	}
	var out bytes.Buffer
	if err := s.run(ctx, bytes.NewReader(header), &out, "missing", there); err != nil {
		return given, fmt.Errorf("asking what is on claim %s already: %w", claim.Name, err)
	}
	var missing []tree.Digest
	if err := json.Unmarshal(out.Bytes(), &missing); err != nil {
		return given, fmt.Errorf("asking what is on claim %s already: reading the answer of pod %s: %w", claim.Name, s.pod, err)
	}
	given.Files, given.Bytes = m.Totals()
	var all int64
	sizes := m.Sizes()
	for _, digest := range missing {
		all += sizes[digest]
	}
	reader, writer := io.Pipe()
	counted := &counter{Writer: writer, all: all, tell: progress}
	go func() {
		_, err := writer.Write(append(header, '\n'))
		if err == nil {
			err = tree.WriteContents(ctx, counted, dir, m, missing)
		}
		writer.CloseWithError(err)
	}()
	out.Reset()
	err = s.run(ctx, reader, &out, "land", there)
	reader.CloseWithError(context.Canceled)
	if err != nil {
		return given, fmt.Errorf("sending files to claim %s: %w", claim.Name, err)
	}
	if err := json.Unmarshal(out.Bytes(), &given.Sent); err != nil {
		return given, fmt.Errorf("sending files to claim %s: reading the answer of pod %s: %w", claim.Name, s.pod, err)
	}
	return given, nil
}

// Download has the pod itself bring files from URLs into the folder to of the claim. out is
// told of each that is there: its SHA-256, its path and its size. Errors: PodsNotReady,
// PermissionDenied.
func Download(ctx context.Context, clients *kube.Clients, claim Claim, wanted []agent.Download, to string, out io.Writer) (err error) {
	claim.write = true
	s, err := open(ctx, clients, claim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.remove(ctx)) }()
	list, err := json.Marshal(wanted)
	if err != nil {
		return err
	}
	return s.run(ctx, bytes.NewReader(list), out, "download", path.Join(mounted, to))
}

// counter tells of what passes.
type counter struct {
	io.Writer
	sent, all int64
	tell      func(sent, all int64)
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.sent += int64(n)
	c.tell(c.sent, c.all)
	return n, err
}
