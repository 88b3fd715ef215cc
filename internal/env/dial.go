// SPDX-License-Identifier: Apache-2.0

package env

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Dialer connects to the agents: inside the cluster by the pods' addresses, outside by the API
// server's port-forward.
func (e Environment) Dialer() agent.Dialer {
	if e.clients.InCluster {
		return e.PodDialer(agent.Port)
	}
	return func(ctx context.Context, node int) (net.Conn, error) { return e.Forward(ctx, node, agent.Port) }
}

// Forward connects to a port of a node by the API server's port-forward.
func (e Environment) Forward(ctx context.Context, node, port int) (net.Conn, error) {
	return kube.DialPod(ctx, e.clients, e.Namespace, e.PodName(node), port)
}

// askTime bounds the question for an address: if the API server is away, the caller decides how long to try.
const askTime = 10 * time.Second

// PodDialer connects to the pod's address, which it reads again for every further connection: a replaced pod has another
// one. Errors: AgentUnreachable, PermissionDenied.
func (e Environment) PodDialer(port int) agent.Dialer {
	pods := e.podList()
	return func(ctx context.Context, node int) (net.Conn, error) {
		pod := e.PodName(node)
		found, err := pods.get(ctx, pod)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, context.DeadlineExceeded): // not the caller's deadline, which Retry looks for
			return nil, kube.Unreachable(e.Namespace, pod, fmt.Errorf("the API server did not answer within %s", askTime))
		case apierrors.IsNotFound(err):
			return nil, kube.Unreachable(e.Namespace, pod, err)
		case err != nil:
			return nil, kube.Problem(err)
		case kube.HasEnded(found):
			return nil, kube.Unreachable(e.Namespace, pod, fmt.Errorf("it has ended: %s %s", found.Status.Phase, found.Status.Reason))
		case found.Status.PodIP == "":
			return nil, kube.Unreachable(e.Namespace, pod, fmt.Errorf("it has no address yet: %s", found.Status.Phase))
		}
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(found.Status.PodIP, strconv.Itoa(port)))
		if err != nil {
			return nil, kube.Unreachable(e.Namespace, pod, err)
		}
		return conn, nil
	}
}

// podList lists the pods of an environment once for the first connections to all of them. With a request for each pod, hundreds of nodes
// would wait for the client's limit of requests.
type podList struct {
	of Environment
	// turn holds one value while a goroutine uses the fields below.
	turn chan struct{}
	// began is when the latest list was requested; pods, with what a dialer needs, and err are its answer.
	began time.Time
	pods  map[string]*corev1.Pod
	err   error
	// used are the pods of the latest list that were dialed.
	used map[string]bool
}

// recent is how old a list may be for pods that were not dialed since.
const recent = 5 * time.Second

func (e Environment) podList() *podList { return &podList{of: e, turn: make(chan struct{}, 1)} }

// get returns a pod from a recent list, and from a new one if the pod was dialed since the latest. The error is NotFound for an
// unknown pod.
func (l *podList) get(ctx context.Context, name string) (*corev1.Pod, error) {
	asked := time.Now()
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-l.turn }()
	_, listed := l.pods[name]
	if usable := listed && !l.used[name] && asked.Sub(l.began) < recent; !usable && !l.began.After(asked) {
		l.began = time.Now()
		if err := l.list(ctx); ctx.Err() != nil {
			l.began = time.Time{} // others do not share the end of this caller
			return nil, err
		}
	}
	if l.err != nil {
		return nil, l.err
	}
	pod, found := l.pods[name]
	if !found {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	l.used[name] = true
	return pod, nil
}

func (l *podList) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	l.pods, l.used = map[string]*corev1.Pod{}, map[string]bool{}
	var found []corev1.Pod
	if found, l.err = l.of.Pods(ctx); l.err != nil {
		l.err = cmp.Or(ctx.Err(), l.err)
		return l.err
	}
	for _, pod := range found {
		l.pods[pod.Name] = &corev1.Pod{Status: corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason, PodIP: pod.Status.PodIP}}
	}
	return nil
}
