// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// timeline has the events of a namespace's objects, each with the time at which a watch first
// reported it: Kubernetes itself records only whole seconds.
type timeline struct {
	mu  sync.Mutex
	at  map[event]time.Time
	run *v1.PipelineRun
}

// event is something that happens to an object once.
type event struct{ kind, name, what string }

func (t *timeline) saw(at time.Time, kind, name, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := (event{kind, name, what}); t.at[e].IsZero() {
		t.at[e] = at
	}
}

// moment returns an error if the event was never seen.
func (t *timeline) moment(kind, name, what string) (time.Time, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.at[event{kind, name, what}]
	if at.IsZero() {
		return at, fmt.Errorf("%s %s was never seen %s", kind, name, what)
	}
	return at, nil
}

// span returns the seconds between two events of an object.
func (t *timeline) span(kind, name, from, to string) (float64, error) {
	start, err := t.moment(kind, name, from)
	end, err2 := t.moment(kind, name, to)
	return end.Sub(start).Seconds(), errors.Join(err, err2)
}

// follow watches the namespace until the run has ended. It also sees objects of other runs; they
// have other names.
func (ns *namespace) follow(ctx context.Context, run string) (*timeline, error) {
	t := &timeline{at: map[event]time.Time{}}
	group, ctx := errgroup.WithContext(ctx)
	over, end := context.WithCancel(ctx)
	group.Go(func() error {
		defer end()
		err := kube.WatchUntil(ctx, "pipelinerun "+run, ns.clients.Tekton.TektonV1().PipelineRuns(ns.name), metav1.ListOptions{},
			func(runs []*v1.PipelineRun) (bool, error) {
				for _, r := range runs {
					if r.Name == run && r.IsDone() {
						t.saw(time.Now(), "run", run, "done")
						t.run = r
					}
				}
				return t.run != nil, nil
			})
		if err != nil {
			return err
		}
		// The other watch may report its events later than this one.
		tasks, err := ns.clients.Tekton.TektonV1().TaskRuns(ns.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range tasks.Items {
			t.sawTask(&tasks.Items[i])
		}
		return nil
	})
	watchUntil(over, group, "taskruns", ns.clients.Tekton.TektonV1().TaskRuns(ns.name), t.sawTask)
	watchUntil(over, group, "pods", ns.clients.Kube.CoreV1().Pods(ns.name), t.sawPod)
	watchUntil(over, group, "receipts", ns.clients.Kube.CoreV1().ConfigMaps(ns.name), func(written *corev1.ConfigMap) {
		if written.Labels[receipt.Label] != "" && written.Data["receipt.json"] != "" { // before it there are the notes of a run in progress
			t.saw(time.Now(), "receipt", written.Name, "written")
		}
	})
	return t, group.Wait()
}

func (t *timeline) sawTask(task *v1.TaskRun) {
	t.saw(time.Now(), "taskrun", task.Name, "created")
	if task.IsDone() {
		t.saw(time.Now(), "taskrun", task.Name, "done")
	}
}

// podEvents are the names of a pod's conditions in a timeline.
var podEvents = map[corev1.PodConditionType]string{
	corev1.PodScheduled: "scheduled", corev1.PodInitialized: "initialized", corev1.PodReady: "ready",
}

// sawPod records when a pod was created, its conditions, when its containers ran, and when Tekton started its step.
func (t *timeline) sawPod(pod *corev1.Pod) {
	t.saw(time.Now(), "pod", pod.Name, "made")
	for _, condition := range pod.Status.Conditions {
		if what := podEvents[condition.Type]; what != "" && condition.Status == corev1.ConditionTrue {
			t.saw(time.Now(), "pod", pod.Name, what)
		}
	}
	for _, container := range pod.Status.ContainerStatuses {
		if container.State.Waiting == nil {
			t.saw(time.Now(), "pod", pod.Name, "running")
		}
		if container.State.Terminated == nil {
			continue
		}
		// Tekton's entrypoint writes the time here, in milliseconds.
		var results []struct{ Key, Value string }
		if json.Unmarshal([]byte(container.State.Terminated.Message), &results) != nil {
			continue
		}
		for _, result := range results {
			if at, err := time.Parse(time.RFC3339, result.Value); err == nil && result.Key == "StartedAt" {
				t.saw(at, "pod", pod.Name, "started")
			}
		}
	}
}

// watchUntil makes the group call each for every state of every object until ctx is done.
func watchUntil[T metav1.Object, L runtime.Object](ctx context.Context, group *errgroup.Group, what string, source kube.Source[L],
	each func(T)) {
	group.Go(func() error {
		err := kube.WatchUntil(ctx, what, source, metav1.ListOptions{}, func(objects []T) (bool, error) {
			for _, object := range objects {
				each(object)
			}
			return false, nil
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is no error
		}
		return err
	})
}
