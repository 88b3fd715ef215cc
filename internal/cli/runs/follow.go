// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/reaper"
)

// runFollower follows a run until it ends or the user leaves.
type runFollower struct {
	clients *kube.Clients
	run     *v1.PipelineRun
	display *display
	// signals are SIGINT and SIGTERM.
	signals <-chan os.Signal
	// answers are the keys of the terminal; if it is nil, a signal cancels the run.
	answers io.Reader
	// upload sends the folder to the nodes; nil if the run trains from a repository. It starts when provision has
	// succeeded. Until it has succeeded the run needs this program.
	upload func(context.Context) error
	// present shows the run that this program is there to upload, until its context ends. Without it a run would wait long for
	// a program that was killed.
	present func(context.Context, *v1.PipelineRun)
	// detach ends follow as soon as the run does not need this program.
	detach bool
	// request starts the run once more if its pods came before their service account had its pull secrets; nil for never.
	request *launch.Request
}

// follow returns when the run has ended; over is false if the run continues. It cancels a run whose folder could not be
// uploaded.
func (f *runFollower) follow(ctx context.Context) (outcome launch.Outcome, over bool, err error) {
	defer f.display.end()
	outcome, over, err = f.once(ctx)
	if !errors.Is(err, errEarly) {
		return outcome, over, err
	}
	again := *f
	if again.run, err = f.startAgain(ctx); err != nil {
		return launch.Outcome{}, false, err
	}
	again.request = nil
	return again.once(ctx)
}

// startAgain starts the run once more. Without the right to delete it, the run stays as it is.
func (f *runFollower) startAgain(ctx context.Context) (*v1.PipelineRun, error) {
	f.display.resume()
	f.display.print("Starting run %s once more: its pods came before the pull secrets of their service account.", f.run.Name)
	started, err := launch.Restart(ctx, f.clients, f.run, *f.request)
	if fail.ReasonOf(err) == fail.PermissionDenied {
		f.display.print("It cannot be started once more: %v", err)
		return f.run, nil
	}
	return started, err
}

// once is follow until errEarly.
func (f *runFollower) once(ctx context.Context) (outcome launch.Outcome, over bool, err error) {
	// A signal that came while the run was being started is not in f.signals.
	late := ctx.Err() != nil && len(f.signals) == 0
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	uploading, stopUpload := context.WithCancel(ctx)
	defer stopUpload()
	shown, endShown := context.WithCancel(uploading)
	if f.present != nil {
		var showing sync.WaitGroup
		showing.Go(func() { f.present(shown, f.run) })
		defer showing.Wait()
	}
	defer endShown()
	waiting, stopWaiting := context.WithCancel(ctx)
	defer stopWaiting()
	go f.watchFailure(waiting)
	if f.display.width != nil {
		go f.watchTraining(waiting)
	}
	const most = 64 // tasks start and end while this program talks to the API server
	events := make(chan event, most)
	send := func(e event) {
		select {
		case events <- e:
		case <-ctx.Done():
		}
	}
	go func() {
		outcome, err := launch.Follow(ctx, f.clients, f.run, func(e launch.Event) {
			f.display.observe(e)
			if e.Kind != launch.Line {
				send(e)
			}
		})
		send(runEnded{outcome, err})
	}()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	c := &course{run: f.run, keys: f.answers != nil, folder: f.upload != nil, needed: f.upload != nil, detach: f.detach,
		again: f.request != nil}
	listen := sync.OnceFunc(func() { go readKeys(f.answers, send) })
	var todo []effect
	obey := map[plainEffect]func(){
		ask: func() {
			f.display.askQuestion(choices, "c, d or another key? ")
			listen()
		},
		closeQuestion: f.display.resume,
		cancelRun: func() {
			err := launch.Cancel(ctx, f.clients, f.run, false)
			// A program such as timeout signals this process and its group: one signal comes twice.
			for len(f.signals) > 0 {
				<-f.signals
			}
			todo = append(todo, c.on(cancelAnswer{err})...)
		},
		startTimer: func() { time.AfterFunc(cleanupTime(f.run), func() { send(tooLate{}) }) },
		upload:     func() { go func() { send(uploaded{f.upload(uploading)}) }() },
		endUpload:  stopUpload, hide: endShown, endWaiting: stopWaiting,
	}
	if late {
		todo = c.on(syscall.SIGTERM)
	}
	for {
		for len(todo) > 0 {
			do := todo[0]
			todo = todo[1:]
			switch do := do.(type) {
			case note:
				f.display.print("%s", string(do))
			case leave:
				return do.outcome, do.over, do.err
			case plainEffect:
				obey[do]()
			}
		}
		select {
		case e := <-events:
			todo = c.on(e)
		case s := <-f.signals:
			todo = c.on(s)
		case <-ticker.C:
			f.display.tick()
		}
	}
}

// failureEvery is how often mlenv run looks for the first failure of a run that it follows.
const failureEvery = 15 * time.Second

// watchFailure prints what a run waits for if no task follows one that has failed for good: Tekton may stand still. It
// asks the reaper's code, so that it promises nothing while a retry of the task is slow.
func (f *runFollower) watchFailure(ctx context.Context) {
	environment, printed := env.Of(f.clients, launch.EnvironmentOf(f.run)).Lease(slog.New(slog.DiscardHandler)), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(failureEvery):
		}
		found, err := environment.Find(ctx)
		held := err == nil && lease.HolderOf(found).ID == string(f.run.UID)
		switch {
		case ctx.Err() != nil:
			return
		case held && !printed:
			if why, err := reaper.Stalled(ctx, f.clients, found); err == nil && why != "" {
				f.display.print("== %s; if Tekton starts none, the reaper releases the environment in about a minute", why)
				printed = true
			}
		case printed && (err == nil && !held || fail.ReasonOf(err) == fail.EnvironmentMissing):
			f.display.print("== the environment is released; waiting for Tekton to end the run")
			return
		}
	}
}

// trainingEvery is how often the nodes of a training are asked.
const trainingEvery = 30 * time.Second

// watchTraining shows attempts and silence of the training in the last line of the terminal. A user who may not ask the
// nodes sees the training's log alone.
func (f *runFollower) watchTraining(ctx context.Context) {
	r := runInfo{name: f.run.Name, at: onCluster{f.clients}, run: f.run}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(trainingEvery):
		}
		if !f.display.trains() {
			continue
		}
		s := runStatus{}
		s.ask(ctx, r)
		s.MaxAttempts = r.maxAttempts()
		f.display.showProgress(s.progress)
	}
}

// choices explains the keys that answer Ctrl-C.
const choices = "== c, or Ctrl-C again: cancel the run and release everything; d: detach, the run continues without mlenv; " +
	"any other key: keep following"

// readKeys sends each key, and noKeys in the end.
func readKeys(in io.Reader, send func(event)) {
	for pressed := make([]byte, 1); ; {
		n, err := in.Read(pressed)
		if n > 0 {
			send(key(pressed[0]))
		}
		if err != nil {
			send(noKeys{})
			return
		}
	}
}

// sayWhere names what there is to read about a run that failed, and the command that continues from what it saved; run is its name in a
// command.
func sayWhere(problems io.Writer, run, checkpoint, resume string) {
	tellUser(problems, "  receipt: mlenv receipt %s\n  logs:    mlenv logs %s\n", run, run)
	if checkpoint != "" {
		tellUser(problems, "  newest checkpoint: %s\n  continue from it:  %s\n", checkpoint, resume)
	}
}

// concludeSuccess prints the end of a run.
func concludeSuccess(out io.Writer, name, run, took string, r *receipt.Receipt) {
	tellUser(out, "Run %s succeeded%s%s.\n", name, took, r.WarningClause())
	if len(r.Metrics) > 0 {
		tellUser(out, "  metrics: %s\n", metricsText(r.Metrics))
	}
	tellUser(out, "  receipt: mlenv receipt %s\n  files:   mlenv fetch %s\n", run, run)
}

// conclude prints how a run ended and returns the exit code as an error.
func conclude(out, problems io.Writer, o launch.Outcome) error {
	run := o.Run.Name + " -n " + o.Run.Namespace
	if o.Verdict == receipt.Succeeded {
		concludeSuccess(out, o.Run.Name, run, durationText(o), cmp.Or(o.Receipt, &receipt.Receipt{}))
		return nil
	}
	code, verb := command.Failed, "failed"
	if o.Cancelled {
		code, verb = command.Interrupted, "was cancelled"
	}
	// A traceback is readable only with its lines.
	why := fmt.Sprintf(": %s: %s", o.Reason, strings.ReplaceAll(humanize.Lines(o.Message, maxMessage), "\n", "\n    "))
	if o.Cancelled && o.Reason == fail.Cancelled {
		why = "." // the message is only Tekton's
	}
	tellUser(problems, "Run %s %s%s%s\n", o.Run.Name, verb, durationText(o), why)
	if o.Receipt != nil {
		r := runInfo{name: o.Run.Name, at: onCluster{}, run: o.Run}
		sayWhere(problems, run, o.Receipt.Checkpoint, r.at.resume(r))
	}
	if o.Reason == fail.EnvironmentBusy {
		fmt.Fprintln(problems, "  next:    start it again in an environment of its own, --name=NAME, or let it wait: --on-busy=wait")
	}
	return &command.Exit{Code: code}
}
