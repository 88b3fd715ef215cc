// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/known"
)

// faulty returns the first node whose GPUs or RDMA devices have a fault. The fault is "" if there is none.
func faulty(facts []agent.Facts, n network.Network) (node int, fault string) {
	for node, f := range facts {
		row, _ := known.Pods().FindOf("smi", f.GPUProblem)
		unexpected := f.GPUProblem != "" && row.Whose != known.Node // which shows no fault
		if fault := f.GPUFault(); fault != "" && !unexpected {
			return node, "its GPUs: " + fault
		}
	}
	for node, f := range n.Facts {
		for _, finding := range f.Findings {
			if finding.Level == fail.Broken {
				return node, finding.Seen
			}
		}
	}
	return 0, ""
}

// replacePods replaces the pods that have lost their devices, unless they are in renewed, and reports whether it did so.
func (t *Training) replacePods(ctx context.Context, facts []agent.Facts, renewed map[int]bool) (done bool) {
	pods, ok := t.podEnvironment()
	if !ok {
		return false
	}
	for node, f := range facts {
		if !f.LostDevices() || renewed[node] {
			continue
		}
		renewed[node] = true
		host := t.hosts[node]
		if err := pods.ReplacePod(ctx, node, t.uids[node]); err != nil {
			t.Log.Warn(fmt.Sprintf("Node %d keeps its pod, which may not use its GPUs any more: %v.", node, err))
			continue
		}
		t.Log.Warn(fmt.Sprintf("Node %d on %s gets a new pod: %s.", node, host, f.GPUFault()), "event", "pod-renewed", "node", node,
			"kubernetesNode", host)
		done = true
	}
	return done
}

// staysSilent reports whether an attempt ended because a node did not answer, and still does not, while its pod is as before. A pod
// that was deleted, evicted or preempted may come back to its node.
func (t *Training) staysSilent(ctx context.Context, node int) bool {
	asking, cancel := context.WithTimeout(ctx, 3*askTime) // nvidia-smi alone may take 20 s
	defer cancel()
	_, err := t.Nodes[node].Facts(asking)
	return err != nil && t.podGone(ctx, node) == nil
}

// leaveOutBy leaves out the node that stays silent, or the node of a rank whose own words show a fault of the node.
func (t *Training) leaveOutBy(ctx context.Context, err error, failed *agent.Attempt) {
	var found cause.Error
	var lost onNode
	switch {
	case failed.Reason == fail.NodeLost && errors.As(err, &lost):
		if t.staysSilent(ctx, lost.node) {
			host := t.hosts[lost.node]
			t.leaveOut(ctx, failed, lost.node, "it did not answer")
			t.Log.Info(outOfService(host))
		}
	case errors.As(err, &found):
		if fault := found.NodeFault(); fault != "" {
			t.leaveOut(ctx, failed, found.Rank.Node, fault)
		}
	}
}

// leaveOut moves a node of the environment to another Kubernetes node because of a fault. It reports whether it did so. If not,
// the log has the reason.
func (t *Training) leaveOut(ctx context.Context, failed *agent.Attempt, node int, fault string) bool {
	pods, ok := t.podEnvironment()
	if !ok {
		t.Log.Warn(fmt.Sprintf("Node %d has a fault (%s), and stays: it is a part of this machine.", node, fault))
		return false
	}
	host := t.hosts[node]
	if err := pods.LeaveOut(ctx, node, len(t.Nodes), host); err != nil {
		t.Log.Warn(fmt.Sprintf("Kubernetes node %s stays in use although it has a fault (%s): %v.", host, fault, err))
		return false
	}
	failed.LeftOut = append(failed.LeftOut, host)
	t.Log.Warn(fmt.Sprintf("Kubernetes node %s is left out from now on: %s. Node %d of the environment moves to another one.", host, fault,
		node), "event", "node-left-out", "node", node, "kubernetesNode", host, "fault", fault)
	return true
}

// outOfService returns how the pod of a Kubernetes node that does not answer is replaced.
func outOfService(host string) string {
	return fmt.Sprintf("Kubernetes keeps the pod on %s until the node answers, or until an administrator who knows that the machine is off "+
		"runs: oc adm taint nodes %s %s=nodeshutdown:NoExecute", host, host, corev1.TaintNodeOutOfService)
}
