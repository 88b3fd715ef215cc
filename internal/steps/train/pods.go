// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Place is where the nodes of a training run, as far as the training asks: in a cluster an env.Environment, or this machine.
type Place interface {
	// Attach connects to the nodes, and keeps them for the run until detach. certs is as in env.Environment.
	Attach(ctx context.Context, log *slog.Logger, certs string, of run.Flags) (set nodes.Set, detach func(), err error)
	// Instances returns what the nodes run in now.
	Instances(ctx context.Context, count int) ([]env.Instance, error)
	// Gone returns why the instance of that ID will not come back to the node, "" if it may.
	Gone(ctx context.Context, node int, id string) (why string)
	// Ended returns how the earlier container of a node ended.
	Ended(ctx context.Context, node int) env.End
	// Whole waits until all nodes are ready, and returns the address of node 0.
	Whole(ctx context.Context, count int) (master string, err error)
	// LeaveOut moves a node away from a host.
	LeaveOut(ctx context.Context, node, count int, host string) error
	// Renew replaces what a node runs in, on the same host if that has room.
	Renew(ctx context.Context, node int) error
	// Mode is the mode that the environment was created with.
	Mode(ctx context.Context) (agent.Mode, error)
	// WorkspaceOfRanks is the path of the workspace, as the ranks see it.
	WorkspaceOfRanks() string
	// RecordClaims returns the claims with the record of the nodes.
	RecordClaims(ctx context.Context, count int) []string
	// TLSName is the name of a node that the others look up, or its address.
	TLSName(node int) string
	// Reach is the command by which a person reaches a port of a node.
	Reach(node, port int) string
}

func (t *Training) place() Place {
	if t.Place != nil {
		return t.Place
	}
	return t.environment()
}

func (t *Training) environment() env.Environment { return env.Of(t.Clients, t.Name) }

// readPods notes the pods that the environment has now.
func (t *Training) readPods(ctx context.Context) error {
	found, err := t.place().Instances(ctx, len(t.Nodes))
	if err != nil {
		return err
	}
	t.uids, t.hosts = map[int]types.UID{}, map[int]string{}
	for node, instance := range found {
		t.uids[node], t.hosts[node] = types.UID(instance.ID), instance.Host
	}
	return nil
}

// podLost returns the error for a node whose pod is not the one that the job was started in, nil if that one may come back.
func (t *Training) podLost(ctx context.Context, node int) error {
	if why := t.place().Gone(ctx, node, string(t.uids[node])); why != "" {
		return t.gone(node, "%s", why)
	}
	return nil
}

// podGone is podLost, except that it does not wait long: the API server may be away too.
func (t *Training) podGone(ctx context.Context, node int) error {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return t.podLost(asking, node)
}

// gone returns the error for a node that will not come back.
func (t *Training) gone(node int, why string, args ...any) error {
	where := ""
	if host := t.hosts[node]; host != "" {
		where = ", on Kubernetes node " + host + ","
	}
	return fail.Advise(fail.Becausef(fail.NodeLost, "training: node %d%s is gone: %s", node, where, fmt.Sprintf(why, args...)),
		"look at the node's events: oc get events --sort-by=.lastTimestamp; then start the run again, with the last checkpoint if there is one")
}

// restarted returns the error for a container that was restarted under the job.
func (t *Training) restarted(ctx context.Context, node int) error {
	ended := t.place().Ended(ctx, node)
	err := fail.Becausef(ended.Reason, "training: the container of node %d was restarted under the job %s", node, ended.How)
	if ended.Reason == fail.OutOfMemory {
		return fail.Advise(err, "raise resources.limits.memory in the cluster file, or use a smaller batch, fewer workers or offloading")
	}
	return fail.Advise(err, "%s; then start the run again, with the last checkpoint if there is one", ended.Look)
}
