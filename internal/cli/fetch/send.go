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
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Upload summarizes what Send copied to a claim.
type Upload struct {
	// Files and Bytes count the files of the manifest; Sent of them were new there.
	Files, Sent int
	Bytes       int64
}

// Send copies the files of a manifest of the folder dir into the folder to of the claim. The pod verifies every file by
// its SHA-256 before the file gets its name; files that are already there with the same content are not sent. After a broken
// connection, and in another call, Send continues at the byte where it was. Send calls passed with the bytes sent so far. Errors:
// UnsafeTree, SyncFailed if a file has changed since, PodsNotReady, PermissionDenied.
func Send(
	ctx context.Context, clients *kube.Clients, claim Claim, dir string, m tree.Manifest, to string, passed func(sent, all int64),
) (upload Upload, err error) {
	claim.write = true
	p, err := open(ctx, clients, claim)
	if err != nil {
		return upload, err
	}
	defer func() { err = errors.Join(err, p.remove(ctx)) }()
	upload, err = p.upload(ctx, dir, m, to, passed)
	if err != nil {
		return upload, fmt.Errorf("filling claim %s: %w", claim.Name, err)
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
// size of each file to out. After a broken connection the pod begins again; it continues files with a wanted SHA-256. Errors:
// PodsNotReady, PermissionDenied.
func Download(ctx context.Context, clients *kube.Clients, claim Claim, wanted []agent.Download, to string, out io.Writer) (err error) {
	claim.write = true
	p, err := open(ctx, clients, claim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove(ctx)) }()
	return p.download(ctx, wanted, to, out)
}

func (p *pod) download(ctx context.Context, wanted []agent.Download, to string, out io.Writer) error {
	list, err := json.Marshal(wanted)
	if err != nil {
		return err
	}
	printed := map[string]bool{}
	done := func() progress { return progress{bytes: int64(len(printed))} }
	return p.again(ctx, done, func() error {
		each := func(line []byte) {
			if text := string(line); !printed[text] && strings.HasSuffix(text, "\n") {
				printed[text] = true
				fmt.Fprint(out, text)
			}
		}
		return p.run(ctx, bytes.NewReader(list), &lines.Splitter{Each: each}, "download", path.Join(agent.Workspace, to))
	})
}
