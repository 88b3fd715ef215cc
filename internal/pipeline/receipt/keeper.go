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

// Keeper writes the part of one step. A user's command has a nil Keeper, which writes nothing. Failures to write are
// warnings: they never change the end of a step.
type Keeper struct {
	clients *kube.Clients
	log     *slog.Logger
	of      run.Flags
	start   Start
	// here has the memory of a run on the user's own machine, nil for one on a cluster.
	here *Here

	mu     sync.Mutex
	part   Part
	warned bool
	// unhook returns false after SIGTERM, when ended is closed as soon as the end of the run is written.
	unhook func() bool
	ended  chan struct{}
}

// Remember begins the part of a step. Without an environment, whose name the step does not know, another step begins the memory of the
// run. If the run ends without its finally tasks, the Keeper writes the run's receipt: no teardown follows.
func Remember(ctx context.Context, clients *kube.Clients, log *slog.Logger, of run.Flags, environment string) *Keeper {
	if of.UID == "" || of.Task == "" {
		return nil
	}
	k := &Keeper{
		clients: clients, log: log, of: of, ended: make(chan struct{}),
		start: Start{Run: of.Name, Namespace: clients.Namespace, RunUID: of.UID, Environment: environment},
	}
	beginning, cancel := context.WithTimeout(ctx, beginTime)
	defer cancel()
	m, err := Recall(beginning, clients.Kube, clients.Namespace, of.Name)
	if environment != "" && (apierrors.IsNotFound(err) || err == nil && m.RunUID != of.UID) {
		k.start.Started = clients.Now().UTC()
		k.warn(Begin(beginning, clients.Kube, k.start))
	}
	k.part = Part{Task: of.Task, Status: run.Running, Started: clients.Now().UTC()}
	k.Learn(beginning, func(*Part) {})
	k.unhook = context.AfterFunc(ctx, func() {
		defer close(k.ended)
		k.conclude(ctx)
	})
	return k
}

// Learn changes the part, and writes it.
func (k *Keeper) Learn(ctx context.Context, change func(*Part)) {
	if k == nil {
		return
	}
	k.mu.Lock()
	change(&k.part)
	part := k.part
	k.mu.Unlock()
	err := k.note(ctx, part)
	if k.start.Environment == "" && apierrors.IsNotFound(err) {
		return // no other step has begun the memory
	}
	k.warn(err)
}

func (k *Keeper) note(ctx context.Context, p Part) error {
	if k.here != nil {
		return k.here.note(p)
	}
	return Note(ctx, k.clients.Kube, k.start, p)
}

// Progress writes how far the training is.
func (k *Keeper) Progress(ctx context.Context, p Progress) {
	switch {
	case k == nil || ctx.Err() != nil:
	case k.here != nil:
		k.warn(k.here.noteProgress(p))
	default:
		k.warn(NoteProgress(ctx, k.clients.Kube, k.start, p))
	}
}

// End writes how the step ended, and what it has learnt. After SIGTERM it writes that only if no other pod continues the step.
func (k *Keeper) End(ctx context.Context, failure error, learn func(*Part)) {
	if k == nil {
		return
	}
	stopped := !k.unhook()
	if stopped {
		<-k.ended
	}
	limit := kube.Patience
	if stopped {
		limit = lastTime
	}
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if stopped {
		ending, err := k.ending(writing)
		if err != nil || !ending.Cause.Final() {
			return
		}
	}
	k.Learn(writing, func(p *Part) {
		p.Status, p.Ended = run.Succeeded, k.clients.Now().UTC()
		if failure != nil {
			p.Status, p.Reason, p.Message = run.Failed, fail.ReasonOf(failure), humanize.Lines(failure.Error(), maxMessage)
		}
		if learn != nil {
			learn(p)
		}
	})
	if stopped || failure != nil { // a run that was deleted may take the environment away before this pod gets SIGTERM
		k.conclude(writing)
	}
}

func (k *Keeper) ending(ctx context.Context) (run.Ending, error) {
	return run.EndingOf(ctx, k.clients.Tekton, k.clients.Namespace, k.of.Name, types.UID(k.of.UID), k.of.Task, k.clients.Now())
}

// conclude writes the receipt of a run that ends without its finally tasks.
func (k *Keeper) conclude(ctx context.Context) {
	if k.here != nil {
		return // mlenv writes the receipt of a run on the user's own machine
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	ending, err := k.ending(ctx)
	if err != nil || !ending.NoFinally {
		return // a teardown follows, or may
	}
	reason, message := ReasonOf(ending)
	k.warn(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		m, err := Recall(ctx, k.clients.Kube, k.clients.Namespace, k.of.Name)
		if err != nil || m.RunUID != k.of.UID {
			return err
		}
		r := m.End(reason, message, k.clients.Now())
		r.Teardown = "no teardown followed, because " + message + ": the environment was deleted with its lease"
		return m.Finish(ctx, k.clients.Kube, r)
	}))
}

// ReasonOf returns why a run ended that did so without its finally tasks.
func ReasonOf(ending run.Ending) (fail.Reason, string) {
	switch ending.Cause {
	case run.Deleted:
		return fail.Cancelled, Deleted
	case run.TimedOut:
		return fail.TrainingTimeout, ending.Message
	case run.Cancelled, run.Evicted:
	}
	return fail.Cancelled, ending.Message
}

// warn logs the first failure to write.
func (k *Keeper) warn(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil || k.warned {
		return
	}
	k.warned = true
	k.log.Warn(fmt.Sprintf("The receipt of the run lacks what this step knows: %v", err))
}
