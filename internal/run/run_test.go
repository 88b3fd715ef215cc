// SPDX-License-Identifier: Apache-2.0

package run

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func start() time.Time { return time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC) }

func pipelineRun(change ...func(*v1.PipelineRun)) *v1.PipelineRun {
	r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-1", UID: "uid-1"}}
	r.Status.StartTime = &metav1.Time{Time: start()}
	for _, c := range change {
		c(r)
	}
	return r
}

func d(duration time.Duration) *metav1.Duration { return &metav1.Duration{Duration: duration} }

func timeouts(t v1.TimeoutFields) func(*v1.PipelineRun) {
	return func(r *v1.PipelineRun) { r.Spec.Timeouts = &t }
}

func succeeded(status corev1.ConditionStatus, reason, message string) apis.Condition {
	return apis.Condition{Type: apis.ConditionSucceeded, Status: status, Reason: reason, Message: message}
}

func condition(status corev1.ConditionStatus, reason, message string) func(*v1.PipelineRun) {
	return func(r *v1.PipelineRun) {
		c := succeeded(status, reason, message)
		r.Status.SetCondition(&c)
	}
}

// The fake runs no controller and no webhook: the test sets what Tekton would set.
func TestOf(t *testing.T) {
	for _, tc := range []struct {
		name string
		run  *v1.PipelineRun
		want Run
	}{
		{"just started", pipelineRun(), Run{Timeouts: Timeouts{Pipeline: time.Hour}}},
		{"all timeouts", pipelineRun(timeouts(v1.TimeoutFields{Pipeline: d(3 * time.Hour), Tasks: d(2 * time.Hour), Finally: d(time.Hour)})),
			Run{Timeouts: Timeouts{3 * time.Hour, 2 * time.Hour, time.Hour}}},
		{"tasks are what finally leaves", pipelineRun(timeouts(v1.TimeoutFields{Pipeline: d(3 * time.Hour), Finally: d(time.Hour)})),
			Run{Timeouts: Timeouts{3 * time.Hour, 2 * time.Hour, time.Hour}}},
		{"none", pipelineRun(timeouts(v1.TimeoutFields{Pipeline: d(0), Finally: d(time.Hour)})),
			Run{Timeouts: Timeouts{0, 0, time.Hour}}},
		{"cancelled", pipelineRun(func(r *v1.PipelineRun) { r.Spec.Status = v1.PipelineRunSpecStatusCancelled }),
			Run{Timeouts: Timeouts{Pipeline: time.Hour}, Cancelled: true, NoFinally: true}},
		{"stopped", pipelineRun(func(r *v1.PipelineRun) { r.Spec.Status = v1.PipelineRunSpecStatusStoppedRunFinally }),
			Run{Timeouts: Timeouts{Pipeline: time.Hour}}},
		{"failed", pipelineRun(condition(corev1.ConditionFalse, "Failed", "Tasks Completed: 2")),
			Run{Timeouts: Timeouts{Pipeline: time.Hour}, Done: true, Reason: "Failed", Message: "Tasks Completed: 2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Namespace, tc.want.Name, tc.want.UID, tc.want.Started = "ns", "train-1", "uid-1", start()
			got, err := Get(t.Context(), fake.NewSimpleClientset(tc.run), "ns", "train-1")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := Get(t.Context(), fake.NewSimpleClientset(), "ns", "train-1"); !apierrors.IsNotFound(err) {
		t.Errorf("no such run: got %v", err)
	}
}

func TestCheckTimeouts(t *testing.T) {
	need := Needs{Start: 10 * time.Minute, Training: 24 * time.Hour, Teardown: 5 * time.Minute}
	const advice = "tkn pipeline start ... --pipeline-timeout=24h23m --tasks-timeout=24h18m --finally-timeout=5m"
	for _, tc := range []struct {
		name     string
		timeouts v1.TimeoutFields
		want     string // the timeout that is too short, "" for none
	}{
		{"unset", v1.TimeoutFields{}, "pipeline 1h, want 24h18m"},
		{"none", v1.TimeoutFields{Pipeline: d(0)}, ""},
		{"pipeline alone is enough", v1.TimeoutFields{Pipeline: d(24*time.Hour + 18*time.Minute)}, ""},
		{"pipeline just too short", v1.TimeoutFields{Pipeline: d(24*time.Hour + 17*time.Minute)}, "pipeline 24h17m, want 24h18m"},
		{"tasks too short", v1.TimeoutFields{Pipeline: d(48 * time.Hour), Tasks: d(24 * time.Hour)}, "tasks 24h, want 24h13m"},
		{"finally too short", v1.TimeoutFields{Pipeline: d(48 * time.Hour), Finally: d(90 * time.Second)}, "finally 1m30s, want 5m"},
		{"finally gets what tasks leave", v1.TimeoutFields{Pipeline: d(25 * time.Hour), Tasks: d(25*time.Hour - time.Minute)},
			"finally 1m, want 5m"},
		{"what was advised", v1.TimeoutFields{Pipeline: d(24*time.Hour + 23*time.Minute), Tasks: d(24*time.Hour + 18*time.Minute),
			Finally: d(5 * time.Minute)}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := CheckTimeouts(FromPipelineRun(pipelineRun(timeouts(tc.timeouts))), need, start().Add(2*time.Minute+30*time.Second))
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if fail.ReasonOf(err) != fail.TimeoutTooShort || !strings.Contains(err.Error(), tc.want+" (2m30s since its start") {
				t.Errorf("got %v, want TimeoutTooShort with %q", err, tc.want)
			}
			if diff := cmp.Diff(advice, fail.NextOf(err)); diff != "" {
				t.Errorf("advice (-want +got):\n%s", diff)
			}
		})
	}
}

// Ranks may save for the time of stop-grace at the end of the training, or while the finally tasks run.
func TestSavingTakesTime(t *testing.T) {
	need := Needs{Start: 10 * time.Minute, Training: 40 * time.Minute, Grace: 20 * time.Minute, Teardown: 5 * time.Minute}
	given := TimeoutsFor(need)
	for _, tc := range []struct {
		timeouts v1.TimeoutFields
		want     string
	}{
		{v1.TimeoutFields{}, "pipeline 1h, want 1h15m"},
		{v1.TimeoutFields{Pipeline: d(3 * time.Hour), Tasks: d(time.Hour)}, "tasks 1h, want 1h10m"},
		{v1.TimeoutFields{Pipeline: d(3 * time.Hour), Finally: d(6 * time.Minute)}, "finally 6m, want 25m"},
		{v1.TimeoutFields{Pipeline: d(75 * time.Minute)}, ""},
		{*given.Fields(), ""},
	} {
		err := CheckTimeouts(FromPipelineRun(pipelineRun(timeouts(tc.timeouts))), need, start())
		if tc.want == "" && err != nil || tc.want != "" && (fail.ReasonOf(err) != fail.TimeoutTooShort ||
			!strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "20m to save when it is stopped")) {
			t.Errorf("%+v: got %v, want %q", tc.timeouts, err, tc.want)
		}
	}
}

// TestFabricTakesTime: the time that a run needs includes measuring the network, if the run measures it.
func TestFabricTakesTime(t *testing.T) {
	need := Needs{Start: 10 * time.Minute, Training: 40 * time.Minute, Teardown: 5 * time.Minute}
	pipeline := &v1.PipelineSpec{
		Params: v1.ParamSpecs{{Name: "check-fabric", Default: v1.NewStructuredValues("true")}},
		Tasks:  []v1.PipelineTask{{Name: "provision"}, {Name: "check-fabric"}},
	}
	asked := func(value string) v1.Params {
		return v1.Params{{Name: "check-fabric", Value: *v1.NewStructuredValues(value)}}
	}
	for _, tc := range []struct {
		name     string
		pipeline *v1.PipelineSpec
		params   v1.Params
		want     string // the timeout that is too short, "" for none
	}{
		{"by default", pipeline, nil, "pipeline 57m, want 58m (1m since its start, 10m to start, 2m to check the network, 40m of training"},
		{"asked for", pipeline, asked("true"), "pipeline 57m, want 58m"},
		{"left out", pipeline, asked("false"), ""},
		{"a pipeline without", &v1.PipelineSpec{Tasks: []v1.PipelineTask{{Name: "provision"}}}, asked("true"), ""},
		{"not read yet", nil, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found := pipelineRun(timeouts(v1.TimeoutFields{Pipeline: d(57 * time.Minute)}))
			found.Spec.Params, found.Status.PipelineSpec = tc.params, tc.pipeline
			err := CheckTimeouts(FromPipelineRun(found), need, start().Add(time.Minute))
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func taskRunOf(task string, change ...func(*v1.TaskRun)) *v1.TaskRun {
	child := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "train-1-" + task,
		Labels:          map[string]string{Label: "train-1", taskLabel: task},
		OwnerReferences: []metav1.OwnerReference{OwnerReference("train-1", "uid-1")},
	}}
	for _, c := range change {
		c(child)
	}
	return child
}

// The fake runs no controller: the states are those in which Tekton leaves a run when it deletes a pod.
func TestEndingOf(t *testing.T) {
	day := timeouts(v1.TimeoutFields{Pipeline: d(24 * time.Hour)})
	for _, tc := range []struct {
		name  string
		run   *v1.PipelineRun
		tasks []*v1.TaskRun
		after time.Duration
		want  Ending
	}{
		{"no run", nil, nil, time.Hour, Ending{RunDeleted, "pipelinerun train-1 was deleted", true, false}},
		{"another run of that name", pipelineRun(func(r *v1.PipelineRun) { r.UID = "uid-2" }), nil, time.Hour,
			Ending{RunDeleted, "pipelinerun train-1 was deleted", true, false}},
		{"being deleted", pipelineRun(day, func(r *v1.PipelineRun) {
			r.DeletionTimestamp, r.Finalizers = &metav1.Time{Time: start()}, []string{"chains.tekton.dev"}
		}), nil, time.Hour, Ending{RunDeleted, "pipelinerun train-1 is being deleted", true, false}},
		{"cancelled", pipelineRun(day, func(r *v1.PipelineRun) { r.Spec.Status = v1.PipelineRunSpecStatusCancelledRunFinally }), nil, time.Hour,
			Ending{CancelledByUser, "pipelinerun train-1 was cancelled", false, false}},
		{"cancelled, and nobody waits", pipelineRun(day, func(r *v1.PipelineRun) {
			r.Spec.Status, r.Annotations = v1.PipelineRunSpecStatusCancelledRunFinally, map[string]string{CancelAnnotation: CancelNow}
		}), nil, time.Hour, Ending{CancelledByUser, "pipelinerun train-1 was cancelled", false, true}},
		{"cancelled without finally tasks", pipelineRun(day, func(r *v1.PipelineRun) { r.Spec.Status = v1.PipelineRunSpecStatusCancelled }), nil,
			time.Hour,
			Ending{CancelledByUser, "pipelinerun train-1 was cancelled", true, false}},
		{"timed out", pipelineRun(day, condition(corev1.ConditionFalse, "PipelineRunTimeout", "failed to finish")), nil, time.Hour,
			Ending{TimedOut, "pipelinerun train-1 timed out: failed to finish", true, false}},
		{"deadline just passed, not yet written down", pipelineRun(day), nil, 24*time.Hour - time.Second,
			Ending{TimedOut, "pipelinerun train-1 reached its pipeline timeout of 24h", true, false}},
		{"tasks timeout", pipelineRun(timeouts(v1.TimeoutFields{Pipeline: d(24 * time.Hour), Tasks: d(20 * time.Hour)})),
			[]*v1.TaskRun{taskRunOf("train", func(c *v1.TaskRun) {
				c.Spec.Status, c.Spec.StatusMessage = v1.TaskRunSpecStatusCancelled, v1.TaskRunCancelledByPipelineTimeoutMsg
			})}, 20 * time.Hour, Ending{TimedOut, "pipelinerun train-1 reached its tasks timeout of 20h", false, false}},
		{"the task alone is cancelled", pipelineRun(day),
			[]*v1.TaskRun{taskRunOf("train", func(c *v1.TaskRun) { c.Spec.Status = v1.TaskRunSpecStatusCancelled })},
			time.Hour, Ending{CancelledByUser, "taskrun train-1-train was cancelled", false, false}},
		{"the task's own timeout", pipelineRun(day), []*v1.TaskRun{taskRunOf("train", func(c *v1.TaskRun) {
			c.Spec.Timeout, c.Status.StartTime = d(2*time.Hour), &metav1.Time{Time: start().Add(time.Hour)}
		})}, 3 * time.Hour, Ending{TimedOut, "taskrun train-1-train reached its timeout of 2h", false, false}},
		{"another task is cancelled", pipelineRun(day), []*v1.TaskRun{
			taskRunOf("train"), taskRunOf("preflight", func(c *v1.TaskRun) { c.Spec.Status = v1.TaskRunSpecStatusCancelled }),
		}, time.Hour, Ending{Evicted, "the pod was evicted while pipelinerun train-1 continues", false, false}},
		{"evicted, without timeouts", pipelineRun(timeouts(v1.TimeoutFields{Pipeline: d(0)})), []*v1.TaskRun{taskRunOf("train")}, 99 * time.Hour,
			Ending{Evicted, "the pod was evicted while pipelinerun train-1 continues", false, false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var objects []runtime.Object
			if tc.run != nil {
				objects = append(objects, tc.run)
			}
			for _, child := range tc.tasks {
				objects = append(objects, child)
			}
			got, err := EndingOf(t.Context(), fake.NewSimpleClientset(objects...), "ns", "train-1", "uid-1", "train", start().Add(tc.after))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTaskRuns(t *testing.T) {
	at := func(minutes int) *metav1.Time {
		return &metav1.Time{Time: start().Add(time.Duration(minutes) * time.Minute)}
	}
	client := fake.NewSimpleClientset(
		taskRunOf("train", func(c *v1.TaskRun) {
			c.Status.StartTime, c.Status.CompletionTime, c.Status.PodName = at(2), at(9), "train-1-train-pod"
			c.Status.RetriesStatus = []v1.TaskRunStatus{{TaskRunStatusFields: v1.TaskRunStatusFields{
				Results: []v1.TaskRunResult{{Name: "reason", Value: *v1.NewStructuredValues("Cancelled")}}}}}
			c.Status.Results = []v1.TaskRunResult{{Name: "reason", Value: *v1.NewStructuredValues("RankFailed")}}
			failed := succeeded(corev1.ConditionFalse, "Failed", "step train exited with code 1")
			c.Status.SetCondition(&failed)
		}),
		taskRunOf("provision", func(c *v1.TaskRun) {
			c.Status.StartTime, c.Status.CompletionTime = at(0), at(1)
			c.Status.Results = []v1.TaskRunResult{
				{Name: "nodes", Value: *v1.NewStructuredValues("2")},
				{Name: "names", Value: *v1.NewStructuredValues("a", "b")},
			}
			done := succeeded(corev1.ConditionTrue, "Succeeded", "All Steps have completed executing")
			c.Status.SetCondition(&done)
		}),
		taskRunOf("waiting"),
		// Tekton has retried a final verdict.
		taskRunOf("train-finally", func(c *v1.TaskRun) {
			reason := []v1.TaskRunResult{{Name: "reason", Value: *v1.NewStructuredValues("OutOfMemory")}}
			c.Status.StartTime, c.Status.CompletionTime, c.Status.PodName, c.Status.Results = at(8), at(9), "retry1-pod", reason
			c.Status.RetriesStatus = []v1.TaskRunStatus{
				{TaskRunStatusFields: v1.TaskRunStatusFields{StartTime: at(3), CompletionTime: at(7), PodName: "first-pod", Results: reason}}}
			failed := succeeded(corev1.ConditionFalse, "Failed", "step train exited with code 1")
			c.Status.SetCondition(&failed)
		}),
		taskRunOf("teardown", func(c *v1.TaskRun) { c.Status.StartTime = at(10) }),
		taskRunOf("of-an-earlier-run", func(c *v1.TaskRun) { c.OwnerReferences[0].UID = types.UID("uid-0") }),
		taskRunOf("of-another-run", func(c *v1.TaskRun) { c.Labels[Label] = "train-2" }),
	)
	got, err := TaskRuns(t.Context(), client, "ns", "train-1", "uid-1")
	if err != nil {
		t.Fatal(err)
	}
	none := map[string]string{}
	want := []TaskRun{
		{Task: "provision", Name: "train-1-provision", Status: Succeeded, Started: at(0).Time, Ended: at(1).Time,
			Results: map[string]string{"nodes": "2", "names": `["a","b"]`}},
		{Task: "train", Name: "train-1-train", Pod: "train-1-train-pod", Status: Failed, Started: at(2).Time, Ended: at(9).Time, Retries: 1,
			Earlier: map[string]string{"reason": "Cancelled"},
			Results: map[string]string{"reason": "RankFailed"}, Reason: fail.RankFailed, Message: "step train exited with code 1"},
		{Task: "train-finally", Name: "train-1-train-finally", Pod: "first-pod", Status: Failed, Started: at(3).Time, Ended: at(7).Time,
			Earlier: map[string]string{"reason": "OutOfMemory"},
			Results: map[string]string{"reason": "OutOfMemory"}, Reason: fail.OutOfMemory, Message: "step train exited with code 1"},
		{Task: "teardown", Name: "train-1-teardown", Status: Running, Started: at(10).Time, Results: none},
		{Task: "waiting", Name: "train-1-waiting", Status: Running, Results: none},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
