package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/trend"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// firing is what a night's Job does.
type firing struct {
	clients *kube.Clients
	log     *slog.Logger
	now     func() time.Time
}

// fire starts the night's run, or finds the one that an earlier pod of the Job has started, follows it to its
// end, and compares what it reached with the nights before. A night on which another
// run or person holds the environment is skipped, which is no error.
//
// When ctx ends the run goes on; the exit code is another one than that of a failure, so that
// the Job's next pod follows on.
func (f *firing) fire(ctx context.Context, name, job string) error {
	found, err := f.clients.Kube.BatchV1().CronJobs(f.clients.Namespace).Get(ctx, prefix+name, metav1.GetOptions{})
	if err != nil {
		return kube.Problem(fmt.Errorf("getting cronjob %s/%s: %w", f.clients.Namespace, prefix+name, err))
	}
	s, err := of(found)
	if err != nil {
		return err
	}
	scheduled, err := f.scheduled(ctx, job)
	if err != nil {
		return err
	}
	request := launch.Request{
		Name: s.runName(scheduled), Values: maps.Clone(s.Values), ServiceAccount: s.ServiceAccount, Labels: map[string]string{run.ScheduleLabel: s.Name},
	}
	if s.OnBusy == "wait" {
		request.Values["on-busy"] = []string{"wait"}
	}
	started, err := f.clients.Tekton.TektonV1().PipelineRuns(f.clients.Namespace).Get(ctx, request.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if why, err := f.skips(ctx, s); err != nil || why != "" {
			if why != "" {
				f.log.Info("Skipped: " + why + ".")
			}
			return err
		}
		if started, err = launch.Start(ctx, f.clients, request); err != nil {
			return err
		}
	case err != nil:
		return kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", f.clients.Namespace, request.Name, err))
	case started.Labels[run.ScheduleLabel] != s.Name:
		return fail.Becausef(fail.InvalidInput, "starting pipelinerun %s/%s: there is one of that name: want one of schedule %s, or none", f.clients.Namespace, request.Name, s.Name)
	}
	f.log.Info(fmt.Sprintf("Following pipelinerun %s/%s, scheduled for %s.", started.Namespace, started.Name, scheduled.UTC().Format(time.RFC3339)), "namespace", started.Namespace, "run", started.Name, "scheduled", scheduled.UTC())
	outcome, err := launch.FollowTasks(ctx, f.clients, started, f.observe)
	switch {
	case err != nil && ctx.Err() != nil:
		return &step.Exit{Code: step.Interrupted, Err: fmt.Errorf("following pipelinerun %s/%s: it goes on, and the next pod of this job follows it: %w", started.Namespace, started.Name, err)}
	case err != nil:
		return err
	case outcome.Verdict != receipt.Succeeded:
		return fail.Because(outcome.Reason, fmt.Errorf("run %s: %s", started.Name, strings.TrimSpace(outcome.Message)))
	}
	return f.compare(ctx, s, started, outcome.Receipt)
}

// scheduled is the time that the Job is for. One that somebody made by hand is for when
// they made it.
func (f *firing) scheduled(ctx context.Context, name string) (time.Time, error) {
	job, err := f.clients.Kube.BatchV1().Jobs(f.clients.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, kube.Problem(fmt.Errorf("getting job %s/%s: %w", f.clients.Namespace, name, err))
	}
	text, ok := job.Annotations[batchv1.CronJobScheduledTimestampAnnotation]
	if !ok {
		return job.CreationTimestamp.Time, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("reading annotation %s of job %s: %w", batchv1.CronJobScheduledTimestampAnnotation, name, err)
	}
	return at, nil
}

// skips says why no run is to start now, "" where one is.
func (f *firing) skips(ctx context.Context, s Schedule) (string, error) {
	if s.OnBusy == "wait" {
		return "", nil // the step provision waits
	}
	pipeline, err := launch.Installed(ctx, f.clients, f.clients.Namespace, launch.Pipeline)
	if err != nil {
		return "", err
	}
	name := launch.Value(pipeline, s.Values, "name")
	if name == "" {
		name = objects.DefaultName
	}
	leases := lease.Client{Kube: f.clients.Kube, Tekton: f.clients.Tekton, Namespace: f.clients.Namespace, Now: f.now, Log: f.log}
	held, err := leases.Find(ctx, name)
	switch {
	case fail.ReasonOf(err) == fail.EnvironmentMissing:
		return "", nil
	case err != nil:
		return "", err
	}
	if busy := leases.Look(ctx, held); busy.Holder.ID != "" && !busy.Replaceable() {
		return fmt.Sprintf("environment %s is taken: %s", name, busy.State()), nil
	}
	return "", nil
}

// observe tells what happens.
func (f *firing) observe(e launch.Event) {
	switch e.Kind {
	case launch.TaskStarted:
		f.log.Info(fmt.Sprintf("  %s started", e.Task), "task", e.Task)
	case launch.TaskWaiting:
		f.log.Info(fmt.Sprintf("  %s waits: %s", e.Task, e.Text), "task", e.Task, "why", e.Text)
	case launch.TaskEnded:
		f.log.Info(fmt.Sprintf("  %s %s", e.Task, e.Ended.Status), "task", e.Task, "status", e.Ended.Status)
	case launch.Line, launch.LogLost:
	}
}

// compare judges what the run has reached, and puts a regression into its receipt.
func (f *firing) compare(ctx context.Context, s Schedule, of *v1.PipelineRun, reached *receipt.Receipt) error {
	if reached == nil {
		return fmt.Errorf("comparing run %s: it has left no receipt", of.Name)
	}
	history, err := receipt.History(ctx, f.clients.Kube, f.clients.Namespace, reached.Environment)
	if err != nil {
		f.log.Warn(fmt.Sprintf("Not all earlier runs are compared: %v", err), "error", err)
	}
	var own []receipt.Receipt
	for _, r := range history {
		if r.Schedule == s.Name {
			own = append(own, r)
		}
	}
	comparisons := trend.Judge(*reached, own, s.Tolerance)
	f.log.Info(fmt.Sprintf("Run %s succeeded.", of.Name), "run", of.Name)
	for _, c := range comparisons {
		f.log.Info("  " + c.String())
	}
	regression := trend.Regression(of.Name, comparisons)
	if regression == nil {
		return nil
	}
	reached.Regression = regression.Error()
	return errors.Join(fail.Advise(regression, "mlenv trend --schedule=%s --name=%s -n %s", s.Name, reached.Environment, f.clients.Namespace),
		receipt.Write(ctx, f.clients.Kube, *reached))
}
