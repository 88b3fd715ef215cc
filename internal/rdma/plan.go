// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// Variable is a variable of NCCL's environment, with its source.
type Variable struct {
	Name string `json:"name"`
	// Value is empty if the variable must not be set.
	Value  string `json:"value,omitempty"`
	Source Source `json:"source"`
	Reason string `json:"reason"`
}

// Source is the source of a variable's value.
type Source string

// The sources.
const (
	Detected    Source = "detected"
	ClusterFile Source = "cluster file"
	// Forced is an explicit override, which nothing is checked against.
	Forced Source = "forced"
)

// Plan is NCCL's environment on one node.
type Plan struct {
	Variables []Variable     `json:"variables"`
	Findings  []fail.Finding `json:"findings,omitempty"`
}

// Environment has the variables to set.
func (p Plan) Environment() map[string]string {
	environment := map[string]string{}
	for _, v := range p.Variables {
		if v.Value != "" {
			environment[v.Name] = v.Value
		}
	}
	return environment
}

// Unset names the variables that must not be set, even if the image sets them.
func (p Plan) Unset() []string {
	var names []string
	for _, v := range p.Variables {
		if v.Value == "" {
			names = append(names, v.Name)
		}
	}
	return names
}

// NewPlan derives NCCL's environment on a node from the facts of all nodes of the training. Device names, interfaces
// and indexes are the node's own; what must be the same on all nodes follows from the facts of all. Overrides, the
// cluster file's nccl block, are forced. Without a usable port on a network of all nodes nothing is derived.
//
// The variables' meanings: src/transport/net_ib.cc, src/misc/socket.cc and src/graph/paths.cc of NCCL 2.27.
func NewPlan(nodes []Facts, node int, expected Expected, overrides map[string]string) Plan {
	p := planner{nodes: nodes, own: nodes[node], ports: commonPorts(nodes, node), expected: expected}
	if len(p.ports) > 0 {
		p.devices()
		p.sockets()
		p.setGIDIndex()
		p.gpuDirect()
		p.crossNIC()
		p.fromFile("NCCL_IB_TIMEOUT", expected.IBTimeout)
		p.fromFile("NCCL_IB_TC", expected.TrafficClass)
		p.fromFile("NCCL_IB_SL", expected.ServiceLevel)
		p.fromFile("NCCL_MIN_NCHANNELS", expected.MinNChannels)
	}
	p.force(overrides)
	return p.Plan
}

type planner struct {
	Plan
	nodes []Facts
	own   Facts
	// ports are the node's on the rails that all nodes have.
	ports    []RailPort
	expected Expected
}

func (p *planner) setEnv(name, value, format string, args ...any) {
	p.Variables = append(p.Variables, Variable{Name: name, Value: value, Source: Detected, Reason: fmt.Sprintf(format, args...)})
}

// fromFile sets what cannot be detected.
func (p *planner) fromFile(name, value string) {
	if value != "" {
		p.Variables = append(p.Variables, Variable{Name: name, Value: value, Source: ClusterFile,
			Reason: "the cluster file's network.rdma has it"})
	}
}

func (p *planner) differs(key, seen, reason string) {
	p.Findings = append(p.Findings,
		fail.Finding{Level: fail.Note, Reason: SettingDiffers, Seen: fmt.Sprintf("network.rdma.%s is %s: %s: what was detected is used", key,
			seen, reason)})
}

// devices names each port exactly. It leaves out a port whose rail another node lacks: what is sent there waits forever
// (https://github.com/NVIDIA/nccl/issues/2428).
func (p *planner) devices() {
	p.setEnv("NCCL_IB_DISABLE", "0", "there are usable RDMA devices")
	var names []string
	for _, rail := range p.ports {
		names = append(names, rail.HCA())
	}
	reason := "the usable ports that the pod was given, by exact name"
	if left := len(p.own.Rails()) - len(p.ports); left > 0 {
		reason += fmt.Sprintf("; not %d whose network not all nodes have", left)
	}
	p.setEnv("NCCL_IB_HCA", nccl.ExactHCA(names...), "%s", reason)
}

// crossNIC keeps each ring on one rail if the rails cannot reach each other.
func (p *planner) crossNIC() {
	const name = "NCCL_CROSS_NIC"
	switch expected := p.expected.CrossNIC; {
	case Isolated(p.nodes):
		if expected != "" && expected != "0" {
			p.differs("cross_nic", expected, "the rails' networks have no route to each other")
		}
		p.setEnv(name, "0", "the rails' networks have no route to each other")
	case expected != "":
		p.fromFile(name, expected)
	default:
		p.setEnv(name, "", "every rail reaches every other: NCCL's default does")
	}
}

func (p *planner) force(overrides map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(overrides)) {
		forced := Variable{Name: name, Value: overrides[name], Source: Forced, Reason: "the cluster file's nccl block has it"}
		i := slices.IndexFunc(p.Variables, func(v Variable) bool { return v.Name == name })
		if i < 0 {
			p.Variables = append(p.Variables, forced)
			continue
		}
		forced.Reason += "; derived was " + cmp.Or(p.Variables[i].Value, "unset")
		p.Variables[i] = forced
	}
}
