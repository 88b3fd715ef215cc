// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/ml-dev-env/ml-dev-env/internal/source/script"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// TreePlan is the answer of POST /v1/trees/HASH with a tree.Manifest: the contents that the node misses.
type TreePlan struct {
	// Present is true if the node has the whole tree, verified.
	Present bool `json:"present"`
	// Missing lists contents by their SHA-256, each once.
	Missing []tree.Digest `json:"missing,omitempty"`
	// Begun is how many bytes of the first missing content the node has, from a transfer that broke off.
	Begun int64 `json:"begun,omitempty"`
}

// Pull is the body of POST /v1/trees/HASH/pull.
type Pull struct {
	// From is the ordinal of a node that holds the tree.
	From int `json:"from"`
}

// TreeState is the answer of GET /v1/trees/HASH, of PUT /v1/trees/HASH/content, of the pull and of the switch.
type TreeState struct {
	Hash tree.Digest `json:"hash"`
	// Venv is the virtual environment of the current tree's jobs, "" for none.
	Venv string `json:"venv,omitempty"`
}

// Switch is the body of POST /v1/trees/HASH/switch.
type Switch struct {
	// Venv is the virtual environment that jobs of this tree use, "" for none.
	Venv string `json:"venv,omitempty"`
}

// SendTree streams the missing contents, as tree.WriteContents writes them from that byte of the first one.
func (c *Client) SendTree(ctx context.Context, hash tree.Digest, from int64, contents io.Reader) (TreeState, error) {
	return requestJSON[TreeState](ctx, c, http.MethodPut, fmt.Sprintf("/v1/trees/%s/content?from=%d", hash, from), contents)
}

// PullTree has the node receive the contents that it misses of a planned tree from another node. An error of reason SyncFailed may be
// the other node's fault.
func (c *Client) PullTree(ctx context.Context, hash tree.Digest, from int) (TreeState, error) {
	return requestJSON[TreeState](ctx, c, http.MethodPost, "/v1/trees/"+string(hash)+"/pull", Pull{From: from})
}

// TreeContents reads contents of a tree that the node holds, as tree.WriteContents writes them from that byte of the first one. An agent
// may ask it, too.
func (c *Client) TreeContents(ctx context.Context, hash tree.Digest, contents []tree.Digest, from int64) (io.ReadCloser, error) {
	return c.stream(ctx, http.MethodPost, fmt.Sprintf("/v1/trees/%s/contents?from=%d", hash, from), contents)
}

// SwitchTree makes a tree the current one.
func (c *Client) SwitchTree(ctx context.Context, hash tree.Digest, s Switch) (TreeState, error) {
	return requestJSON[TreeState](ctx, c, http.MethodPost, "/v1/trees/"+string(hash)+"/switch", s)
}

// Tree returns a tree that the node holds, complete. For another one the error is IsNotFound.
func (c *Client) Tree(ctx context.Context, hash tree.Digest) (TreeState, error) {
	return requestJSON[TreeState](ctx, c, http.MethodGet, "/v1/trees/"+string(hash), nil)
}

// Script returns which arguments of launchers a script of a tree takes.
func (c *Client) Script(ctx context.Context, hash tree.Digest, path string) (script.Arguments, error) {
	return requestJSON[script.Arguments](ctx, c, http.MethodGet, "/v1/trees/"+string(hash)+"/script?path="+url.QueryEscape(path), nil)
}

// CurrentTree returns the tree at the stable path. Its hash is empty before the first sync.
func (c *Client) CurrentTree(ctx context.Context) (TreeState, error) {
	return requestJSON[TreeState](ctx, c, http.MethodGet, "/v1/trees/current", nil)
}
