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
	// Mode is the mode that the environment was created with.
	Mode(ctx context.Context) (agent.Mode, error)
	// WorkspaceOfRanks is the path of the workspace, as the ranks see it.
	WorkspaceOfRanks() string
	// TLSName is the name of a node that the others look up, or its address.
	TLSName(node int) string
	// ReachCommand is the command by which a person reaches a port of a node.
	ReachCommand(node, port int) string
}

func (t *Training) place() Place {
	if t.Place != nil {
		return t.Place
	}
	return t.environment()
}

// podEnvironment returns the environment whose pods the nodes are. Those of another Place are processes that live as long as it does:
// nothing replaces them, and ok is false.
func (t *Training) podEnvironment() (e env.Environment, ok bool) {
	return t.environment(), t.Place == nil
}

func (t *Training) environment() env.Environment { return env.Of(t.Clients, t.Name) }

// readPods notes the pods that the environment has now.
func (t *Training) readPods(ctx context.Context) error {
	pods, ok := t.podEnvironment()
	if !ok {
		return nil
	}
	found, err := pods.Instances(ctx, len(t.Nodes))
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
	pods, ok := t.podEnvironment()
	if !ok {
		return nil
	}
	if why := pods.PodLossReason(ctx, node, string(t.uids[node])); why != "" {
		return t.nodeGoneError(node, "%s", why)
	}
	return nil
}

// podGone is podLost, except that it does not wait long: the API server may be away too.
func (t *Training) podGone(ctx context.Context, node int) error {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return t.podLost(asking, node)
}

// nodeGoneError returns the error for a node that will not come back.
func (t *Training) nodeGoneError(node int, why string, args ...any) error {
	where := ""
	if host := t.hosts[node]; host != "" {
		where = ", on Kubernetes node " + host + ","
	}
	return fail.Advise(fail.Becausef(fail.NodeLost, "training: node %d%s is gone: %s", node, where, fmt.Sprintf(why, args...)),
		"look at the node's events: oc get events --sort-by=.lastTimestamp; then start the run again, with the last checkpoint if there is one")
}

// restarted returns the error for a container that was restarted under the job.
func (t *Training) restarted(ctx context.Context, node int) error {
	pods, ok := t.podEnvironment()
	if !ok {
		return fail.Becausef(fail.ContainerRestarted, "training: the agent of node %d was restarted under the job", node)
	}
	ended := pods.LastContainerEnd(ctx, node)
	err := fail.Becausef(ended.Reason, "training: the container of node %d was restarted under the job %s", node, ended.How)
	if ended.Reason == fail.OutOfMemory {
		return fail.Advise(err, "raise resources.limits.memory in the cluster file, or use a smaller batch, fewer workers or offloading")
	}
	return fail.Advise(err, "%s; then start the run again, with the last checkpoint if there is one", ended.Look)
}
