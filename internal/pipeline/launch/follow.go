// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// drainTime is how long no line of the rest of the logs may come after the run has ended.
const drainTime = 20 * time.Second

// Kind is the kind of an Event.
type Kind string

const (
	// TaskStarted means that a task starts; Event.Retry is the number of earlier attempts.
	TaskStarted Kind = "task-started"
	// TaskWaiting means that something keeps a task's pod from running; Event.Text is what, and Event.Next what to do.
	TaskWaiting Kind = "task-waiting"
	// Line is one line of a task's log, in Event.Text.
	Line Kind = "line"
	// LogLost means that the rest of a task's log cannot be read; Event.Text has the reason.
	LogLost Kind = "log-lost"
	// TaskEnded comes after all lines of the task.
	TaskEnded Kind = "task-ended"
)

// Event is one thing that happened in a run.
type Event struct {
	Kind Kind
	// Time is by the cluster's clock; for a Line, when it was printed.
	Time time.Time
	// Task is the task's name in the pipeline.
	Task string
	Text string
	// Next is the command or the change that would show or fix what Text reports. It may be empty.
	Next string
	// Early is set for TaskWaiting if the pod came before its account had its pull secrets and no step of the run has run: a new
	// run of the same request can pull its image.
	Early bool
	Retry int
	// Ended is set for TaskEnded.
	Ended *run.TaskRun
}

// Observer receives events, one at a time. It blocks all other events until it returns.
type Observer func(Event)

// Follow watches a run until it has ended, finally tasks included, and returns how it ended. Events of the past come
// first. Broken watches and logs continue where they broke, so that each line comes once. If ctx ends, the error wraps
// its cause. Errors: PermissionDenied.
func Follow(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun, observe Observer) (Outcome, error) {
	return follow(ctx, &follower{clients: clients, of: of, observe: observe})
}

// FollowTasks is Follow without logs, for a caller that may not read them.
func FollowTasks(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun, observe Observer) (Outcome, error) {
	return follow(ctx, &follower{clients: clients, of: of, observe: observe, quiet: true})
}

// Waiting returns what keeps the pods of tasks of a run from running now, by the name of the task: an event of kind TaskWaiting.
func Waiting(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun) (map[string]Event, error) {
	found := map[string]Event{}
	f := &follower{clients: clients, of: of, quiet: true, ctx: ctx, tasks: map[string]*task{}, unpulled: map[string]string{}}
	f.observe = func(e Event) {
		switch e.Kind {
		case TaskWaiting:
			found[e.Task] = e
		case TaskEnded:
			delete(found, e.Task)
		}
	}
	err := f.watchTasks(ctx, true)
	f.logs.Wait()
	return found, err
}

func follow(ctx context.Context, f *follower) (Outcome, error) {
	followed, stop := context.WithCancel(ctx)
	defer stop()
	f.ctx, f.tasks, f.unpulled = followed, map[string]*task{}, map[string]string{}

	tasks, stopTasks := context.WithCancel(followed)
	defer stopTasks()
	watching := make(chan error, 1)
	go func() { watching <- f.watchTasks(tasks, false) }()
	running := make(chan error, 1)
	last := f.of
	go func() { running <- f.watchRun(followed, &last) }()
	var err error
	select {
	case err = <-running:
		stopTasks()
		<-watching
		if err == nil && last.IsDone() {
			err = f.watchTasks(followed, true) // the watch may lag behind the end of the run
		}
		f.drain(stop)
	case err = <-watching:
		stop()
		<-running
		f.logs.Wait()
	}
	if err != nil {
		return Outcome{Run: last}, err
	}
	return f.outcome(ctx, last)
}

// outcome is OutcomeOf with what the follower has seen.
func (f *follower) outcome(ctx context.Context, last *v1.PipelineRun) (Outcome, error) {
	// The API server may be away for a minute: the caller has followed the run for hours and needs its outcome.
	var outcome Outcome
	var err error
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 8}
	ended := wait.ExponentialBackoffWithContext(ctx, backoff, func(context.Context) (bool, error) {
		outcome, err = OutcomeOf(ctx, f.clients, last)
		return !kube.Transient(err), nil
	})
	if err == nil {
		err = ended
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if message, ok := f.unpulled[outcome.failed]; ok && outcome.Receipt == nil {
		outcome.Message = message
	}
	return outcome, err
}

type follower struct {
	clients *kube.Clients
	of      *v1.PipelineRun
	ctx     context.Context //nolint:containedctx // it bounds the logs, which start when tasks do
	quiet   bool

	emitting sync.Mutex
	observe  Observer
	// emitted is how many events there were.
	emitted atomic.Int64

	mu    sync.Mutex
	tasks map[string]*task
	// ran is true when a step of the run has run.
	ran bool
	// unpulled explains why the image of a task's pod could not be pulled, by the name of the TaskRun: Tekton deletes the pod.
	unpulled map[string]string
	logs     sync.WaitGroup
	// past has, of each task that had ended when the run was first seen, what closes after its last event; seen is true after that.
	past []<-chan struct{}
	seen bool
	// open opens the log of a container, nil for one of the cluster.
	open func(pod, container string) opener
}

// task is what the events have reported about a TaskRun.
type task struct {
	attempt int
	waiting string
	ended   bool
	streams map[string]*stream
}

func (f *follower) emit(e Event) {
	f.emitting.Lock()
	defer f.emitting.Unlock()
	f.emitted.Add(1)
	f.observe(e)
}

// watchRun returns nil when the run has ended or was deleted.
func (f *follower) watchRun(ctx context.Context, last **v1.PipelineRun) error {
	return kube.UntilOne(ctx, "pipelinerun "+f.of.Namespace+"/"+f.of.Name, f.clients.Tekton.TektonV1().PipelineRuns(f.of.Namespace), f.of.Name,
		func(found *v1.PipelineRun) (bool, error) {
			if found == nil || found.UID != f.of.UID {
				return true, nil
			}
			*last = found
			return found.IsDone(), nil
		})
}

// watchTasks emits what the tasks do until ctx ends; with once, what they have done.
func (f *follower) watchTasks(ctx context.Context, once bool) error {
	options := metav1.ListOptions{LabelSelector: run.Label + "=" + f.of.Name}
	return kube.WatchUntil(ctx, "taskruns of pipelinerun "+f.of.Namespace+"/"+f.of.Name, f.clients.Tekton.TektonV1().TaskRuns(f.of.Namespace),
		options,
		func(found []*v1.TaskRun) (bool, error) {
			f.update(found)
			return once, nil
		})
}

// drain waits for the rest of the logs, and then stops everything.
func (f *follower) drain(stop func()) {
	rest := make(chan struct{})
	go func() {
		f.logs.Wait()
		close(rest)
	}()
	const every = time.Second // a look whether lines still come
	last, silent := f.emitted.Load(), time.Duration(0)
	for waiting := true; waiting; {
		select {
		case <-rest:
			waiting = false
		case <-f.ctx.Done():
			waiting = false
		case <-time.After(every):
			now := f.emitted.Load()
			if silent += every; now != last || !f.emitting.TryLock() { // the observer is busy, as with a terminal that is held
				last, silent = now, 0
			} else {
				f.emitting.Unlock()
			}
			if silent >= drainTime {
				waiting = false
				f.reportCut()
			}
		}
	}
	stop()
	<-rest
}

// reportCut emits which logs have a rest that does not come.
func (f *follower) reportCut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.tasks {
		for _, s := range t.streams {
			select {
			case <-s.done:
			default:
				f.emit(Event{Kind: LogLost, Time: time.Now(), Task: s.task, Text: fmt.Sprintf("nothing came for %s", drainTime)})
			}
		}
	}
}

// update emits what is new, in the order in which the tasks started.
func (f *follower) update(found []*v1.TaskRun) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := slices.DeleteFunc(slices.Clone(found), func(t *v1.TaskRun) bool {
		return !metav1.IsControlledBy(t, f.of) || t.Status.StartTime == nil
	})
	slices.SortStableFunc(own, func(a, b *v1.TaskRun) int { return a.Status.StartTime.Compare(b.Status.StartTime.Time) })
	for _, t := range own {
		f.updateTask(t)
	}
	f.seen = true
}

func (f *follower) updateTask(found *v1.TaskRun) {
	name := run.TaskOf(found)
	t := f.tasks[found.Name]
	if t == nil {
		t = &task{attempt: -1, streams: map[string]*stream{}}
		f.tasks[found.Name] = t
	}
	attempt, status := len(found.Status.RetriesStatus), found.Status
	if run.TaskRunOf(found).Final() {
		// Nothing of an attempt that only repeats the failure is worth an event, except its end.
		attempt--
		status = found.Status.RetriesStatus[attempt]
	}
	// The list may be older than what the watch has brought.
	if t.ended || attempt < t.attempt {
		return
	} else if attempt > t.attempt {
		t.attempt = attempt
		for _, s := range t.streams {
			s.end()
		}
		f.emit(Event{Kind: TaskStarted, Time: cmp.Or(status.StartTime, found.Status.StartTime).Time, Task: name, Retry: attempt})
	}
	ran := false
	for _, step := range status.Steps {
		if step.Running == nil && step.Terminated == nil {
			continue
		}
		ran, f.ran = true, true
		if f.quiet {
			continue
		}
		id := status.PodName + "/" + step.Container
		s := t.streams[id]
		if s == nil {
			s = f.startStream(name, status.PodName, step.Container)
			t.streams[id] = s
		}
		if step.Terminated != nil {
			s.end()
		}
	}
	condition := found.Status.GetCondition("Succeeded")
	switch {
	case condition == nil:
	case condition.Status != corev1.ConditionUnknown:
		t.ended = true
		f.endTask(t, found)
	case !ran && stuck(condition.Reason, condition.Message):
		e := Event{Kind: TaskWaiting, Time: condition.LastTransitionTime.Inner.Time, Task: name, Text: condition.Message}
		if kube.ReasonFor(condition.Reason) == fail.ImageUnavailable {
			f.explain(&e, found)
		}
		if e.Text != t.waiting {
			t.waiting = e.Text
			f.emit(e)
		}
	}
}

// StepPod returns the pod of a task of a run.
func StepPod(runName, namespace string, t run.TaskRun) diagnose.StepPod {
	return diagnose.StepPod{Namespace: namespace, Name: t.Pod, Run: runName, Image: t.Image, Account: t.Account}
}

// explain replaces Tekton's words for an image that cannot be pulled. A user who may not read the pod gets Tekton's.
func (f *follower) explain(e *Event, found *v1.TaskRun) {
	finding, early, err := StepPod(f.of.Name, found.Namespace, run.TaskRunOf(found)).WithoutImage(f.ctx, f.clients.Kube, f.clients.Now())
	if err != nil || finding.Reason == "" {
		return
	}
	f.unpulled[found.Name] = finding.Message()
	e.Text, e.Next, e.Early = finding.Seen, finding.Next, early && !f.ran
}

// stuck reports whether a pod does not run for a reason that may stay. Other pending pods only take their time.
func stuck(reason, message string) bool {
	switch reason {
	case "Started", "Running":
		return false
	case "Pending":
		return strings.Contains(message, string(corev1.PodScheduled))
	}
	return true
}

// endTask emits the end of a task after its logs. A task that has ended starts no other stream.
func (f *follower) endTask(t *task, found *v1.TaskRun) {
	for _, s := range t.streams {
		s.end()
	}
	ended := run.TaskRunOf(found)
	told := make(chan struct{})
	if !f.seen {
		f.past = append(f.past, told)
	}
	f.logs.Go(func() {
		defer close(told)
		for _, s := range t.streams {
			<-s.done
		}
		if f.ctx.Err() == nil {
			f.emit(Event{Kind: TaskEnded, Time: ended.Ended, Task: ended.Task, Retry: ended.Retries, Ended: &ended})
		}
	})
}

// pastTime is how long the logs of the past may hold up a later one: that of a node that is away may not come at all.
const pastTime = 5 * time.Second

// startStream reads a log after those of the tasks that had ended when the run was first seen: the past is told in its order.
func (f *follower) startStream(taskName, pod, container string) *stream {
	open := f.open
	if open == nil {
		open = func(pod, container string) opener {
			return podLogOpener(f.clients.Kube, f.of.Namespace, pod, corev1.PodLogOptions{Container: container, Follow: true})
		}
	}
	s := newStream(open(pod, container))
	s.task = taskName
	before := slices.Clone(f.past)
	f.logs.Go(func() {
		defer close(s.done)
		waiting, done := context.WithTimeout(f.ctx, pastTime)
		for _, told := range before {
			select {
			case <-told:
			case <-waiting.Done():
			}
		}
		done()
		err := s.follow(f.ctx, func(at time.Time, line string) {
			f.emit(Event{Kind: Line, Time: at, Task: taskName, Text: line})
		})
		if err != nil && f.ctx.Err() == nil {
			f.emit(Event{Kind: LogLost, Time: time.Now(), Task: taskName, Text: err.Error()})
		}
	})
	return s
}
