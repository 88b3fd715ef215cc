// SPDX-License-Identifier: Apache-2.0

// Package doctor examines an environment and reports why its pods do not start, why a training hangs, and why it is
// slow. It changes nothing.
package doctor

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Flow is the question that a finding answers.
type Flow string

// The flows.
const (
	Start Flow = "pods do not start"
	Hang  Flow = "a training hangs or fails"
	Slow  Flow = "a training is slow"
)

// Finding is a possible cause of a problem of the environment.
type Finding struct {
	fail.Finding
	// Flow is the question that it answers: "pods do not start", "a training hangs or fails" or "a training is slow".
	Flow Flow `json:"flow"`
}

// Node is the state of one node of the environment.
type Node struct {
	// Node is the number of the node, from 0.
	Node int `json:"node"`
	// Pod is the name of its pod.
	Pod string `json:"pod"`
	// KubernetesNode is the Kubernetes node that the pod is on.
	KubernetesNode string `json:"kubernetesNode,omitempty"`
	// State is what the pod does, in words.
	State string `json:"state"`
	// Agent is one of "answers", "silent" and "not asked".
	Agent string `json:"agent"`
}

// Report is the result of an examination.
type Report struct {
	// Namespace is the environment's namespace.
	Namespace string `json:"namespace"`
	// Environment is its name.
	Environment string `json:"environment"`
	// Mode is the mode, tcp or rdma. It is left out if it is unknown.
	Mode agent.Mode `json:"mode,omitempty"`
	// Holder describes who holds the environment.
	Holder string `json:"holder,omitempty"`
	// Nodes are the nodes of the environment, if it exists.
	Nodes []Node `json:"nodes,omitempty"`
	// Jobs are texts about the running jobs, or about the last one.
	Jobs []string `json:"jobs,omitempty"`
	// Findings are the problems that were found, the most likely one first.
	Findings []Finding `json:"findings"`
}

// Failed reports whether something is broken, or nothing is known.
func (r Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Level == fail.Broken || f.Level == fail.Unknown })
}

// Options bound how long the doctor waits.
type Options struct {
	// QuietAfter is how long a training may print nothing; 0 is three minutes.
	QuietAfter time.Duration
	// Patience bounds the time of the API server's answers and of each of the three requests to a node; 0 is 6 s. So
	// an examination takes four times that at most.
	Patience time.Duration
	// Now is the clock; nil is the API server's.
	Now func() time.Time
}

func (o Options) withDefaults(clients *kube.Clients) Options {
	o.QuietAfter = cmp.Or(o.QuietAfter, 3*time.Minute)
	o.Patience = cmp.Or(o.Patience, 6*time.Second)
	if o.Now == nil {
		o.Now = clients.Now
	}
	return o
}

// Examine examines the environment of that name. Anything that cannot be read is itself a finding.
func Examine(ctx context.Context, clients *kube.Clients, name string, o Options) Report {
	o = o.withDefaults(clients)
	e := examination{clients: clients, env: env.Of(clients, name), Options: o, now: o.Now()}
	e.readCluster(ctx)
	if e.missing() {
		e.absent(ctx)
		return e.report()
	}
	e.askNodes(ctx)
	e.examineStart()
	e.examineHang()
	e.network()
	e.examineSlow()
	return e.report()
}

// ExamineLocal examines the nodes of a local run. They have no pods, and no network beyond one machine.
func ExamineLocal(ctx context.Context, name string, set nodes.Set, o Options) Report {
	clients := &kube.Clients{}
	o = o.withDefaults(clients)
	e := examination{clients: clients, env: env.Of(clients, name), here: true, Options: o, now: o.Now()}
	for number := range set {
		e.nodes = append(e.nodes, &node{number: number, pod: e.env.PodName(number), state: "a part of this machine"})
	}
	e.askAgents(ctx, set)
	e.examineHang()
	for _, j := range e.jobs {
		e.printed(j)
	}
	e.examineSlow()
	return e.report()
}

// report sorts the findings by level and likelihood.
func (e *examination) report() Report {
	found := merge(e.findings)
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(a.Level.Compare(b.Level), likelihoodOf(a.Reason)-likelihoodOf(b.Reason))
	})
	r := Report{Namespace: e.env.Namespace, Environment: e.env.Name, Mode: e.networkMode(), Findings: found}
	if e.lease != nil {
		r.Holder = e.lease.Describe()
	}
	for _, n := range e.nodes {
		r.Nodes = append(r.Nodes, Node{Node: n.number, Pod: n.pod, KubernetesNode: n.kubernetesNode(), State: n.state, Agent: n.agent()})
	}
	for _, j := range e.jobs {
		r.Jobs = append(r.Jobs, j.String())
	}
	return r
}

// merge joins findings that differ only in their object.
func merge(found []Finding) []Finding {
	merged := []Finding{} // a list in JSON too
	for _, f := range found {
		i := slices.IndexFunc(merged, func(m Finding) bool {
			m.Object = f.Object
			return m == f
		})
		switch {
		case i < 0:
			merged = append(merged, f)
		case !slices.Contains(strings.Split(merged[i].Object, ", "), f.Object):
			merged[i].Object += ", " + f.Object
		}
	}
	return merged
}
