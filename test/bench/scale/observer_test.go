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
	mu                                 sync.Mutex
	scheduled, ready                   map[types.UID]bool
	created, placed, readied, deletion time.Time
}

func observe(ctx context.Context, client kubernetes.Interface) *observer {
	o := &observer{}
	o.reset()
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
		o.created = now
	case watch.Deleted:
		o.deletion = now
	}
	if pod.Spec.NodeName != "" && !o.scheduled[pod.UID] {
		o.scheduled[pod.UID], o.placed = true, now
	}
	if kube.IsReady(pod) && !o.ready[pod.UID] {
		o.ready[pod.UID], o.readied = true, now
	}
}

// times returns when the last pod was created, scheduled, ready and deleted.
func (o *observer) times() (created, scheduled, ready, deleted time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.created, o.placed, o.readied, o.deletion
}

// reset forgets the times.
func (o *observer) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	o.created, o.placed, o.readied, o.deletion = now, now, now, now
	if o.scheduled == nil {
		o.scheduled, o.ready = map[types.UID]bool{}, map[types.UID]bool{}
	}
}
