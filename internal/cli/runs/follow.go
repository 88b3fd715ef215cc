package runs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// cleanupTime is how long a run that was cancelled may take to give everything back.
const cleanupTime = run.TeardownTime + 2*time.Minute

// follower follows a run for somebody who may want it to end.
type follower struct {
	clients *kube.Clients
	run     *v1.PipelineRun
	display *display
	// signals are SIGINT and SIGTERM.
	signals <-chan os.Signal
	// answers are lines from the person at the terminal, nil where there is none: then a signal cancels.
	answers io.Reader
	// observe sees every event before it is shown; it may be nil.
	observe launch.Observer
	// leave says whether the run goes on without this program yet; what becomes true later comes by
	// detached. It may be nil.
	leave func() bool
	// detached ends the following while the run goes on; it may be nil.
	detached <-chan error
}

// notify is what signals come by, until stop.
func notify() (signals <-chan os.Signal, stop func()) {
	incoming := make(chan os.Signal, 4)
	signal.Notify(incoming, os.Interrupt, syscall.SIGTERM)
	return incoming, func() { signal.Stop(incoming) }
}

// follow returns when the run has ended, or the person has left it: then over is false.
func (f *follower) follow(ctx context.Context) (outcome launch.Outcome, over bool, err error) {
	// A signal that came while the run was being started has nobody else who answers it.
	late := ctx.Err() != nil && len(f.signals) == 0
	// Signals are answered here; they end nothing by themselves.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	type ended struct {
		outcome launch.Outcome
		err     error
	}
	end := make(chan ended, 1)
	go func() {
		outcome, err := launch.Follow(ctx, f.clients, f.run, func(e launch.Event) {
			if f.observe != nil {
				f.observe(e)
			}
			f.display.observe(e)
		})
		end <- ended{outcome, err}
	}()
	defer f.display.end()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var answers chan string
	var asked, cancelled bool
	var tooLong <-chan time.Time
	cancel := func() {
		f.display.resume()
		f.display.say("== cancelling; everything is given back, and claims stay")
		if err := launch.Cancel(ctx, f.clients, f.run); err != nil {
			f.display.say("== it was not cancelled: %v", err)
			return
		}
		cancelled, tooLong = true, time.After(cleanupTime)
	}
	if late {
		cancel()
	}
	for {
		select {
		case e := <-end:
			return e.outcome, true, e.err
		case err := <-f.detached:
			return launch.Outcome{Run: f.run}, false, err
		case <-ticker.C:
			f.display.tick()
		case <-tooLong:
			return launch.Outcome{Run: f.run}, false, &step.Exit{Code: step.Interrupted, Err: fail.Advise(
				fail.Becausef(fail.TeardownIncomplete, "waiting for the end of run %s, which was cancelled: not yet after %s", f.run.Name, humanize.Duration(cleanupTime)),
				"mlenv status %s -n %s", f.run.Name, f.run.Namespace)}
		case s := <-f.signals:
			switch {
			case cancelled:
				f.display.say("== leaving; the run is being cancelled: mlenv status %s -n %s", f.run.Name, f.run.Namespace)
				return launch.Outcome{Run: f.run}, false, &step.Exit{Code: step.Interrupted}
			case asked || f.answers == nil || s != os.Interrupt:
				asked = false
				cancel()
			default:
				asked = true
				f.display.ask("== c, or Ctrl-C again: cancel the run with cleanup; d: detach and leave it running; Enter: go on", "c, d or Enter? ")
				if answers == nil {
					answers = lines(f.answers)
				}
			}
		case answer, open := <-answers:
			if !asked {
				continue
			}
			asked = false
			switch strings.ToLower(strings.TrimSpace(answer)) {
			case "c", "cancel":
				cancel()
			case "d", "detach":
				if f.leave == nil || f.leave() {
					return launch.Outcome{Run: f.run}, false, nil
				}
				f.display.resume()
				f.display.say("== the folder is not on the nodes yet; this program leaves as soon as it is")
			default:
				f.display.resume()
			}
			if !open {
				answers, f.answers = nil, nil
			}
		}
	}
}

// lines reads them, for as long as there are any.
func lines(in io.Reader) chan string {
	read := make(chan string)
	go func() {
		defer close(read)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			read <- scanner.Text()
		}
	}()
	return read
}

// conclude tells how a run ended, and turns that into the exit code.
func conclude(out, problems io.Writer, o launch.Outcome) error {
	name, namespace := o.Run.Name, o.Run.Namespace
	if o.Verdict == receipt.Succeeded {
		fmt.Fprintf(out, "Run %s succeeded%s.\n", name, took(o))
		tellMetrics(out, o)
		fmt.Fprintf(out, "  receipt: mlenv receipt %s -n %s\n  files:   mlenv fetch %s -n %s\n", name, namespace, name, namespace)
		return nil
	}
	code, verb := step.Failed, "failed"
	if o.Cancelled {
		code, verb = step.Interrupted, "was cancelled"
	}
	why := fmt.Sprintf(": %s: %s", o.Reason, humanize.OneLine(o.Message, 500))
	if o.Cancelled && o.Reason == fail.Cancelled {
		why = "." // more than that is Tekton's
	}
	fmt.Fprintf(problems, "Run %s %s%s%s\n", name, verb, took(o), why)
	if o.Receipt != nil {
		fmt.Fprintf(problems, "  receipt: mlenv receipt %s -n %s\n  logs:    mlenv logs %s -n %s\n", name, namespace, name, namespace)
	}
	return &step.Exit{Code: code}
}

func took(o launch.Outcome) string {
	status := o.Run.Status
	if status.StartTime == nil || status.CompletionTime == nil {
		return ""
	}
	return " after " + humanize.Duration(status.CompletionTime.Sub(status.StartTime.Time))
}

func tellMetrics(out io.Writer, o launch.Outcome) {
	if o.Receipt != nil && len(o.Receipt.Metrics) > 0 {
		fmt.Fprintf(out, "  metrics: %s\n", metricsText(o.Receipt.Metrics))
	}
}
