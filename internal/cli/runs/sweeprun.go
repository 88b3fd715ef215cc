// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/term"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// sweeping is a sweep on a cluster.
type sweeping struct {
	options  *runOptions
	cmd      *cobra.Command
	clients  *kube.Clients
	pipeline *v1.Pipeline
	// values are the params that all trials share.
	values map[string][]string
	// upload is the folder to train from, nil for a repository.
	upload *folder
	name   string
	trials []trial
	// found are the runs of trials that existed before, by their names.
	found   map[string]entry
	display *display
}

// startSweep starts the trials that do not exist yet and follows all to their ends.
func (o *runOptions) startSweep(cmd *cobra.Command, clients *kube.Clients, pipeline *v1.Pipeline, values map[string][]string) error {
	ctx := cmd.Context()
	s := &sweeping{options: o, cmd: cmd, clients: clients, pipeline: pipeline, values: values, name: o.sweepName()}
	s.trials = o.sweep.trials(s.name, values["script-args"])
	// prepare checks the arguments of all trials in one pass.
	checked := maps.Clone(values)
	for _, t := range s.trials {
		checked["script-args"] = append(slices.Clip(checked["script-args"]), t.args...)
	}
	crowded := s.crowded(ctx)
	upload, err := o.prepare(ctx, pipeline, checked)
	if upload != nil {
		defer upload.remove()
	}
	if err := errors.Join(crowded, err); err != nil {
		return command.Usage(err)
	}
	if s.values, s.upload = checked, upload; upload != nil {
		upload.warn(ctx, cmd.ErrOrStderr(), pipeline, checked)
	}
	if s.found, err = s.find(ctx); err != nil {
		return err
	}
	if err := s.differ(); err != nil {
		return command.Usage(err)
	}
	if o.dryRun {
		return s.plan()
	}
	return s.run(ctx)
}

// sweepName returns the name of the sweep: the given one, or else one that the same command always has.
func (o *runOptions) sweepName() string {
	if o.runName != "" {
		return o.runName
	}
	return o.sweep.name(o.given(), o.like, o.serviceAccount)
}

// crowded returns the mistake if trials in progress at the same time would share an environment.
func (s *sweeping) crowded(ctx context.Context) error {
	o := s.options
	if o.sweep.parallel == 1 || o.sweep.count() == 1 || ownEnvironment(ctx, s.clients, s.pipeline, s.values) != "" {
		return nil
	}
	return fail.Becausef(fail.InvalidInput, "--parallel=%d: the trials need an environment each, with the same claims, and this sweep "+
		"has only environment %s: want --parallel=1, or neither --name nor --on-busy=wait, and shared claims (storage rwx)", o.sweep.parallel,
		launch.Value(s.pipeline, s.values, "name"))
}

// find returns the runs of the trials that exist, by their names. A deleted run counts while its receipt exists.
func (s *sweeping) find(ctx context.Context) (map[string]entry, error) {
	all, err := list(ctx, s.clients)
	if err != nil {
		return nil, err
	}
	found := map[string]entry{}
	for _, r := range all {
		if slices.ContainsFunc(s.trials, func(t trial) bool { return t.name == r.name }) {
			found[r.name] = r
		}
	}
	return found, nil
}

// differ returns why runs that exist are not trials of this sweep.
func (s *sweeping) differ() error {
	var problems []error
	for _, t := range s.trials {
		r, ok := s.found[t.name]
		if !ok {
			continue
		}
		different, err := s.different(t, r)
		if err == nil && different != "" {
			err = fmt.Errorf("run %s exists with another %s", t.name, different)
		}
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		err = fail.Becausef(fail.InvalidInput, "continuing sweep %s in %s: %w\nfor a new sweep choose another --run-name", s.name,
			s.clients.Namespace, err)
		return fail.Advise(err, "mlenv runs --sweep=%s -n %s", s.name, s.clients.Namespace)
	}
	return nil
}

// different lists in what a run differs from its trial, "" for nothing. Of a deleted run, only its receipt is known.
func (s *sweeping) different(t trial, r entry) (string, error) {
	switch {
	case r.sweep() != s.name:
		return "sweep", nil
	case r.run != nil:
		return launch.Request{Pipeline: s.pipeline, ServiceAccount: s.options.serviceAccount, Values: s.valuesOf(t)}.Different(r.run)
	case r.receipt != nil && r.receipt.Training != nil && !slices.Equal(r.receipt.Training.Args, t.args):
		return "param script-args", nil
	}
	return "", nil
}

// valuesOf returns the params of a trial. A run that exists keeps the environment that was chosen for it, and the name of the commit that
// its folder had: the same files may be committed since.
func (s *sweeping) valuesOf(t trial) map[string][]string {
	values := maps.Clone(s.values)
	values["script-args"] = t.args
	if r, ok := s.found[t.name]; ok && r.run != nil {
		had := launch.Values(r.run)
		if values["name"] == nil && had["name"] != nil {
			values["name"] = had["name"]
		}
		if s.upload != nil && slices.Equal(had["repo-url"], values["repo-url"]) {
			delete(values, "revision")
			if had["revision"] != nil {
				values["revision"] = had["revision"]
			}
		}
	}
	return values
}

// plan prints the trials, and what the next one would create.
func (s *sweeping) plan() error {
	o := s.options
	ctx, out := s.cmd.Context(), s.cmd.OutOrStdout()
	report := s.report(ctx, s.found)
	err := o.sweep.output.PrintAs("Sweep", out, report, func(out io.Writer) error { return report.print(out, time.Now()) })
	next := slices.IndexFunc(s.trials, func(t trial) bool { _, ok := s.found[t.name]; return !ok })
	if err != nil || next < 0 {
		return err
	}
	if !o.sweep.output.ForPeople() {
		out = s.cmd.ErrOrStderr()
	}
	values := s.valuesOf(s.trials[next])
	chooseEnvironment(ctx, s.clients, s.pipeline, s.trials[next].name, values, s.cmd.ErrOrStderr())
	fmt.Fprintf(out, "\nTrial %s would create:\n", s.trials[next].name)
	return planRun(ctx, out, s.clients, s.pipeline, s.options.serviceAccount, values)
}

// run starts and follows the trials, and prints the table of all.
func (s *sweeping) run(ctx context.Context) error {
	out, problems := s.cmd.OutOrStdout(), s.cmd.ErrOrStderr()
	progress := out
	if !s.options.sweep.output.ForPeople() || s.options.detach {
		progress = problems
	}
	progress = outlive(progress, func() {
		say(problems, "Nothing reads the output any more. mlenv follows the sweep to its end without it.\n")
	})
	s.display = newDisplay(progress, len(s.trials))
	c := &sweepCourse{trials: s.trials, parallel: s.options.sweep.parallel}
	for _, t := range s.trials {
		r, exists := s.found[t.name]
		switch {
		case !exists:
			c.stands = append(c.stands, trialWaits)
		case r.run != nil && !r.run.IsDone():
			c.stands = append(c.stands, trialRuns)
		default:
			c.stands = append(c.stands, trialEnded)
			s.display.ended++
		}
	}
	if len(s.found) > 0 {
		s.display.print("Sweep %s continues: %d of %d trials have ended.", s.name, s.display.ended, len(s.trials))
	} else {
		s.display.print("Sweep %s: %d trials, %d at the same time.", s.name, len(s.trials), s.options.sweep.parallel)
	}
	s.follow(ctx, c)
	ctx = context.WithoutCancel(ctx)
	found, err := s.find(ctx)
	if err != nil {
		return errors.Join(c.failed, err)
	}
	report := s.report(ctx, found)
	err = s.options.sweep.output.PrintAs("Sweep", out, report, func(out io.Writer) error { return report.print(out, time.Now()) })
	if err := errors.Join(c.failed, err); err != nil {
		return err
	}
	return report.exit(c.stopping)
}

// report describes the trials by the runs that were found. What it may not read of a run is left out.
func (s *sweeping) report(ctx context.Context, found map[string]entry) sweepReport {
	report := sweepReport{Name: s.name, Namespace: s.clients.Namespace}
	for _, t := range s.trials {
		var of *entry
		if r, ok := found[t.name]; ok {
			_ = r.complete(ctx, s.clients)
			of = &r
		}
		report.Trials = append(report.Trials, reportOf(t, s.name, s.clients.Namespace, of))
	}
	return report
}

// sameSignal is how long a signal that has cancelled trials may come again: a program such as timeout signals this process and its group.
const sameSignal = time.Second

// hands carries out what a sweepCourse decides.
type hands struct {
	sweep *sweeping
	// starting ends when no further trial is to be started.
	starting   context.Context //nolint:containedctx // it bounds the starts of trials, which the course orders
	stopStarts func()
	// left is closed by leave to leave the trials.
	left  chan struct{}
	leave func()
	// cancels are the signals that the followers of the trials get.
	cancels []chan os.Signal
	// cancelled is when the last one got a signal.
	cancelled time.Time
	// started is closed when the trial has a run that was ordered last. Trials start one after another, so that each sees the environments
	// of the others.
	started chan struct{}
	listen  func()
	send    func(event)
	over    bool
}

// do carries out an effect.
func (h *hands) do(e effect) {
	s := h.sweep
	switch e := e.(type) {
	case startTrial:
		before, started := h.started, make(chan struct{})
		h.started = started
		go func() {
			if before != nil {
				<-before
			}
			begun, err := s.one(h.starting, s.trials[e], h.cancels[e], h.left, func() { close(started) })
			h.send(trialOver{int(e), begun, err})
		}()
	case cancelTrial:
		h.cancelled = time.Now()
		select {
		case h.cancels[e] <- syscall.SIGTERM:
		default: // its follower has not taken the earlier ones yet
		}
	case question:
		s.display.ask(e.explanation, e.keys)
		h.listen()
	case note:
		s.display.print("%s", string(e))
	case order:
		map[order]func(){resume: s.display.resume, stopStarting: h.stopStarts, leaveTrials: h.leave, endSweep: func() { h.over = true }}[e]()
	}
}

// follow returns when no trial is in progress, or when the user leaves.
func (s *sweeping) follow(ctx context.Context, c *sweepCourse) {
	const several = 4
	signals := make(chan os.Signal, several)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	if ctx.Err() != nil { // a signal came before
		signals <- syscall.SIGTERM
	}
	events, ended, left := make(chan event, len(s.trials)), make(chan struct{}), make(chan struct{})
	defer close(ended)
	h := &hands{sweep: s, left: left, leave: sync.OnceFunc(func() { close(left) }), send: func(e event) {
		select {
		case events <- e:
		case <-ended:
		}
	}}
	h.starting, h.stopStarts = context.WithCancel(context.WithoutCancel(ctx))
	defer h.stopStarts()
	for range s.trials {
		h.cancels = append(h.cancels, make(chan os.Signal, several))
	}
	if c.keys = term.IsTerminal(int(os.Stdin.Fd())) && s.display.width != nil; c.keys {
		s.display.takeKeys = func() func() { return takeKeys(os.Stdin) }
	}
	h.listen = sync.OnceFunc(func() { go readKeys(os.Stdin, h.send) })
	defer s.display.end()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for todo := c.begin(); ; {
		for _, e := range todo {
			h.do(e)
		}
		if todo = nil; h.over {
			return
		}
		select {
		case e := <-events:
			todo = c.on(e)
		case sent := <-signals:
			if time.Since(h.cancelled) > sameSignal {
				todo = c.on(sent)
			}
		case <-ticker.C:
			s.display.tick()
		}
	}
}

// one starts a trial, or finds its run, calls next, and follows the run. begun is false if there is no run.
func (s *sweeping) one(ctx context.Context, t trial, signals chan os.Signal, left <-chan struct{}, next func()) (begun bool, err error) {
	notes := trialOutput{s.display, t.name}
	started, request, err := s.start(ctx, t, notes)
	next()
	if err != nil {
		return false, fmt.Errorf("starting trial %s: %w", t.name, err)
	}
	if started.IsDone() {
		outcome, err := launch.OutcomeOf(ctx, s.clients, started)
		s.display.observe(endOfTrial(t.name, outcome))
		return true, err
	}
	stands := "started"
	if _, exists := s.found[t.name]; exists {
		stands = "is in progress"
	}
	s.display.begin(t.name, time.Now(), stands+": "+t.text())
	if s.options.detach && s.upload == nil {
		return true, nil
	}
	f := follower{clients: s.clients, run: started, request: &request, quiet: true, detach: s.options.detach, signals: signals, leave: left,
		display: newDisplay(notes, len(s.pipeline.Spec.Tasks)+len(s.pipeline.Spec.Finally))}
	if s.upload != nil {
		s.upload.sentBy(&f)
	}
	// A cancelled start must not keep the follower from ending the run: signals does.
	outcome, ended, err := f.follow(context.WithoutCancel(ctx))
	if ended && outcome.Run != nil {
		s.display.observe(endOfTrial(t.name, outcome))
	}
	return true, err
}

// start starts the run of a trial, unless it exists.
func (s *sweeping) start(ctx context.Context, t trial, notes io.Writer) (*v1.PipelineRun, launch.Request, error) {
	if ctx.Err() != nil {
		return nil, launch.Request{}, ctx.Err()
	}
	values := s.valuesOf(t)
	chosen := chooseEnvironment(ctx, s.clients, s.pipeline, t.name, values, notes)
	request := launch.Request{
		Pipeline: s.pipeline, Name: t.name, ServiceAccount: s.options.serviceAccount, Values: values,
		Labels: map[string]string{run.SweepLabel: s.name}, Annotations: map[string]string{run.TrialAnnotation: t.text()},
		Say: func(line string) { fmt.Fprintln(notes, line) },
	}
	started, err := chosen.start(ctx, request)
	request.Annotations = chosen.annotated(request)
	return started, request, err
}

// endOfTrial returns the event that a display shows for the end of a trial.
func endOfTrial(name string, o launch.Outcome) launch.Event {
	t := run.TaskRun{Task: name, Status: run.Failed, Reason: o.Reason}
	if o.Verdict == receipt.Succeeded {
		t.Status = run.Succeeded
	}
	if status := o.Run.Status; status.StartTime != nil && status.CompletionTime != nil {
		t.Started, t.Ended = status.StartTime.Time, status.CompletionTime.Time
	}
	return launch.Event{Kind: launch.TaskEnded, Task: name, Ended: &t}
}

// trialOutput prints lines of one trial on the display of its sweep.
type trialOutput struct {
	to    *display
	trial string
}

func (o trialOutput) Write(p []byte) (int, error) {
	o.to.mu.Lock()
	defer o.to.mu.Unlock()
	for line := range strings.Lines(string(p)) {
		o.to.writeLine("[" + o.trial + "] " + strings.TrimSuffix(line, "\n"))
	}
	return len(p), nil
}
