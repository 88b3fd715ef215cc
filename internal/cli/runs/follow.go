package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/reaper"
)

// cleanupTime bounds the teardown of a cancelled run.
const cleanupTime = run.TeardownTime + 2*time.Minute

// follower follows a run until it ends or the user leaves.
type follower struct {
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
	present func(context.Context)
	// detach ends follow as soon as the run does not need this program.
	detach bool
	// again ends follow with errEarly if the run could be started once more with success.
	again bool
}

// errEarly means that the pods of a run came before their service account had its pull secrets, and that no step of the run has run.
var errEarly = errors.New("the pods of the run came before the pull secrets of their service account")

// follow returns when the run has ended; over is false if the run continues. It cancels a run whose folder could not be
// uploaded.
func (f *follower) follow(ctx context.Context) (outcome launch.Outcome, over bool, err error) {
	// A signal that came while the run was being started is not in f.signals.
	late := ctx.Err() != nil && len(f.signals) == 0
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	outcome.Run = f.run
	uploading, endUpload := context.WithCancel(ctx)
	defer endUpload()
	shown, endShown := context.WithCancel(uploading)
	if f.present != nil {
		var showing sync.WaitGroup
		showing.Go(func() { f.present(shown) })
		defer showing.Wait()
	}
	defer endShown()
	waiting, endWaiting := context.WithCancel(ctx)
	defer endWaiting()
	go f.watchFailure(waiting)
	if f.display.width != nil {
		go f.watchTraining(waiting)
	}
	var ending launch.Outcome
	end, uploaded, early := make(chan error, 1), make(chan error, 1), make(chan struct{}, 1)
	go func() {
		var err error
		ending, err = launch.Follow(ctx, f.clients, f.run, func(e launch.Event) {
			switch {
			case f.upload == nil:
			case e.Kind == launch.TaskEnded && e.Task == "provision" && e.Ended.Status == run.Succeeded:
				go func() { uploaded <- f.upload(uploading) }()
			case e.Kind == launch.TaskEnded && e.Task == "sync-repo", e.Kind == launch.TaskStarted && e.Task == "teardown":
				// The tree is on the nodes, or the run ends without it and reports why. A run that is followed again may be
				// long past this.
				endUpload()
			}
			if e.Kind == launch.TaskStarted && e.Task == "teardown" {
				endWaiting()
			}
			f.display.observe(e)
			if f.again && e.Early {
				select {
				case early <- struct{}{}:
				default: // another pod of the run came too early as well
				}
			}
		})
		end <- err
	}()
	defer f.display.end()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var answers chan byte
	asked := false
	var tooLong <-chan time.Time // of a run that was cancelled
	var uploadError error
	needed := f.upload != nil
	cancel := func() {
		f.display.resume()
		f.display.print("== cancelling; everything is released, and claims stay")
		if err := launch.Cancel(ctx, f.clients, f.run); err != nil {
			f.display.print("== the run was not cancelled: %v", err)
			return
		}
		tooLong = time.After(cleanupTime)
	}
	if late {
		cancel()
	}
	for {
		select {
		case err := <-end:
			if err != nil || uploadError == nil {
				return ending, true, err
			}
			if ending.Reason == fail.Cancelled {
				return ending, true, uploadError
			}
			ending.Cancelled = false // the run failed before it was cancelled for its upload
			return ending, true, nil
		case err := <-uploaded:
			endShown()
			switch {
			case tooLong != nil:
			case err != nil && uploading.Err() == nil:
				uploadError = fmt.Errorf("uploading the folder: %w", err)
				f.display.print("== %v", uploadError)
				if err := launch.Cancel(ctx, f.clients, f.run); err != nil {
					return outcome, false, errors.Join(uploadError, err)
				}
				tooLong = time.After(cleanupTime)
			case f.detach:
				return outcome, false, nil
			case err != nil:
				needed = false
			default:
				needed = false
				f.display.print("== the folder is on the nodes; the run no longer needs this machine")
			}
		case <-early:
			if tooLong == nil {
				return outcome, false, errEarly
			}
		case <-ticker.C:
			f.display.tick()
		case <-tooLong:
			return outcome, false, &step.Exit{Code: step.Interrupted, Err: fail.Advise(
				fail.Becausef(fail.TeardownIncomplete, "waiting for the end of the cancelled run %s: it has not ended after %s", f.run.Name, humanize.Duration(cleanupTime)),
				"mlenv status %s -n %s", f.run.Name, f.run.Namespace)}
		case s := <-f.signals:
			switch {
			case tooLong != nil:
				f.display.print("== leaving; the run is being cancelled: mlenv status %s -n %s", f.run.Name, f.run.Namespace)
				return outcome, false, &step.Exit{Code: step.Interrupted}
			case asked || f.answers == nil || s != os.Interrupt:
				asked = false
				cancel()
				// A program such as timeout signals this process and its group: one signal comes twice.
				for len(f.signals) > 0 {
					<-f.signals
				}
			default:
				asked = true
				f.display.ask("== c, or Ctrl-C again: cancel the run and release everything; d: detach, the run continues without mlenv; any other key: keep following", "c, d or another key? ")
				if answers == nil {
					answers = keys(f.answers)
				}
			}
		case key, open := <-answers:
			if !open {
				answers, f.answers = nil, nil
			}
			if !asked {
				continue
			}
			asked = false
			switch key {
			case 'c', 'C', ctrlC:
				cancel()
			case 'd', 'D':
				if !needed {
					return outcome, false, nil
				}
				f.detach = true
				f.display.resume()
				f.display.print("== the folder is not on the nodes yet; this program ends as soon as it is")
			default:
				f.display.resume()
			}
		}
	}
}

// failureEvery is how often watchFailure looks.
const failureEvery = 15 * time.Second

// watchFailure prints what a run waits for if no task follows one that has failed for good: Tekton may stand still. It
// asks the reaper's code, so that it promises nothing while a retry of the task is slow.
func (f *follower) watchFailure(ctx context.Context) {
	environment, printed := env.Of(f.clients, environmentOf(f.run)).Lease(slog.New(slog.DiscardHandler)), false
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

// trainTask is the task of the training in the pipeline, and trainingEvery how often its nodes are asked.
const (
	trainTask     = "train"
	trainingEvery = 30 * time.Second
)

// watchTraining shows attempts and silence of the training in the last line of the terminal. A user who may not ask the
// nodes sees the training's log alone.
func (f *follower) watchTraining(ctx context.Context) {
	r := entry{name: f.run.Name, run: f.run}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(trainingEvery):
		}
		if !f.display.trains() {
			continue
		}
		s := status{}
		s.ask(ctx, f.clients, r)
		s.MaxAttempts = r.maxAttempts()
		f.display.show(s.progress)
	}
}

// ctrlC is the key on a terminal that passes on each key and makes no signal of it.
const ctrlC = 3

func keys(in io.Reader) chan byte {
	read := make(chan byte)
	go func() {
		defer close(read)
		for key := make([]byte, 1); ; {
			n, err := in.Read(key)
			if n > 0 {
				read <- key[0]
			}
			if err != nil {
				return
			}
		}
	}()
	return read
}

// conclude prints how a run ended and returns the exit code as an error.
func conclude(out, problems io.Writer, o launch.Outcome) error {
	name, namespace := o.Run.Name, o.Run.Namespace
	if o.Verdict == receipt.Succeeded {
		say(out, "Run %s succeeded%s.\n", name, took(o))
		if o.Receipt != nil && len(o.Receipt.Metrics) > 0 {
			say(out, "  metrics: %s\n", metricsText(o.Receipt.Metrics))
		}
		if o.Receipt != nil && o.Receipt.Warning != "" {
			say(out, "  warning: %s\n", o.Receipt.Warning)
		}
		say(out, "  receipt: mlenv receipt %s -n %s\n  files:   mlenv fetch %s -n %s\n", name, namespace, name, namespace)
		return nil
	}
	code, verb := step.Failed, "failed"
	if o.Cancelled {
		code, verb = step.Interrupted, "was cancelled"
	}
	// A traceback is readable only with its lines.
	why := fmt.Sprintf(": %s: %s", o.Reason, strings.ReplaceAll(humanize.Lines(o.Message, maxMessage), "\n", "\n    "))
	if o.Cancelled && o.Reason == fail.Cancelled {
		why = "." // the message is only Tekton's
	}
	say(problems, "Run %s %s%s%s\n", name, verb, took(o), why)
	if o.Receipt != nil {
		say(problems, "  receipt: mlenv receipt %s -n %s\n  logs:    mlenv logs %s -n %s\n", name, namespace, name, namespace)
	}
	if o.Reason == fail.EnvironmentBusy {
		fmt.Fprintln(problems, "  next:    start it again in an environment of its own, --name=NAME, or let it wait: --on-busy=wait")
	}
	return &step.Exit{Code: code}
}

// say prints a text whose commands the user can run.
func say(out io.Writer, format string, args ...any) {
	fmt.Fprint(out, step.ForTerminal(fmt.Sprintf(format, args...)))
}

func took(o launch.Outcome) string {
	status := o.Run.Status
	if status.StartTime == nil || status.CompletionTime == nil {
		return ""
	}
	return " after " + humanize.Duration(status.CompletionTime.Sub(status.StartTime.Time))
}
