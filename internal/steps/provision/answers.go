package provision

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// answers knows which pods' agents answer. They are asked, because the kubelet
// tells of it some seconds later.
type answers struct {
	p           *provisioner
	credentials agent.Credentials
	told        func()

	mu sync.Mutex
	// of has an entry for each pod that was asked, true once it has answered.
	of map[types.UID]bool
}

// newAnswers calls told after every answer.
func newAnswers(p *provisioner, credentials agent.Credentials, told func()) *answers {
	return &answers{p: p, credentials: credentials, told: told, of: map[types.UID]bool{}}
}

// ask begins to ask those of the pods that have an address and were not asked before.
func (a *answers) ask(ctx context.Context, pods []*corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := objects.NamesOf(a.p.request.Name)
	for node := range a.p.request.Nodes {
		for _, pod := range pods {
			if _, known := a.of[pod.UID]; known || pod.Name != names.PodName(node) || pod.Status.PodIP == "" || pod.DeletionTimestamp != nil {
				continue
			}
			a.of[pod.UID] = false
			go a.wait(ctx, node, pod)
		}
	}
}

// wait asks until there is an answer, more and more slowly: an image may take
// minutes, and then a twentieth of that does not matter.
func (a *answers) wait(ctx context.Context, node int, pod *corev1.Pod) {
	// The address is known here: nothing is asked of the API server.
	dial := func(ctx context.Context, _ int) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(agent.Port)))
	}
	pause, most := 100*time.Millisecond, 2*time.Second
	if !a.p.clients.InCluster {
		dial = nodes.Dialer(a.p.clients, pod.Namespace, a.p.request.Name)
		pause = 500 * time.Millisecond
	}
	client := agent.NewClient(node, objects.NamesOf(a.p.request.Name).TLSName(pod.Namespace, node), a.credentials, dial)
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
	a.mu.Lock()
	a.of[pod.UID] = true
	a.mu.Unlock()
	a.told()
}

// all is true where all nodes' pods are there and can be used: they are ready, or
// their agents answer and it is known which image they run.
func (a *answers) all(pods []*corev1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	up, isReady := 0, 0
	for _, pod := range pods {
		switch {
		case pod.DeletionTimestamp != nil:
		case ready(pod):
			up++
			isReady++
		case a.of[pod.UID]:
			up++
		}
	}
	return isReady >= a.p.request.Nodes || up >= a.p.request.Nodes && strings.Contains(digest(pods, a.p.request.Image), "@sha256:")
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
