package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// The methods below are those of train.Place.

// Attach returns the nodes. They end with the environment.
func (e *Environment) Attach(context.Context, *slog.Logger, run.Flags) (nodes.Set, func(), error) {
	return e.Nodes, func() {}, nil
}

// Instances are the same for all time.
func (e *Environment) Instances(_ context.Context, count int) ([]nodes.Instance, error) {
	return make([]nodes.Instance, count), nil
}

// Gone returns nothing: the agents live as long as this process.
func (e *Environment) Gone(context.Context, int, nodes.Instance) string { return "" }

// Ended cannot happen, because nothing restarts an agent.
func (e *Environment) Ended(context.Context, int) (reason fail.Reason, how string) {
	return fail.ContainerRestarted, "for an unknown cause"
}

// Whole is always so.
func (e *Environment) Whole(context.Context, nodes.Set) error { return nil }

// LeaveOut returns an error: there is no other machine.
func (e *Environment) LeaveOut(context.Context, int, int, string) error {
	return errors.New("all nodes are parts of this machine")
}

// WantsRDMA is false: the nodes reach each other by the loopback interface.
func (e *Environment) WantsRDMA(context.Context) (bool, error) { return false, nil }

// Host is the address of a node.
func (e *Environment) Host(node int) string { return e.addresses[node].String() }

// Reach names the port, which is one of this machine.
func (e *Environment) Reach(node, port int) string { return fmt.Sprintf("%s:%d", e.Host(node), port) }

// Look names the log of a node's agent.
func (e *Environment) Look(node int) string { return "read " + e.logOf(node) }
