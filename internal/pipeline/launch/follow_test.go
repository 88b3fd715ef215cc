// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

func at(minute int) *metav1.Time {
	return &metav1.Time{Time: time.Date(2026, 7, 1, 12, minute, 0, 0, time.UTC)}
}

func condition(status corev1.ConditionStatus, reason, message string) *apis.Condition {
	return &apis.Condition{Type: apis.ConditionSucceeded, Status: status, Reason: reason, Message: message}
}

func followed(change func(*v1.PipelineRun)) *v1.PipelineRun {
	r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine", UID: "uid-1"}}
	r.Status.StartTime = at(0)
	if change != nil {
		change(r)
	}
	return r
}

func taskRun(task string, change func(*v1.TaskRun)) *v1.TaskRun {
	owner := metav1.OwnerReference{Kind: "PipelineRun", Name: "mine", UID: "uid-1", Controller: new(true)}
	t := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "mine-" + task, OwnerReferences: []metav1.OwnerReference{owner},
		Labels: map[string]string{"tekton.dev/pipelineRun": "mine", "tekton.dev/pipelineTask": task},
	}}
	t.Status.StartTime = at(1)
	t.Status.SetCondition(condition(corev1.ConditionUnknown, "Running", ""))
	if change != nil {
		change(t)
	}
	return t
}

func ran(pod string, end *corev1.ContainerStateTerminated) func(*v1.TaskRun) {
	return func(t *v1.TaskRun) {
		t.Status.PodName = pod
		step := v1.StepState{Name: "s", Container: "step-s"}
		if end == nil {
			step.Running = &corev1.ContainerStateRunning{}
		} else {
			step.Terminated = end
		}
		t.Status.Steps = []v1.StepState{step}
	}
}

func ended(t *v1.TaskRun, status corev1.ConditionStatus, reason, message string, results ...v1.TaskRunResult) *v1.TaskRun {
	t.Status.CompletionTime = at(2)
	t.Status.Results = results
	t.Status.SetCondition(condition(status, reason, message))
	return t
}

// The fake runs no controller: a test does what Tekton would. Its logs are always "fake logs" without a newline, so Follow
// prints the line when the task has ended.
func TestFollow(t *testing.T) {
	tekton := fake.NewSimpleClientset(followed(nil))
	clients := &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}
	runs, tasks := tekton.TektonV1().PipelineRuns("ns"), tekton.TektonV1().TaskRuns("ns")
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	create := func(task *v1.TaskRun) {
		_, err := tasks.Create(t.Context(), task, metav1.CreateOptions{})
		do(err)
	}
	update := func(task *v1.TaskRun) {
		_, err := tasks.Update(t.Context(), task, metav1.UpdateOptions{})
		do(err)
	}
	done := &corev1.ContainerStateTerminated{}
	type told struct {
		Kind       Kind
		Task, Text string
		Retry      int
	}
	var got []told
	// The fake's watch knows no resource versions, and never reports what happens between list and watch.
	var watching sync.WaitGroup
	watching.Add(2)
	tekton.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		defer watching.Done()
		w, err := tekton.Tracker().Watch(action.GetResource(), "ns")
		return true, w, err
	})
	go func() {
		watching.Wait()
		create(taskRun("build-image", nil))
	}()
	create(taskRun("of-another", func(t *v1.TaskRun) { t.OwnerReferences[0].UID = "uid-0" }))
	outcome, err := Follow(t.Context(), clients, followed(nil), func(e Event) {
		got = append(got, told{e.Kind, e.Task, e.Text, e.Retry})
		// The next change follows when Follow reports this one.
		go func() {
			switch {
			case e.Kind == TaskStarted && e.Task == "build-image":
				update(taskRun("build-image", func(t *v1.TaskRun) {
					t.Status.SetCondition(condition(corev1.ConditionUnknown, "ExceededNodeResources", "no room"))
				}))
			case e.Kind == TaskWaiting:
				update(ended(taskRun("build-image", ran("pod-1", done)), corev1.ConditionTrue, "Succeeded", ""))
			case e.Kind == TaskEnded && e.Task == "build-image":
				create(taskRun("train", ran("pod-2", nil)))
			case e.Kind == TaskStarted && e.Task == "train":
				update(ended(taskRun("train", ran("pod-2", done)), corev1.ConditionFalse, "Failed", "exit code 1",
					v1.TaskRunResult{Name: "reason", Value: *v1.NewStructuredValues("RankFailed")},
					v1.TaskRunResult{Name: "message", Value: *v1.NewStructuredValues("rank 1 exited with 1")}))
			case e.Kind == TaskEnded && e.Task == "train":
				_, err := runs.Update(t.Context(), followed(func(r *v1.PipelineRun) {
					r.Status.SetCondition(condition(corev1.ConditionFalse, "Failed", "Tasks Completed: 2"))
				}), metav1.UpdateOptions{})
				do(err)
			}
		}()
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []told{
		{TaskStarted, "build-image", "", 0}, {TaskWaiting, "build-image", "no room", 0},
		{Line, "build-image", "fake logs", 0}, {TaskEnded, "build-image", "", 0},
		{TaskStarted, "train", "", 0}, {Line, "train", "fake logs", 0}, {TaskEnded, "train", "", 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if outcome.Verdict != receipt.Failed || outcome.Reason != fail.RankFailed || outcome.Message != "train: rank 1 exited with 1" ||
		outcome.Cancelled {
		t.Errorf("got %+v", outcome)
	}
}

// Tekton retries a final verdict. Users see the attempt that gave the verdict, during the run and later.
func TestFollowFinalVerdict(t *testing.T) {
	over := &corev1.ContainerStateTerminated{}
	reason := v1.TaskRunResult{Name: "reason", Value: *v1.NewStructuredValues("RankFailed")}
	first := taskRun("train", ran("pod-1", over))
	again := ended(taskRun("train", ran("pod-1-retry1", over)), corev1.ConditionFalse, "Failed", "", reason)
	again.Status.RetriesStatus = []v1.TaskRunStatus{ended(first.DeepCopy(), corev1.ConditionFalse, "Failed", "", reason).Status}
	for name, seen := range map[string][]*v1.TaskRun{"during the run": {first, again}, "later": {again}} {
		t.Run(name, func(t *testing.T) {
			var got []string
			f := &follower{ctx: t.Context(), clients: &kube.Clients{Kube: kubefake.NewClientset(), Namespace: "ns"}, of: followed(nil),
				tasks:   map[string]*task{},
				observe: func(e Event) { got = append(got, fmt.Sprintf("%s %d", e.Kind, e.Retry)) }}
			for _, tr := range seen {
				f.update([]*v1.TaskRun{tr})
			}
			f.logs.Wait()
			if diff := cmp.Diff([]string{"task-started 0", "line 0", "task-ended 0"}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A user who may not read logs sees the tasks all the same, and Follow requests no pod.
func TestFollowTasks(t *testing.T) {
	over := followed(func(r *v1.PipelineRun) { r.Status.SetCondition(condition(corev1.ConditionTrue, "Completed", "")) })
	train := ended(taskRun("train", ran("pod-1", &corev1.ContainerStateTerminated{})), corev1.ConditionTrue, "Succeeded", "")
	kubes := kubefake.NewClientset()
	clients := &kube.Clients{Kube: kubes, Tekton: fake.NewSimpleClientset(over, train), Namespace: "ns"}
	var got []Kind
	outcome, err := FollowTasks(t.Context(), clients, over, func(e Event) { got = append(got, e.Kind) })
	if err != nil || outcome.Verdict != receipt.Succeeded {
		t.Errorf("got %+v, %v", outcome, err)
	}
	if diff := cmp.Diff([]Kind{TaskStarted, TaskEnded}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, action := range kubes.Actions() {
		if action.GetResource().Resource == "pods" {
			t.Errorf("%s %s was requested", action.GetVerb(), action.GetResource().Resource)
		}
	}
}

// An API server that is unavailable right after the run has ended delays the outcome, and does not change it.
func TestOutcomeIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kubernetes := kubefake.NewClientset()
		away := 3
		kubernetes.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			away--
			return away >= 0, nil, apierrors.NewServiceUnavailable("starting")
		})
		of := followed(func(r *v1.PipelineRun) { r.Status.SetCondition(condition(corev1.ConditionTrue, "Succeeded", "")) })
		clients := &kube.Clients{Kube: kubernetes, Tekton: fake.NewSimpleClientset(of), Namespace: "ns"}
		o, err := Follow(t.Context(), clients, of, func(Event) {})
		if err != nil || o.Verdict != receipt.Succeeded || away >= 0 {
			t.Errorf("got verdict %q, %v, and %d answers of an API server that starts are left", o.Verdict, err, away)
		}
	})
}

// An API server that is away after it has deleted a run does not hold the caller for ever.
func TestDeleteEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := followed(func(*v1.PipelineRun) {})
		tekton := fake.NewSimpleClientset(of)
		tekton.PrependReactor("list", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInternalError(errors.New("etcd is away"))
		})
		began := time.Now()
		err := Delete(t.Context(), &kube.Clients{Kube: kubefake.NewClientset(), Tekton: tekton, Namespace: "ns"}, of)
		if took := time.Since(began); err == nil || took != deleteTime {
			t.Errorf("%v after %s, want an error after %s", err, took, deleteTime)
		}
	})
}

func TestOutcomeOf(t *testing.T) {
	finished := func(status corev1.ConditionStatus, reason string) *v1.PipelineRun {
		return followed(func(r *v1.PipelineRun) { r.Status.SetCondition(condition(status, reason, "what Tekton says")) })
	}
	cancelled := finished(corev1.ConditionFalse, "Cancelled")
	cancelled.Spec.Status = v1.PipelineRunSpecStatusCancelledRunFinally
	left := receipt.Receipt{Run: "mine", RunUID: "uid-1", Namespace: "ns", Environment: "e", Verdict: receipt.Failed, Reason: "OutOfMemory",
		Message: "rank 0"}
	earlier := left
	earlier.RunUID = "uid-0"
	type ending struct {
		Verdict   receipt.Verdict
		Reason    fail.Reason
		Message   string
		Cancelled bool
	}
	for _, tc := range []struct {
		name    string
		run     *v1.PipelineRun
		tasks   []runtime.Object
		receipt *receipt.Receipt
		want    ending
	}{
		{"succeeded", finished(corev1.ConditionTrue, "Succeeded"), nil, nil, ending{receipt.Succeeded, "", "", false}},
		{"as the receipt says", finished(corev1.ConditionFalse, "Failed"), nil, &left, ending{receipt.Failed, fail.OutOfMemory, "rank 0", false}},
		{"a receipt of an earlier run", finished(corev1.ConditionFalse, "Failed"), nil, &earlier,
			ending{receipt.Failed, fail.Internal, "Failed: what Tekton says", false}},
		{"as a task says", finished(corev1.ConditionFalse, "Failed"),
			[]runtime.Object{ended(taskRun("train", nil), corev1.ConditionFalse, "Failed", "exit code 2")}, nil,
			ending{receipt.Failed, fail.Internal, "train: exit code 2", false}},
		{"as its step noted", finished(corev1.ConditionFalse, "Failed"),
			[]runtime.Object{ended(taskRun("noted", nil), corev1.ConditionFalse, "Failed", "exit code 2")}, nil,
			ending{receipt.Failed, fail.Hang, "noted: rank 3 waits", false}},
		{"timed out", finished(corev1.ConditionFalse, "PipelineRunTimeout"), nil, nil,
			ending{receipt.Failed, fail.TrainingTimeout, "PipelineRunTimeout: what Tekton says", false}},
		{"cancelled", cancelled, nil, nil, ending{receipt.Failed, fail.Cancelled, "Cancelled: what Tekton says", true}},
		{"deleted", followed(nil), nil, nil, ending{receipt.Failed, fail.Cancelled, "the run was deleted", true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clients := &kube.Clients{Kube: kubefake.NewClientset(), Tekton: fake.NewSimpleClientset(tc.tasks...), Namespace: "ns"}
			if tc.receipt != nil {
				if err := receipt.Write(t.Context(), clients.Kube, *tc.receipt); err != nil {
					t.Fatal(err)
				}
			}
			if tc.name == "as its step noted" {
				begun := receipt.Start{Run: "mine", Namespace: "ns", RunUID: "uid-1", Environment: "e"}
				part := receipt.Entry{Task: "noted", Status: run.Failed, Reason: fail.Hang, Message: "rank 3 waits"}
				if err := receipt.Note(t.Context(), clients.Kube, begun, part); err != nil {
					t.Fatal(err)
				}
			}
			o, err := OutcomeOf(t.Context(), clients, tc.run)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, ending{o.Verdict, o.Reason, o.Message, o.Cancelled}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
