// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// taskOf returns the task train of a run, for which Tekton has created a pod.
func taskOf(of *v1.PipelineRun, pod string) *v1.TaskRun {
	task := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train",
		Labels:          map[string]string{run.Label: of.Name, "tekton.dev/pipelineTask": "train"},
		OwnerReferences: []metav1.OwnerReference{{UID: of.UID}}}}
	task.Status.PodName = pod
	return task
}

// Tekton looks again at a step whose pod it has lost, and at no other.
func TestWake(t *testing.T) {
	const name = "name-of-run"
	for what, tc := range map[string]struct {
		pod    *corev1.Pod
		began  string // the name of the pod that Tekton has created
		ended  bool
		dryRun bool
		want   bool
	}{
		"the pod is gone":           {began: "pod", want: true},
		"the pod is being deleted":  {began: "pod", pod: podOf(name, corev1.PodRunning, true), want: true},
		"only to see":               {began: "pod", dryRun: true},
		"the pod runs":              {began: "pod", pod: podOf(name, corev1.PodRunning, false)},
		"the task has not begun":    {},
		"the next task will follow": {began: "pod", ended: true},
	} {
		t.Run(what, func(t *testing.T) {
			known := []runtime.Object{leaseOf("env", "run", time.Minute)}
			if tc.pod != nil {
				known = append(known, tc.pod)
			}
			of := pipelineRun("run")
			task := taskOf(of, tc.began)
			if tc.ended {
				task.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionTrue})
			}
			r, _, log := newReaper(known, []runtime.Object{of, task})
			r.dryRun = tc.dryRun
			if err := r.pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			got, err := r.clients.Tekton.TektonV1().TaskRuns("ns").Get(t.Context(), "train", metav1.GetOptions{})
			if _, is := got.Annotations[woken]; err != nil || is != tc.want {
				t.Errorf("annotations %v, %v; want that Tekton is told: %t\n%s", got.Annotations, err, tc.want, log)
			}
		})
	}
}
