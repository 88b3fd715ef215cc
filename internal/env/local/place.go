// SPDX-License-Identifier: Apache-2.0

//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// The methods below make the environment a place for trainings, as env.Environment is.

// Attach returns the nodes. They end with the environment.
func (e *Environment) Attach(context.Context, *slog.Logger, string, run.Flags) (nodes.Set, func(), error) {
	return e.Nodes, func() {}, nil
}

// Instances returns the same instances every time.
func (e *Environment) Instances(_ context.Context, count int) ([]env.Instance, error) {
	return make([]env.Instance, count), nil
}

// Gone returns nothing: the agents live as long as this process.
func (e *Environment) Gone(context.Context, int, string) string { return "" }

// Ended cannot happen, because nothing restarts an agent.
func (e *Environment) Ended(_ context.Context, node int) env.End {
	return env.End{Reason: fail.ContainerRestarted, How: "for an unknown cause", Look: "read " + e.logOf(node)}
}

// Whole returns at once: a local run does not wait for nodes.
func (e *Environment) Whole(context.Context, int) (master string, err error) {
	return e.TLSName(0), nil
}

// LeaveOut returns an error.
func (e *Environment) LeaveOut(context.Context, int, int, string) error {
	return errors.New("all nodes are parts of this machine")
}

// Renew returns an error.
func (e *Environment) Renew(context.Context, int) error {
	return errors.New("all nodes are parts of this machine")
}

// Mode returns TCP: the nodes reach each other by the loopback interface.
func (e *Environment) Mode(context.Context) (agent.Mode, error) { return agent.TCP, nil }

// WorkspaceOfRanks returns the folder in place of the claim.
func (e *Environment) WorkspaceOfRanks() string { return e.Workspace }

// RecordClaims returns none.
func (e *Environment) RecordClaims(context.Context, int) []string { return nil }

// TLSName returns the address of a node.
func (e *Environment) TLSName(node int) string { return e.addresses[node].String() }

// Reach names the port, which is one of this machine.
func (e *Environment) Reach(node, port int) string {
	return fmt.Sprintf("%s:%d", e.TLSName(node), port)
}
