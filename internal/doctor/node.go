// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// node is one node of the environment. Fields that its agent did not answer are nil.
type node struct {
	number int
	pod    string
	// object is the pod, or nil if it does not exist.
	object *corev1.Pod
	state  string

	health    *agent.Health
	healthErr error
	facts     *agent.Facts
	factsErr  error
	rdma      *rdma.Facts
	names     agent.Resolution
	// jobs has the requested jobs that the node knows. It is nil if they are unknown, because of jobsErr.
	jobs    map[string]agent.JobStatus
	jobsErr error
}

// answering returns the nodes whose agents returned their facts.
func (e *examination) answering() []*node {
	return slices.DeleteFunc(slices.Clone(e.nodes), func(n *node) bool { return n.facts == nil })
}

func (n *node) kubernetesNode() string {
	switch {
	case n.facts != nil && n.facts.KubernetesNode != "":
		return n.facts.KubernetesNode
	case n.object != nil:
		return n.object.Spec.NodeName
	}
	return ""
}

// String returns the node's name in findings: "node 1 (ml-dev-env-1 on gpu-b)".
func (n *node) String() string {
	if on := n.kubernetesNode(); on != "" {
		return fmt.Sprintf("node %d (%s on %s)", n.number, n.pod, on)
	}
	return fmt.Sprintf("node %d (%s)", n.number, n.pod)
}

func (n *node) agent() string {
	switch {
	case n.health != nil:
		return "answers"
	case n.healthErr != nil:
		return "silent"
	}
	return "not asked"
}

// execCommand returns the command that runs a command in the node.
func (e *examination) execCommand(n *node, command string) string {
	if e.here {
		return command
	}
	return fmt.Sprintf("oc exec %s -n %s -c train -- %s", n.pod, e.env.Namespace, command)
}

// running reports whether the pod's container runs, so that its agent should answer.
func (n *node) running() bool {
	return n.object != nil && n.object.DeletionTimestamp == nil && slices.ContainsFunc(n.object.Status.ContainerStatuses,
		func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

// advice returns the command for a cluster, or for this machine.
func (e *examination) advice(cluster, here string) string {
	if e.here {
		return here
	}
	return cluster
}

// agentLogCommand returns the command that shows the log of the node's agent.
func (e *examination) agentLogCommand(n *node) string {
	return e.advice(fmt.Sprintf("oc logs %s -n %s -c train --tail=20", n.pod, e.env.Namespace), "mlenv logs "+e.env.Name)
}

// askNodes asks all agents in parallel: first for their facts and devices, then for the jobs that any of them or the
// environment's holder names.
func (e *examination) askNodes(ctx context.Context) {
	states := diagnose.Progress(e.cluster, e.now)
	for number := range e.cluster.Replicas() {
		n := &node{number: number, pod: e.env.PodName(number), state: "unknown"}
		if i := slices.IndexFunc(e.cluster.Pods, func(p corev1.Pod) bool { return p.Name == n.pod }); i >= 0 {
			n.object = &e.cluster.Pods[i]
		}
		for _, line := range states {
			if state, ok := strings.CutPrefix(line, n.pod+": "); ok && e.clusterErr == nil {
				n.state = state
			}
		}
		e.nodes = append(e.nodes, n)
	}
	bounded, cancel := context.WithTimeout(ctx, e.Patience)
	defer cancel()
	credentials, err := e.env.Credentials(bounded, "")
	if err != nil {
		e.agentsErr = err
		return
	}
	set := e.env.FirstNodes(len(e.nodes), credentials)
	defer set.Close()
	e.askAgents(ctx, set)
}

// askAgents asks the agents of all nodes.
func (e *examination) askAgents(ctx context.Context, set nodes.Set) {
	bounded, cancel := context.WithTimeout(ctx, e.Patience)
	defer cancel()
	e.each(bounded, set, e.askNode)
	ids := e.jobIDs()
	if len(ids) > 0 {
		bounded, cancel := context.WithTimeout(ctx, e.Patience)
		defer cancel()
		e.each(bounded, set, func(ctx context.Context, n *node, client *agent.Client) { n.askJobs(ctx, client, ids) })
	}
	e.gatherJobs(ids)
	for i := range e.jobs {
		if j := &e.jobs[i]; e.isQuiet(*j) {
			e.askStacks(ctx, set, j)
		}
	}
}

// askStacks asks what the ranks of a silent job do.
func (e *examination) askStacks(ctx context.Context, set nodes.Set, j *job) {
	ctx, cancel := context.WithTimeout(ctx, e.Patience)
	defer cancel()
	var mu sync.Mutex
	e.each(ctx, set, func(ctx context.Context, _ *node, client *agent.Client) {
		found, _ := client.Stacks(ctx, j.id) // what a node does not report is missing from the finding
		mu.Lock()
		defer mu.Unlock()
		j.activities = append(j.activities, found...)
	})
	slices.SortFunc(j.activities, func(a, b agent.RankActivity) int { return cmp.Compare(a.Rank, b.Rank) })
}

// each asks all nodes in parallel. A failure of one does not end the others.
func (e *examination) each(ctx context.Context, set nodes.Set, ask func(context.Context, *node, *agent.Client)) {
	_ = set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		ask(ctx, e.nodes[client.Node()], client)
		return nil
	})
}

// askNode sends one request for each topic, because GPUs and volumes that hang must not hide the rest.
func (e *examination) askNode(ctx context.Context, n *node, client *agent.Client) {
	health, err := client.Health(ctx)
	if err != nil {
		n.healthErr = err
		return
	}
	n.health = &health
	var group sync.WaitGroup
	group.Go(func() {
		if facts, err := client.Facts(ctx); err == nil {
			n.facts = &facts
		} else {
			n.factsErr = err
		}
	})
	group.Go(func() {
		if facts, err := client.RDMA(ctx, rdma.Expected{}); err == nil {
			n.rdma = &facts
		}
	})
	group.Go(func() {
		n.names, _ = client.Resolve(ctx, e.namesFor(n.number))
	})
	group.Wait()
}

// namesFor returns the names that a node's ranks look up: the master's, the node's own, and its neighbours' in a ring.
func (e *examination) namesFor(number int) []string {
	if e.here {
		return nil // addresses
	}
	var wanted []string
	for _, other := range []int{0, number, (number + 1) % len(e.nodes), (number + len(e.nodes) - 1) % len(e.nodes)} {
		if name := e.env.TLSName(other); !slices.Contains(wanted, name) {
			wanted = append(wanted, name)
		}
	}
	return wanted
}

// mostParts bounds the nodes and the ranks of a job that an agent reports.
const mostParts = 100_000

func (n *node) askJobs(ctx context.Context, client *agent.Client, ids []string) {
	if n.health == nil {
		return
	}
	jobs := map[string]agent.JobStatus{}
	for _, id := range ids {
		status, err := client.Job(ctx, id)
		if agent.IsNotFound(err) {
			continue
		}
		spec := status.Spec
		if err == nil && (spec.Nodes < 1 || spec.Nodes > mostParts || spec.RanksPerNode < 0 || spec.RanksPerNode > mostParts) {
			err = fmt.Errorf("its answer about job %s is invalid: %d nodes with %d ranks each", id, spec.Nodes, spec.RanksPerNode)
		}
		if err != nil {
			n.jobsErr = err
			return
		}
		// A training may answer in its agent's place, so the number of the node that was asked counts.
		status.Node = n.number
		for i := range status.Ranks {
			status.Ranks[i].Node = n.number
		}
		jobs[id] = status
	}
	n.jobs = jobs
}
