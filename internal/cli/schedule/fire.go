// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/trend"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// runner starts, follows and compares the runs of schedules, in the pod of a Job.
type runner struct {
	clients *kube.Clients
	log     *slog.Logger
	now     func() time.Time
	notify  notify.Flags
}

// fire starts the night's run, or finds the run that an earlier pod of the Job has started, follows it to its end, and
// compares it with the nights before. It skips the night if another run or user holds the environment.
//
// If ctx ends, the run continues, and the exit code makes the Job start another pod, which follows it.
func (r *runner) fire(ctx context.Context, name, job string) error {
	found, err := r.clients.Kube.BatchV1().CronJobs(r.clients.Namespace).Get(ctx, prefix+name, metav1.GetOptions{})
	if err != nil {
		return kube.Problem(fmt.Errorf("getting cronjob %s/%s: %w", r.clients.Namespace, prefix+name, err))
	}
	s, err := readSchedule(found)
	if err != nil {
		return err
	}
	scheduled, err := r.scheduled(ctx, job)
	if err != nil {
		return err
	}
	request := launch.Request{
		Name: s.runName(scheduled), Values: maps.Clone(s.Values), ServiceAccount: s.ServiceAccount,
		Labels: map[string]string{run.ScheduleLabel: s.Name},
	}
	if s.OnBusy == "wait" {
		request.Values["on-busy"] = []string{"wait"}
	}
	started, err := r.clients.Tekton.TektonV1().PipelineRuns(r.clients.Namespace).Get(ctx, request.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if request.Pipeline, err = launch.Installed(ctx, r.clients); err != nil {
			return err
		}
		if why, err := r.busy(ctx, s, request.Pipeline); err != nil || why != "" {
			if why != "" {
				r.log.Info("Skipped: " + why + ".")
			}
			return err
		}
		if started, err = launch.Start(ctx, r.clients, request); err != nil {
			return err
		}
	case err != nil:
		return kube.Problem(fmt.Errorf("getting pipelinerun %s/%s: %w", r.clients.Namespace, request.Name, err))
	case started.Labels[run.ScheduleLabel] != s.Name:
		return fail.Becausef(fail.InvalidInput, "starting pipelinerun %s/%s: it exists, and schedule %s has not started it", r.clients.Namespace,
			request.Name, s.Name)
	}
	r.log.Info(fmt.Sprintf("Following pipelinerun %s/%s, scheduled for %s.", started.Namespace, started.Name,
		scheduled.UTC().Format(time.RFC3339)))
	outcome, err := launch.FollowTasks(ctx, r.clients, started, r.observe)
	switch {
	case err != nil && ctx.Err() != nil:
		return &command.Exit{Code: command.Interrupted,
			Err: fmt.Errorf("following pipelinerun %s/%s: it continues, and the next pod of this job follows it: %w", started.Namespace,
				started.Name, err)}
	case err != nil:
		return fmt.Errorf("following pipelinerun %s/%s: it continues without this job: %w", started.Namespace, started.Name, err)
	case outcome.Verdict != receipt.Succeeded:
		return fail.Because(outcome.Reason, fmt.Errorf("run %s: %s", started.Name, strings.TrimSpace(outcome.Message)))
	}
	return r.compare(ctx, s, started, outcome.Receipt)
}

// scheduled returns the time for which the Job was created. For a Job that was created by hand it is the time of creation.
func (r *runner) scheduled(ctx context.Context, name string) (time.Time, error) {
	job, err := r.clients.Kube.BatchV1().Jobs(r.clients.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, kube.Problem(fmt.Errorf("getting job %s/%s: %w", r.clients.Namespace, name, err))
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

// busy explains who holds the environment, "" if a run can start.
func (r *runner) busy(ctx context.Context, s Schedule, pipeline *v1.Pipeline) (string, error) {
	if s.OnBusy == "wait" {
		return "", nil // the step provision waits
	}
	name := cmp.Or(launch.ParamValue(pipeline, s.Values, "name"), objects.DefaultName)
	environment := env.Of(r.clients, name).Lease(r.log)
	environment.Now = r.now
	held, err := environment.Find(ctx)
	switch {
	case fail.ReasonOf(err) == fail.EnvironmentMissing:
		return "", nil
	case err != nil:
		return "", err
	}
	if busy := environment.ReadHolder(ctx, held); busy.Holder.ID != "" && !busy.Replaceable() {
		return fmt.Sprintf("environment %s is taken: %s", name, busy.Describe()), nil
	}
	return "", nil
}

func (r *runner) observe(e launch.Event) {
	switch e.Kind {
	case launch.TaskStarted:
		r.log.Info(fmt.Sprintf("  %s started", e.Task))
	case launch.TaskWaiting:
		r.log.Info(fmt.Sprintf("  %s waits: %s", e.Task, e.Text))
		if e.Next != "" {
			r.log.Info("    next: " + e.Next)
		}
	case launch.TaskEnded:
		r.log.Info(fmt.Sprintf("  %s %s", e.Task, e.Ended.Status))
	case launch.Line, launch.LogLost:
	}
}

// compare compares the run with those before it, and adds a regression to its receipt.
func (r *runner) compare(ctx context.Context, s Schedule, started *v1.PipelineRun, reached *receipt.Receipt) error {
	if reached == nil {
		return fmt.Errorf("comparing run %s: it has no receipt", started.Name)
	}
	history, err := receipt.List(ctx, r.clients.Kube, r.clients.Namespace, reached.Environment)
	if err != nil {
		r.log.Warn(fmt.Sprintf("Some earlier runs are not compared: %v", err))
	}
	own := slices.DeleteFunc(history, func(earlier receipt.Receipt) bool { return earlier.Schedule != s.Name })
	comparisons := trend.Judge(*reached, own, s.Tolerance)
	r.log.Info(fmt.Sprintf("Run %s succeeded%s.", started.Name, reached.WarningClause()))
	for _, c := range comparisons {
		r.log.Info("  " + c.String())
	}
	regression := trend.Regression(started.Name, comparisons)
	if regression == nil {
		return nil
	}
	reached.Regression = regression.Error()
	events := r.notify.Open(r.log, notify.Event{Run: reached.Run, Namespace: reached.Namespace, Environment: reached.Environment},
		reached.RunUID)
	events.Send(notify.Event{Kind: notify.Regression, Verdict: string(reached.Verdict), Reason: fail.Regression, Message: reached.Regression,
		Seconds: notify.Took(reached.Started, reached.Ended)})
	defer events.Wait()
	return errors.Join(fail.Advise(regression, "mlenv runs --trend --schedule=%s --name=%s -n %s", s.Name, reached.Environment,
		r.clients.Namespace),
		receipt.Write(ctx, r.clients.Kube, *reached))
}
