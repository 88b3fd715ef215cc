// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// observer notes when the last pod reached each state. It watches for itself, so that what a step adds to the time of the control plane
// can be told apart.
type observer struct {
	mu   sync.Mutex
	last moments
	// admitted, scheduled and ready have the pods that reached the state.
	admitted, scheduled, ready map[types.UID]bool
}

// moments are the times at which the last pod reached each state. A pod is admitted once it has no scheduling gates.
type moments struct{ created, admitted, scheduled, ready, deleted time.Time }

func observe(ctx context.Context, client kubernetes.Interface) *observer {
	o := &observer{admitted: map[types.UID]bool{}, scheduled: map[types.UID]bool{}, ready: map[types.UID]bool{}}
	go func() {
		for ctx.Err() == nil {
			w, err := client.CoreV1().Pods("ns").Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
			if err != nil {
				continue
			}
			for event := range w.ResultChan() {
				if pod, ok := event.Object.(*corev1.Pod); ok {
					o.note(event.Type, pod)
				}
			}
		}
	}()
	return o
}

func (o *observer) note(kind watch.EventType, pod *corev1.Pod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	switch kind {
	case watch.Added:
		o.last.created = now
	case watch.Deleted:
		o.last.deleted = now
	}
	first := func(known map[types.UID]bool, reached bool, last *time.Time) {
		if reached && !known[pod.UID] {
			known[pod.UID], *last = true, now
		}
	}
	first(o.admitted, len(pod.Spec.SchedulingGates) == 0, &o.last.admitted)
	first(o.scheduled, pod.Spec.NodeName != "", &o.last.scheduled)
	first(o.ready, kube.IsReady(pod), &o.last.ready)
}

// times returns the moments since the last reset.
func (o *observer) times() moments {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

// reset forgets the times.
func (o *observer) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	o.last = moments{now, now, now, now, now}
}
