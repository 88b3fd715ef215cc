// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// assignments knows since when the pods have their GPUs. The zero value has seen none.
type assignments struct {
	// began is when the step did. An environment that existed before held its GPUs for somebody else until then.
	began time.Time

	mu             sync.Mutex
	nodes, perNode int
	since          []time.Time
}

// recordPods takes the pods that the environment has now. Pods that are gone keep what they had, because a failed start releases all of
// them.
func (a *assignments) recordPods(request objects.Request, pods []*corev1.Pod) {
	if a == nil {
		return
	}
	var since []time.Time
	for _, pod := range pods {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
				since = append(since, later(c.LastTransitionTime.Time, a.began))
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.nodes, a.perNode = request.Nodes, request.GPUs(); len(pods) > 0 {
		a.since = since
	}
}

// gpus returns what the run's receipt has of them, nil if no pod was seen.
func (a *assignments) gpus(now time.Time) *receipt.GPUs {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.nodes == 0 {
		return nil
	}
	g := &receipt.GPUs{Count: a.nodes * a.perNode}
	last := now
	if len(a.since) == a.nodes {
		last = a.began
		for _, at := range a.since {
			last = later(last, at)
		}
		g.Since = last.UTC()
	}
	for _, at := range a.since {
		g.Before += max(0, last.Sub(at).Seconds()) * float64(a.perNode)
	}
	return g
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
