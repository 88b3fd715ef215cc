// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

const (
	// beginTime bounds the beginning of a step, which does not depend on it.
	beginTime = 20 * time.Second
	// lastTime bounds what a step still writes after SIGTERM.
	lastTime = 10 * time.Second
	// maxMessage bounds the message of a failure, in bytes: ranks can print anything.
	maxMessage = 4000
)

// Deleted is the message of a run that was deleted.
const Deleted = "the run was deleted"

// Writer writes the entry of one step. A user's command has a nil Writer, which writes nothing. Failures to write are
// warnings: they never change the end of a step.
type Writer struct {
	store store
	start Start
	now   func() time.Time
	log   *slog.Logger
	// task is nil for a step that is not a task of a PipelineRun.
	task *task

	mu     sync.Mutex
	entry  Entry
	warned bool
	// written reports whether there is an entry.
	written bool
}

// task is the task of a PipelineRun, which may end without its finally tasks.
type task struct {
	clients *kube.Clients
	of      run.Flags
	// unhook returns false after SIGTERM, when ended is closed as soon as the end of the run is written.
	unhook func() bool
	ended  chan struct{}
}

// NewWriter begins the entry of a step. Without an environment, whose name the step does not know, another step begins the journal of the
// run. If the run ends without its finally tasks, the Writer writes the run's receipt: no teardown follows.
func NewWriter(ctx context.Context, clients *kube.Clients, log *slog.Logger, of run.Flags, environment string) *Writer {
	if of.UID == "" || of.Task == "" {
		return nil
	}
	start := Start{Run: of.Name, Namespace: clients.Namespace, RunUID: of.UID, Environment: environment}
	beginning, cancel := context.WithTimeout(ctx, beginTime)
	defer cancel()
	m, err := ReadJournal(beginning, clients.Kube, clients.Namespace, of.Name)
	begin := environment != "" && (apierrors.IsNotFound(err) || err == nil && m.RunUID != of.UID)
	if begin {
		start.Started = clients.Now().UTC()
	}
	k := &Writer{
		store: configMap{clients.Kube, start}, start: start, now: clients.Now, log: log,
		task:  &task{clients: clients, of: of, ended: make(chan struct{})},
		entry: Entry{Task: of.Task, Status: run.Running, Started: clients.Now().UTC()},
	}
	if begin {
		k.warn(BeginJournal(beginning, clients.Kube, start))
	}
	k.Update(beginning, func(*Entry) {})
	k.task.unhook = context.AfterFunc(ctx, func() {
		defer close(k.task.ended)
		k.warn(k.task.conclude(ctx))
	})
	return k
}

// Writer returns the writer for a training in an environment that is kept. Its first entry begins the journal; one that does not come so
// far that it writes one leaves nothing.
func (s Start) Writer(clients *kube.Clients, log *slog.Logger, task string) *Writer {
	return s.writer(configMap{clients.Kube, s}, clients.Now, log, task)
}

func (s Start) writer(in store, now func() time.Time, log *slog.Logger, task string) *Writer {
	return &Writer{store: in, now: now, log: log, start: s, entry: Entry{Task: task, Status: run.Running, Started: now().UTC()}}
}

// Update changes the entry, and writes it.
func (k *Writer) Update(ctx context.Context, change func(*Entry)) {
	if k == nil {
		return
	}
	k.mu.Lock()
	change(&k.entry)
	k.written = true
	entry := k.entry
	k.mu.Unlock()
	err := k.start.addEntry(ctx, k.store, entry)
	if k.start.Environment == "" && apierrors.IsNotFound(err) {
		return // no other step has begun the journal
	}
	k.warn(err)
}

// Progress writes how far the training is.
func (k *Writer) Progress(ctx context.Context, p Progress) {
	if k != nil && ctx.Err() == nil {
		k.warn(k.start.noteProgress(ctx, k.store, p))
	}
}

// Written reports whether the step has written an entry.
func (k *Writer) Written() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.written
}

// End writes how the step ended, and what it has learnt. After SIGTERM it writes that only if no other pod continues the step.
func (k *Writer) End(ctx context.Context, failure error, learn func(*Entry)) {
	if k == nil || k.start.Kept && !k.Written() {
		return
	}
	stopped := k.task != nil && !k.task.unhook()
	limit := kube.Patience
	if stopped {
		<-k.task.ended
		limit = lastTime
	}
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if stopped {
		ending, err := k.task.ending(writing)
		if err != nil || !ending.Cause.EndsWork() {
			return
		}
	}
	k.Update(writing, func(p *Entry) {
		p.Status, p.Ended = run.Succeeded, k.now().UTC()
		if failure != nil {
			p.Status, p.Reason, p.Message = run.Failed, fail.ReasonOf(failure), humanize.Lines(failure.Error(), maxMessage)
		}
		if learn != nil {
			learn(p)
		}
	})
	if k.task != nil && (stopped || failure != nil) { // a run that was deleted may take the environment away before this pod gets SIGTERM
		k.warn(k.task.conclude(writing))
	}
}

func (t *task) ending(ctx context.Context) (run.Ending, error) {
	return run.EndingOf(ctx, t.clients.Tekton, t.clients.Namespace, t.of.Name, types.UID(t.of.UID), t.of.Task, t.clients.Now())
}

// conclude writes the receipt of a run that ends without its finally tasks.
func (t *task) conclude(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	ending, err := t.ending(ctx)
	if err != nil || !ending.NoFinally {
		return nil // a teardown follows, or may
	}
	reason, message := ReasonOf(ending)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		m, err := ReadJournal(ctx, t.clients.Kube, t.clients.Namespace, t.of.Name)
		if err != nil || m.RunUID != t.of.UID {
			return err
		}
		r := m.End(reason, message, t.clients.Now())
		r.Teardown = "no teardown followed, because " + message + ": the environment was deleted with its lease"
		return m.Finish(ctx, t.clients.Kube, r)
	})
}

// ReasonOf returns why a run ended that did so without its finally tasks.
func ReasonOf(ending run.Ending) (fail.Reason, string) {
	switch ending.Cause {
	case run.RunDeleted:
		return fail.Cancelled, Deleted
	case run.TimedOut:
		return fail.TrainingTimeout, ending.Message
	case run.CancelledByUser, run.Evicted:
	}
	return fail.Cancelled, ending.Message
}

// warn logs the first failure to write.
func (k *Writer) warn(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil || k.warned {
		return
	}
	k.warned = true
	k.log.Warn(fmt.Sprintf("The receipt of the run lacks what this step knows: %v", err))
}
