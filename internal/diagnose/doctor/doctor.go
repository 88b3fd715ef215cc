// Package doctor looks at an environment from all sides at once and says why its pods do not
// start, why a training hangs, and why it is slow. It changes nothing.
package doctor

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

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

// Finding is something that may be why an environment does not do what it should.
type Finding struct {
	fail.Finding
	Flow Flow `json:"flow"`
}

// Node is how one node of the environment was found.
type Node struct {
	Node           int    `json:"node"`
	Pod            string `json:"pod"`
	KubernetesNode string `json:"kubernetesNode,omitempty"`
	// State of the pod in words.
	State string `json:"state"`
	// Agent is answers, silent or not asked.
	Agent string `json:"agent"`
}

// Report is what was seen of an environment.
type Report struct {
	Namespace   string `json:"namespace"`
	Environment string `json:"environment"`
	// Mode is tcp or rdma, "" where that is not known.
	Mode string `json:"mode,omitempty"`
	// Holder says who holds the environment, "" where that is not known.
	Holder string `json:"holder,omitempty"`
	Nodes  []Node `json:"nodes,omitempty"`
	// Jobs say what runs, or ran last.
	Jobs []string `json:"jobs,omitempty"`
	// Findings are the most likely first.
	Findings []Finding `json:"findings"`
}

// Broken is true where one of the findings is.
func (r Report) Broken() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Level == fail.Broken })
}

// Options say how long is waited.
type Options struct {
	// QuietAfter is how long a training may print nothing; 0 is ten minutes, which is also
	// when torch gives a collective of NCCL's up.
	QuietAfter time.Duration
	// Patience is what the API server has for its answers, and a node each time that it is
	// asked, which is twice; 0 is 6 s. So three times that is the longest that it all takes.
	Patience time.Duration
	// Now is the time; nil is the machine's.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	o.QuietAfter = cmp.Or(o.QuietAfter, 10*time.Minute)
	o.Patience = cmp.Or(o.Patience, 6*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Examine looks at the environment of that name. What cannot be read is itself a finding,
// and all else is looked at nevertheless.
func Examine(ctx context.Context, clients *kube.Clients, name string, o Options) Report {
	o = o.withDefaults()
	e := examination{clients: clients, namespace: clients.Namespace, name: name, Options: o, now: o.Now()}
	e.readCluster(ctx)
	if e.missing() {
		return e.report(e.absent(ctx))
	}
	e.askNodes(ctx)
	return e.report(slices.Concat(e.start(), e.hang(), e.network(), e.slow()))
}

// report puts the findings in order: the worst first, and then by their likelihood.
func (e *examination) report(found []Finding) Report {
	found = merge(found)
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(a.Level.Compare(b.Level), likelihoodOf(a.Reason)-likelihoodOf(b.Reason))
	})
	if found == nil {
		found = []Finding{} // a list in JSON too
	}
	r := Report{Namespace: e.namespace, Environment: e.name, Mode: e.mode(), Findings: found}
	if e.lease != nil {
		r.Holder = e.lease.State()
	}
	for _, n := range e.nodes {
		r.Nodes = append(r.Nodes, Node{Node: n.number, Pod: n.pod, KubernetesNode: n.kubernetesNode(), State: n.state, Agent: n.agent()})
	}
	for _, j := range e.jobs {
		r.Jobs = append(r.Jobs, j.String())
	}
	return r
}

// merge makes one finding of those that differ in their object alone.
func merge(found []Finding) []Finding {
	var merged []Finding
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
