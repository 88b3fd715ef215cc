// SPDX-License-Identifier: Apache-2.0

//go:build linux

package local

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// The methods below make the environment a place for trainings, as env.Environment is.

// Attach returns the nodes. They end with the environment.
func (e *Environment) Attach(context.Context, *slog.Logger, string, run.Flags) (nodes.Set, func(), error) {
	return e.Nodes, func() {}, nil
}

// Mode returns TCP: the nodes reach each other by the loopback interface.
func (e *Environment) Mode(context.Context) (agent.Mode, error) { return agent.TCP, nil }

// WorkspaceOfRanks returns the folder in place of the claim.
func (e *Environment) WorkspaceOfRanks() string { return e.Workspace }

// TLSName returns the address of a node.
func (e *Environment) TLSName(node int) string { return e.addresses[node].String() }

// ReachCommand names the port, which is one of this machine.
func (e *Environment) ReachCommand(node, port int) string {
	return fmt.Sprintf("%s:%d", e.TLSName(node), port)
}
