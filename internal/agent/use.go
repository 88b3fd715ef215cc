// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/http"
	"slices"
	"time"
)

// UsePath is where the reaper asks an agent when its node was used last.
const UsePath = "/v1/use"

// UseKind is a kind of use of a node, as messages name it.
type UseKind string

// The kinds of use. Syncing a folder is none.
const (
	// StartUse: the agent has started, or a user has requested the environment again.
	StartUse UseKind = "its start"
	// JobUse: a job ran.
	JobUse UseKind = "a job"
	// ShellUse: a shell was open, by mlenv, ssh or oc rsh.
	ShellUse UseKind = "a shell"
	// BrowserUse: a browser was connected to a service.
	BrowserUse UseKind = "a browser session"
	// GPUUse: a GPU of the node was busy.
	GPUUse UseKind = "GPU use"
)

// UseKinds returns all kinds.
func UseKinds() []UseKind { return []UseKind{StartUse, JobUse, ShellUse, BrowserUse, GPUUse} }

// Use is the answer of GET /v1/use: the last use of a node.
type Use struct {
	Kind UseKind `json:"kind"`
	// Idle is how long ago the use ended, by the node's own clock, so that clocks need not agree. It is about 0 during the use.
	Idle time.Duration `json:"idle"`
	// At is when the use ended, by the node's clock. It stays the same until the next use, and so identifies the last one.
	At time.Time `json:"at"`
}

// Confine bounds what a training can have forged.
func (u *Use) Confine() {
	if !slices.Contains(UseKinds(), u.Kind) {
		u.Kind = StartUse
	}
	u.Idle = max(0, u.Idle)
}

// LastUse returns the last use of the node.
func (c *Client) LastUse(ctx context.Context) (Use, error) {
	use, err := requestJSON[Use](ctx, c, http.MethodGet, UsePath, nil)
	use.Confine()
	return use, err
}

// BeginUse makes now the node's last use.
func (c *Client) BeginUse(ctx context.Context) error {
	return c.send(ctx, http.MethodPut, UsePath, nil, nil)
}
