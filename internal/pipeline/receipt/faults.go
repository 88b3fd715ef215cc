// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// FaultKind is what went wrong on a Kubernetes node.
type FaultKind string

// The kinds of faults.
const (
	// GPUFault: a GPU was missing or could not be used, or a rank ended by an error of the GPU's hardware.
	GPUFault FaultKind = "gpu"
	// NetworkFault: the node's RDMA devices had a fault, or its ranks were not reached.
	NetworkFault FaultKind = "network"
	// LostFault: the node did not answer any more.
	LostFault FaultKind = "lost"
	// SlowFault: check-fabric measured the node to be slower than others.
	SlowFault FaultKind = "slow"
	// HangFault: the others waited for ranks on this node alone.
	HangFault FaultKind = "hang"
)

// FaultKinds are all kinds of faults.
func FaultKinds() []FaultKind {
	return []FaultKind{GPUFault, NetworkFault, LostFault, SlowFault, HangFault}
}

const (
	// mostFaults bounds the faults of a run, and mostFaultText the message of one, in bytes.
	mostFaults    = 20
	mostFaultText = 300
	// SameFault is the time within which faults of one kind that a run notes on a node count as one.
	SameFault = time.Hour
)

// Fault is something that went wrong on a Kubernetes node while a run used it.
type Fault struct {
	KubernetesNode string    `json:"kubernetesNode"`
	Kind           FaultKind `json:"kind"`
	At             time.Time `json:"at"`
	// Message is what the run saw.
	Message string `json:"message,omitempty"`
}

// same reports whether both are notes of one fault.
func (f Fault) same(other Fault) bool {
	return f.KubernetesNode == other.KubernetesNode && f.Kind == other.Kind && f.At.Sub(other.At).Abs() < SameFault
}

// AddFault notes a fault, unless the step has noted it before or does not know the Kubernetes node.
func (p *Part) AddFault(f Fault) { p.Faults = withFault(p.Faults, f) }

func withFault(all []Fault, f Fault) []Fault {
	if f.KubernetesNode == "" || len(all) >= mostFaults || slices.ContainsFunc(all, f.same) {
		return all
	}
	f.Message, f.At = truncate(f.Message, mostFaultText), ofJSON(f.At.UTC())
	return append(slices.Clip(all), f)
}

// faults returns the faults that the steps have noted.
func (m Memory) faults() (all []Fault) {
	for _, p := range m.Parts {
		for _, f := range p.Faults {
			all = withFault(all, f)
		}
	}
	return all
}

// NodeFaults returns the faults of Kubernetes nodes that the run has met so far.
func (m Memory) NodeFaults() []Fault {
	if m.Receipt != nil {
		return m.Receipt.NodeFaults()
	}
	return m.faults()
}

// NodeFaults returns the faults of Kubernetes nodes that the run met: those that its steps noted, and those that follow from the rest of
// the receipt, which is all that a receipt of an earlier version has.
func (r Receipt) NodeFaults() []Fault {
	var all []Fault
	for _, f := range r.Faults {
		all = withFault(all, f)
	}
	noted := len(all)
	add := func(host string, kind FaultKind, at time.Time, message string) {
		// The time of a fault that follows from the receipt is less exact than the time of one that was noted.
		if !slices.ContainsFunc(all[:noted], func(f Fault) bool { return f.KubernetesNode == host && f.Kind == kind }) {
			all = withFault(all, Fault{KubernetesNode: host, Kind: kind, At: at, Message: message})
		}
	}
	end := r.lastTime()
	for _, a := range r.Attempts {
		for _, host := range a.LeftOut {
			if slices.ContainsFunc(all[:noted], func(f Fault) bool { return f.KubernetesNode == host }) {
				continue
			}
			kind := GPUFault
			if a.Reason == fail.NodeLost {
				kind = LostFault
			}
			add(host, kind, a.Ended, "left out after an attempt that ended with "+string(a.Reason))
		}
	}
	if r.Verdict == Failed && r.Cause != nil && r.Cause.Hardware() {
		message := r.Cause.Exit.Error
		if r.Cause.Python != nil {
			message = r.Cause.Python.Message
		}
		add(r.host(r.Cause.Node), GPUFault, end, message)
	}
	if host := r.hanging(); host != "" {
		add(host, HangFault, end, r.Message)
	}
	r.fabricFaults(func(host string, kind FaultKind) {
		at := end
		if p := r.phase("check-fabric"); p != nil && !p.Ended.IsZero() {
			at = p.Ended
		}
		add(host, kind, at, r.Fabric.Message)
	})
	return all
}

// host returns the Kubernetes node that a node of the environment ran on, "" if the receipt does not have it.
func (r Receipt) host(node int) string {
	if i := slices.IndexFunc(r.Nodes, func(n Node) bool { return n.Node == node }); i >= 0 {
		return r.Nodes[i].KubernetesNode
	}
	return ""
}

// hanging returns the Kubernetes node that alone has the ranks for which the others waited, "" if there is none.
func (r Receipt) hanging() string {
	if r.Reason != fail.Hang || len(r.Nodes) < 2 {
		return ""
	}
	at := -1
	for _, rank := range r.Ranks {
		switch {
		case rank.Healthy():
		case at >= 0 && at != rank.Node:
			return ""
		default:
			at = rank.Node
		}
	}
	return r.host(at)
}

// fabricFaults calls add for the nodes that check-fabric blames. If it blames all of them, none is at fault.
func (r Receipt) fabricFaults(add func(host string, kind FaultKind)) {
	f := r.Fabric
	if f == nil || len(f.FaultyNodes) >= f.Nodes {
		return
	}
	kind := SlowFault
	switch f.Verdict {
	case fabric.Slow:
	case fabric.Broken:
		kind = NetworkFault
	case fabric.Pass, fabric.WrongTransport, fabric.NotMeasured:
		return
	}
	for _, node := range f.FaultyNodes {
		if node >= 0 && node < len(f.KubernetesNodes) {
			add(f.KubernetesNodes[node], kind)
		}
	}
}
