// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/hosts"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// chooseHosts decides which Kubernetes nodes the environment must not use, and which it avoids. An environment that exists keeps what it
// was created with: another choice would need new pods. If its pods are created again at the user's wish, they honour a new quarantine.
func (p *provisioner) chooseHosts(ctx context.Context, live *appsv1.StatefulSet) error {
	if live != nil {
		p.request.Quarantined, p.request.AvoidNodes = objects.Chosen(live)
		if p.options.OnChange != "recreate" {
			return nil
		}
	}
	all := hosts.Choose(ctx, p.clients.Kube, p.request.Namespace, p.now())
	switch fail.ReasonOf(all.UnreadRecord) {
	case fail.PermissionDenied, fail.InvalidInput: // neither changes by itself, and a run can do without
		p.log.Warn(fmt.Sprintf("Which Kubernetes nodes are quarantined is not known: %v", all.UnreadRecord))
	default:
		if all.UnreadRecord != nil {
			return all.UnreadRecord
		}
	}
	if err := all.TooFew(p.request); err != nil {
		return err
	}
	choice := all.For(p.request)
	p.request.Quarantined = choice.QuarantinedNodes()
	for _, r := range choice.Quarantined {
		p.log.Info(fmt.Sprintf("Kubernetes node %s is not used: it is quarantined %s. To end that: %s", r.Node, r.Quarantined,
			hosts.Release(r.Node, p.request.Namespace)), "event", "node-quarantined", "kubernetesNode", r.Node)
	}
	if live != nil || p.options.UseAllNodes {
		return nil
	}
	if all.UnreadFaults != nil {
		p.log.Warn(fmt.Sprintf("Not all faults that earlier runs met on Kubernetes nodes are known: %v", all.UnreadFaults))
	}
	p.request.AvoidNodes = choice.AvoidedNodes()
	for _, a := range choice.Avoided {
		p.log.Warn(fmt.Sprintf("Kubernetes node %s is used only if no other one is free: %s. --use-all-nodes (param use-all-nodes) uses it "+
			"as any "+
			"other; after a repair: %s", a.Node, a.Why(), hosts.Release(a.Node, p.request.Namespace)), "event", "node-avoided", "kubernetesNode",
			a.Node, "faults", len(a.Faults))
	}
	return nil
}

// withReleases adds how to end the quarantines to the error of pods for which no node was found.
func (p *provisioner) withReleases(err error) error {
	short := []fail.Reason{fail.NodesUnavailable, fail.GPUsUnavailable, fail.PodsNotReady}
	if len(p.request.Quarantined) == 0 || !slices.Contains(short, fail.ReasonOf(err)) {
		return err
	}
	next := hosts.Releases(p.request.Quarantined, p.request.Namespace)
	return fail.Advise(fmt.Errorf("%w (not used, because they are quarantined: %s)", err, strings.Join(p.request.Quarantined, ", ")), "%s",
		next)
}

// faults are those of Kubernetes nodes that the step has seen. A nil one notes nothing.
type faults struct {
	mu   sync.Mutex
	part receipt.Part
}

func (f *faults) add(host string, kind receipt.FaultKind, at time.Time, message string) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.part.AddFault(receipt.Fault{KubernetesNode: host, Kind: kind, At: at, Message: message})
}

func (f *faults) addTo(p *receipt.Part) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range f.part.Faults {
		p.AddFault(fault)
	}
}

// noteGPUFaults notes the nodes whose GPUs have a fault. GPUs that cannot be read on any node are no fault of the nodes: the image or the
// driver of all of them does not allow it.
func (p *provisioner) noteGPUFaults(facts []agent.Facts) {
	readable := slices.ContainsFunc(facts, func(f agent.Facts) bool { return f.GPUProblem == "" })
	for _, f := range facts {
		if fault := f.GPUFault(); fault != "" && readable {
			p.faults.add(f.KubernetesNode, receipt.GPUFault, p.now(), fault)
		}
	}
}
