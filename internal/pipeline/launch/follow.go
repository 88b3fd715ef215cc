package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// drainTime is how long logs may still come after the run has ended.
const drainTime = 20 * time.Second

// Kind says what an Event tells.
type Kind string

// The kinds.
const (
	// TaskStarted: a task has begun, or begins again; Event.Retry is how often it was tried before.
	TaskStarted Kind = "task-started"
	// TaskWaiting: a task's pod does not run and something is in its way; Event.Text says what, in Tekton's words.
	TaskWaiting Kind = "task-waiting"
	// Line is one line of a task's log, in Event.Text.
	Line Kind = "line"
	// LogLost: no more of a task's log can be had; Event.Text says why.
	LogLost Kind = "log-lost"
	// TaskEnded comes after all lines of the task.
	TaskEnded Kind = "task-ended"
)

// Event is one thing that happened in a run.
type Event struct {
	Kind Kind
	// Time is when it happened, by the cluster's clock; of a line, when it was printed.
	Time time.Time
	// Task is its name in the pipeline.
	Task  string
	Text  string
	Retry int
	// Ended is the task as it ended, of TaskEnded.
	Ended *run.TaskRun
}

// Observer is told of events, one at a time. What it does not return from stops all others.
type Observer func(Event)

// Follow watches a run until it has ended, finally tasks included, and says how. What
// happened before is told first. Broken watches and logs are taken up where they
// broke, so that no line is lost or told twice. After the end of ctx the error
// wraps its cause, and the Outcome is what was known. Errors: PermissionDenied.
func Follow(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun, observe Observer) (Outcome, error) {
	return follow(ctx, &follower{clients: clients, of: of, observe: observe})
}

// FollowTasks is Follow without the lines of logs, for whoever may not read them.
func FollowTasks(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun, observe Observer) (Outcome, error) {
	return follow(ctx, &follower{clients: clients, of: of, observe: observe, quiet: true})
}

func follow(ctx context.Context, f *follower) (Outcome, error) {
	followed, stop := context.WithCancel(ctx)
	defer stop()
	f.ctx, f.tasks = followed, map[string]*task{}

	tasks, stopTasks := context.WithCancel(followed)
	defer stopTasks()
	watching := make(chan error, 1)
	go func() { watching <- f.watchTasks(tasks) }()
	ended := make(chan error, 1)
	last := f.of
	go func() { ended <- f.watchRun(followed, &last) }()
	var err error
	select {
	case err = <-ended:
		stopTasks()
		<-watching
		if err == nil && last.IsDone() {
			err = patiently(followed, func() error { return f.lastly(followed) })
		}
		f.drain(stop)
	case err = <-watching:
		stop()
		<-ended
		f.logs.Wait()
	}
	if err != nil {
		return Outcome{Run: last}, err
	}
	var outcome Outcome
	err = patiently(ctx, func() (err error) {
		outcome, err = OutcomeOf(ctx, f.clients, last)
		return err
	})
	return outcome, err
}

// errGone is of a run that was deleted.
var errGone = errors.New("it was deleted")

// follower is one Follow.
type follower struct {
	clients *kube.Clients
	of      *v1.PipelineRun
	ctx     context.Context //nolint:containedctx // it bounds the logs, which start when tasks do
	// quiet leaves out the logs.
	quiet bool

	telling sync.Mutex
	observe Observer

	mu    sync.Mutex
	tasks map[string]*task
	logs  sync.WaitGroup
}

// task is what has been told of a TaskRun.
type task struct {
	attempt int
	waiting string
	ended   bool
	streams map[string]*stream
}

func (f *follower) emit(e Event) {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.observe(e)
}

// watchRun returns nil when the run has ended or is gone.
func (f *follower) watchRun(ctx context.Context, last **v1.PipelineRun) error {
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + f.of.Name}
	err := kube.Until(ctx, "pipelinerun "+f.of.Namespace+"/"+f.of.Name, f.clients.Tekton.TektonV1().PipelineRuns(f.of.Namespace), options,
		func(found []*v1.PipelineRun) (bool, error) {
			i := slices.IndexFunc(found, func(r *v1.PipelineRun) bool { return r.UID == f.of.UID })
			if i < 0 {
				return false, errGone
			}
			*last = found[i]
			return found[i].IsDone(), nil
		})
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

func (f *follower) selector() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: "tekton.dev/pipelineRun=" + f.of.Name}
}

func (f *follower) watchTasks(ctx context.Context) error {
	return kube.Until(ctx, "taskruns of pipelinerun "+f.of.Namespace+"/"+f.of.Name, f.clients.Tekton.TektonV1().TaskRuns(f.of.Namespace), f.selector(),
		func(found []*v1.TaskRun) (bool, error) {
			f.update(found)
			return false, nil
		})
}

// lastly sees what the watch may not have brought yet.
func (f *follower) lastly(ctx context.Context) error {
	list, err := f.clients.Tekton.TektonV1().TaskRuns(f.of.Namespace).List(ctx, f.selector())
	if err != nil {
		return kube.Problem(fmt.Errorf("listing the taskruns of pipelinerun %s/%s: %w", f.of.Namespace, f.of.Name, err))
	}
	found := make([]*v1.TaskRun, 0, len(list.Items))
	for i := range list.Items {
		found = append(found, &list.Items[i])
	}
	f.update(found)
	return nil
}

// drain waits for the rest of the logs, not for ever, and stops whatever goes on.
func (f *follower) drain(stop func()) {
	rest := make(chan struct{})
	go func() {
		f.logs.Wait()
		close(rest)
	}()
	select {
	case <-rest:
	case <-f.ctx.Done():
	case <-time.After(drainTime):
	}
	stop()
	<-rest
}

// update tells what is new, in the order of the tasks' starts.
func (f *follower) update(found []*v1.TaskRun) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := slices.DeleteFunc(slices.Clone(found), func(t *v1.TaskRun) bool { return !metav1.IsControlledBy(t, f.of) || t.Status.StartTime == nil })
	slices.SortStableFunc(own, func(a, b *v1.TaskRun) int { return a.Status.StartTime.Compare(b.Status.StartTime.Time) })
	for _, t := range own {
		f.updateTask(t)
	}
}

func (f *follower) updateTask(found *v1.TaskRun) {
	name := run.TaskOf(found)
	known := f.tasks[found.Name]
	if known == nil {
		known = &task{attempt: -1, streams: map[string]*stream{}}
		f.tasks[found.Name] = known
	}
	// A list that is older than what the watch has brought tells nothing.
	if attempt := len(found.Status.RetriesStatus); known.ended || attempt < known.attempt {
		return
	} else if attempt > known.attempt {
		known.attempt = attempt
		for _, s := range known.streams {
			s.end()
		}
		f.emit(Event{Kind: TaskStarted, Time: found.Status.StartTime.Time, Task: name, Retry: attempt})
	}
	ran := false
	for _, step := range found.Status.Steps {
		if step.Running == nil && step.Terminated == nil {
			continue
		}
		ran = true
		if f.quiet {
			continue
		}
		id := found.Status.PodName + "/" + step.Container
		s := known.streams[id]
		if s == nil {
			s = f.startStream(name, found.Status.PodName, step.Container)
			known.streams[id] = s
		}
		if step.Terminated != nil {
			s.end()
		}
	}
	condition := found.Status.GetCondition("Succeeded")
	switch {
	case condition == nil:
	case condition.Status != corev1.ConditionUnknown:
		known.ended = true
		f.endTask(known, found)
	case !ran && stuck(condition.Reason, condition.Message) && condition.Message != known.waiting:
		known.waiting = condition.Message
		f.emit(Event{Kind: TaskWaiting, Time: condition.LastTransitionTime.Inner.Time, Task: name, Text: condition.Message})
	}
}

// stuck is true where a pod does not run for a reason that may not go away by itself.
// A pod that only takes its time is pending too.
func stuck(reason, message string) bool {
	switch reason {
	case "Started", "Running":
		return false
	case "Pending":
		return strings.Contains(message, string(corev1.PodScheduled))
	}
	return true
}

// endTask tells that a task has ended when its logs are told.
func (f *follower) endTask(known *task, found *v1.TaskRun) {
	streams := make([]*stream, 0, len(known.streams))
	for _, s := range known.streams {
		s.end()
		streams = append(streams, s)
	}
	ended := run.TaskRunOf(found)
	f.logs.Go(func() {
		for _, s := range streams {
			<-s.done
		}
		if f.ctx.Err() == nil {
			f.emit(Event{Kind: TaskEnded, Time: ended.Ended, Task: ended.Task, Retry: ended.Retries, Ended: &ended})
		}
	})
}

// startStream follows one container's log.
func (f *follower) startStream(taskName, pod, container string) *stream {
	s := newStream(logsOf(f.clients.Kube, f.of.Namespace, pod, container))
	f.logs.Go(func() {
		defer close(s.done)
		err := s.follow(f.ctx, func(at time.Time, line string) {
			f.emit(Event{Kind: Line, Time: at, Task: taskName, Text: line})
		})
		if err != nil && f.ctx.Err() == nil {
			f.emit(Event{Kind: LogLost, Time: time.Now(), Task: taskName, Text: err.Error()})
		}
	})
	return s
}
