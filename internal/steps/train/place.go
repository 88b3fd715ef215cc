package train

import (
	"context"
	"log/slog"

	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// Place is where the nodes of a training run: the pods of an environment, or this machine. It answers what the agents cannot.
type Place interface {
	// Attach connects to the nodes, and keeps them for the run until detach.
	Attach(ctx context.Context, log *slog.Logger, of run.Flags) (set nodes.Set, detach func(), err error)
	// Instances are what runs the first count nodes now.
	Instances(ctx context.Context, count int) ([]nodes.Instance, error)
	// Gone is why the instance of a node that does not answer will not come back, "" if it may.
	Gone(ctx context.Context, node int, was nodes.Instance) string
	// Ended is how the earlier container of a node ended.
	Ended(ctx context.Context, node int) (reason fail.Reason, how string)
	// Whole waits until all nodes run, all of them answer, and they find node 0.
	Whole(ctx context.Context, set nodes.Set) error
	// LeaveOut moves one of count nodes to another host.
	LeaveOut(ctx context.Context, node, count int, host string) error
	// WantsRDMA reports whether the nodes were prepared for RDMA, which is lost if none of them knows its network.
	WantsRDMA(ctx context.Context) (bool, error)
	// Host is the name or address at which other nodes find a node.
	Host(node int) string
	// Reach is the command by which a person reaches a port of a node.
	Reach(node, port int) string
	// Look is the command that shows what happened to a node.
	Look(node int) string
}

// place is where the nodes run.
func (t *Training) place() Place {
	if t.Place != nil {
		return t.Place
	}
	return pods{t.environment(), t.Clients, t.ClientCerts}
}
