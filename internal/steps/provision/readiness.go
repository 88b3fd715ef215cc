// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// readiness knows which pods' agents answer. It asks them, because the kubelet reports readiness some seconds later.
type readiness struct {
	p           *provisioner
	credentials agent.Credentials
	// changed is called after every first answer.
	changed func()

	mu sync.Mutex
	// pods are those that the environment has now; answered has an entry for each pod that was asked, true once it has answered.
	pods     []*corev1.Pod
	answered map[types.UID]bool
}

// askNewPods starts to ask the pods that have an address and were not asked before.
func (r *readiness) askNewPods(ctx context.Context, pods []*corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods = pods
	r.p.assigned.recordPods(r.p.request, pods)
	byName := map[string]*corev1.Pod{}
	for _, pod := range pods {
		byName[pod.Name] = pod
	}
	e := r.p.environment()
	for node := range r.p.request.Nodes {
		pod := byName[e.PodName(node)]
		if pod == nil || pod.Status.PodIP == "" || pod.DeletionTimestamp != nil {
			continue
		}
		if _, asked := r.answered[pod.UID]; asked {
			continue
		}
		r.answered[pod.UID] = false
		go r.wait(ctx, node, pod)
	}
}

// wait asks until there is an answer, more and more slowly: an image may take minutes.
func (r *readiness) wait(ctx context.Context, node int, pod *corev1.Pod) {
	// The address is known here: no request to the API server is needed.
	dial := func(ctx context.Context, _ int) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(agent.Port)))
	}
	pause, most := 100*time.Millisecond, 2*time.Second
	if !r.p.clients.InCluster {
		// Each question goes through the API server: those of up to 200 nodes are at most a hundred in a second.
		dial = r.p.environment().Dialer()
		pause = min(most, max(pause, time.Duration(r.p.request.Nodes)*time.Second/100))
	}
	client := agent.NewClient(node, r.p.environment().TLSName(node), r.credentials, dial)
	defer client.Close()
	for ; ; pause = min(pause*21/20, most) {
		if _, err := client.Health(ctx); err == nil {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
	r.mu.Lock()
	r.answered[pod.UID] = true
	r.mu.Unlock()
	r.changed()
}

// allReady returns the pods, and reports whether all nodes' can be used: they are ready, or their agents answer and the image's digest
// is known.
func (r *readiness) allReady() ([]*corev1.Pod, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	usable, isReady := 0, 0
	for _, pod := range r.pods {
		switch {
		case pod.DeletionTimestamp != nil:
		case kube.IsReady(pod):
			usable++
			isReady++
		case r.answered[pod.UID]:
			usable++
		}
	}
	return r.pods, isReady >= r.p.request.Nodes || usable >= r.p.request.Nodes && strings.Contains(digest(r.pods, r.p.request.Image),
		"@sha256:")
}
