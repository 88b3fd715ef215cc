// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// Mode is how the nodes of an environment talk to each other.
type Mode string

const (
	// TCP works everywhere and needs no permission.
	TCP Mode = "tcp"
	// RDMA needs devices, and a security context that may pin memory.
	RDMA Mode = "rdma"
	// Auto is RDMA if the nodes can use it, else TCP. It is decided before any rank starts.
	Auto Mode = "auto"
)

// Network configures the network of a node's processes: the body of PUT /v1/network. It applies to everything that the agent
// starts from then on, shells too, and survives a restart of the container.
type Network struct {
	// Mode is TCP or RDMA.
	Mode Mode `json:"mode"`
	// Rack of the node, "" if unknown.
	Rack string `json:"rack,omitempty"`
	// Set are variables that overrule the container's own, because an image may have wrong ones; Unset are variables to remove.
	// A job's own variables overrule both.
	Set   map[string]string `json:"set,omitempty"`
	Unset []string          `json:"unset,omitempty"`
	// CPUs are the processors near each GPU of the node, as the kernel lists them; an unknown list is empty. The agent sets them.
	CPUs []string `json:"cpus,omitempty"`
	// Expected and Forced are the inputs from which Set was derived.
	Expected rdma.Expected     `json:"expected"`
	Forced   map[string]string `json:"forced,omitempty"`
}

var variableName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// Validate returns the first problem of n, nil for none.
func (n Network) Validate() error {
	if n.Mode != TCP && n.Mode != RDMA {
		return fmt.Errorf("mode %q: want tcp or rdma", n.Mode)
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(n.Set)), n.Unset) {
		if !variableName.MatchString(name) {
			return fmt.Errorf("variable %q: want capital letters, digits and underscores", name)
		}
	}
	return nil
}

// SetNetwork configures the network of everything that the node starts from now on. It returns the variables that the agent
// now sets for every job and shell.
func (c *Client) SetNetwork(ctx context.Context, network Network) (environment map[string]string, err error) {
	return requestJSON[map[string]string](ctx, c, http.MethodPut, "/v1/network", network)
}

// WaitForTurn asks for the turn at the network between the nodes, which an agent gives to one client at a time, and waits for it, at most
// for limit. It ends with release, or with the connection.
func (c *Client) WaitForTurn(ctx context.Context, limit time.Duration) (release func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	tooLong := time.AfterFunc(limit, cancel)
	defer tooLong.Stop()
	body, err := c.stream(ctx, http.MethodPost, "/v1/turn", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	return func() {
		cancel()
		body.Close()
	}, nil
}
