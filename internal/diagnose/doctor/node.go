package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// node is one of the environment, as far as it is known. What its agent did not tell is nil.
type node struct {
	number int
	pod    string
	// object is the pod, nil where there is none.
	object *corev1.Pod
	// state of the pod in words.
	state string

	health    *agent.Health
	healthErr error
	facts     *agent.Facts
	factsErr  error
	rdma      *rdma.Facts
	names     agent.Resolution
	// jobs that it knows, of those that it was asked for.
	jobs map[string]agent.JobStatus
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

// String is how findings call it: "node 1 (ml-dev-env-1 on gpu-b)".
func (n *node) String() string {
	if on := n.kubernetesNode(); on != "" {
		return fmt.Sprintf("node %d (%s on %s)", n.number, n.pod, on)
	}
	return fmt.Sprintf("node %d (%s)", n.number, n.pod)
}

// agent is how the node's agent was found.
func (n *node) agent() string {
	switch {
	case n.health != nil:
		return "answers"
	case n.healthErr != nil:
		return "silent"
	}
	return "not asked"
}

// exec is the command that runs another one in the node.
func (n *node) exec(namespace, command string) string {
	return fmt.Sprintf("oc exec %s -n %s -c train -- %s", n.pod, namespace, command)
}

// running is true of a pod whose container runs: an agent should answer.
func (n *node) running() bool {
	return n.object != nil && n.object.DeletionTimestamp == nil && slices.ContainsFunc(n.object.Status.ContainerStatuses,
		func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

// askNodes asks all agents at once: first what each node is and has, and then for the jobs
// that any of them, or the holder of the environment, has told of.
func (e *examination) askNodes(ctx context.Context) {
	names := objects.NamesOf(e.name)
	states := diagnose.Progress(e.cluster, e.now)
	for number := range e.count() {
		n := &node{number: number, pod: names.PodName(number), state: "unknown"}
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
	credentials, err := nodes.Credentials(bounded, e.clients, e.name, "")
	if err != nil {
		e.agentsErr = err
		return
	}
	set := nodes.New(e.clients, e.name, len(e.nodes), credentials)
	defer set.Close()
	e.each(bounded, set, e.askNode)
	ids := e.jobIDs()
	if len(ids) > 0 {
		bounded, cancel := context.WithTimeout(ctx, e.Patience)
		defer cancel()
		e.each(bounded, set, func(ctx context.Context, n *node, client *agent.Client) { n.askJobs(ctx, client, ids) })
	}
	e.gatherJobs(ids)
}

// each asks all nodes at once. One that fails does not end the others.
func (e *examination) each(ctx context.Context, set nodes.Set, ask func(context.Context, *node, *agent.Client)) {
	_ = set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		ask(ctx, e.nodes[client.Node()], client)
		return nil
	})
}

// askNode asks each thing by itself: GPUs and volumes that hang must not hide the rest.
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

// namesFor are those that a node's ranks look up: the master's, and its neighbours' in a ring.
func (e *examination) namesFor(number int) []string {
	var wanted []string
	for _, other := range []int{0, number, (number + 1) % len(e.nodes), (number + len(e.nodes) - 1) % len(e.nodes)} {
		if name := objects.NamesOf(e.name).TLSName(e.namespace, other); !slices.Contains(wanted, name) {
			wanted = append(wanted, name)
		}
	}
	return wanted
}

func (n *node) askJobs(ctx context.Context, client *agent.Client, ids []string) {
	if n.health == nil {
		return
	}
	n.jobs = map[string]agent.JobStatus{}
	for _, id := range ids {
		status, err := client.Job(ctx, id)
		switch {
		case err == nil:
			n.jobs[id] = status
		case !agent.IsNotFound(err):
			n.jobs = nil // not known, which is not the same as no job
			return
		}
	}
}
