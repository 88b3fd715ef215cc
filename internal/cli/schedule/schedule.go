// SPDX-License-Identifier: Apache-2.0

// Package schedule starts a run every night by a CronJob, and compares it with the nights before.
package schedule

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the steps image has no time zones

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/cronjob"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/trend"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

const (
	// part differs from install's part, because another install must not delete schedules.
	part = "schedule"
	// annotation of the CronJob holds the Schedule as JSON.
	annotation = project.LabelPrefix + "schedule-spec"
	// prefix of the CronJob's name, and of its runs'.
	prefix = "mlenv-"
	// startWithin is how late a night's run may start.
	startWithin = time.Hour
	// spare is how much longer than its run a Job may take.
	spare = 2 * time.Hour
	// attempts is how often the Job replaces a pod that was evicted.
	attempts = 6
)

// Schedule is what a CronJob starts, and when.
type Schedule struct {
	Name string `json:"name"`
	// At is the time of day in TimeZone, such as 02:30; Days are cron's names, "*" for all.
	At       string `json:"at"`
	Days     string `json:"days"`
	TimeZone string `json:"timeZone"`
	// Values are the pipeline's params.
	Values map[string][]string `json:"values"`
	// OnBusy is skip or wait.
	OnBusy         string          `json:"onBusy"`
	ServiceAccount string          `json:"serviceAccount,omitempty"`
	Tolerance      trend.Tolerance `json:"tolerancePercent"`
	// Notify is the Secret with the URL of events, "" or none for no events. It is the value of the param when the schedule was installed.
	Notify string `json:"notify,omitempty"`
	// Deadline is how long a Job may take, in seconds, 0 for ever. A pod that never starts would block all later nights.
	Deadline int64 `json:"deadlineSeconds,omitempty"`
}

// onBusy is skip, which leaves a night out, or wait.
var onBusy = param.OneOf("skip", "wait")

var days = regexp.MustCompile(`^(\*|(?i:(mon|tue|wed|thu|fri|sat|sun)([-,](mon|tue|wed|thu|fri|sat|sun))*))$`)

// Check reports all mistakes as InvalidInput.
func (s Schedule) Check() error {
	_, noTime := time.Parse("15:04", s.At)
	_, noZone := time.LoadLocation(s.TimeZone)
	err := errors.Join(
		// The name of a Job is eleven characters longer, and a label has at most 63.
		command.Want(len(validation.IsDNS1123Label(prefix+s.Name)) == 0 && len(s.Name) <= 40,
			"name %q: want at most 40 letters a-z, digits and hyphens", s.Name),
		command.Want(!install.Reserved(prefix+s.Name), "name %q: mlenv install uses %s%s for a part of its own: want another name", s.Name,
			prefix, s.Name),
		command.Want(noTime == nil, "--at %q: want a time of day, such as 02:30", s.At),
		command.Want(days.MatchString(s.Days), "--days %q: want * or days, such as mon-fri or sat,sun", s.Days),
		command.Want(onBusy.Check(s.OnBusy) == nil, "--on-busy %q: want skip or wait", s.OnBusy),
		command.Want(noZone == nil && s.TimeZone != "Local", "--time-zone %q: want a name of the time zone database, such as Europe/Madrid",
			s.TimeZone))
	if err != nil {
		return fail.Because(fail.InvalidInput, err)
	}
	return nil
}

// cron returns the schedule as a cron line; Check has checked At.
func (s Schedule) cron() string {
	at, _ := time.Parse("15:04", s.At)
	return fmt.Sprintf("%d %d * * %s", at.Minute(), at.Hour(), strings.ToLower(s.Days))
}

// runName returns the name of a night's run, the same for all pods of the night's Job.
func (s Schedule) runName(scheduled time.Time) string {
	return prefix + s.Name + "-" + scheduled.UTC().Format("20060102-150405")
}

// Objects returns the CronJob, and an account that can start and follow runs and read their receipts. image is the steps image.
func (s Schedule) Objects(namespace, image string) []runtime.Object {
	spec, _ := json.Marshal(s) // text and finite numbers can be written
	labels := install.Labels(part)
	labels[run.ScheduleLabel] = s.Name
	job := cronjob.Job{
		Name: prefix + s.Name, Namespace: namespace, Labels: labels, Annotations: map[string]string{annotation: string(spec)},
		Schedule: s.cron(), TimeZone: s.TimeZone, Image: image,
		Command:     []string{agent.StepsProgram, "mlenv", "schedule", "fire", s.Name, "--job=$(JOB_NAME)"},
		StartWithin: int64(startWithin.Seconds()),
		Env: []corev1.EnvVar{{Name: "JOB_NAME", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.JobNameLabel + "']"}}}},
	}
	if s.Notify != "" && s.Notify != "none" {
		job.Notify(s.Notify, cluster.TrustedCA, cluster.TrustedCAKey)
	}
	made := job.CronJob()
	// A Job that was started by hand must not delete the log of the night.
	made.Spec.SuccessfulJobsHistoryLimit = new(int32(3))
	template := &made.Spec.JobTemplate.Spec
	template.BackoffLimit = new(int32(attempts))
	if s.Deadline > 0 {
		template.ActiveDeadlineSeconds = &s.Deadline
	}
	// Another pod helps if the pod was evicted, but not if the run failed.
	template.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action: batchv1.PodFailurePolicyActionFailJob,
		OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: new(cronjob.Container),
			Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{1, 2}},
	}}}
	return append(job.Account(rules(s.Name)...), made)
}

func rules(name string) []rbacv1.PolicyRule {
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	own := rule("batch", []string{"get"}, "cronjobs")
	own.ResourceNames = []string{prefix + name}
	return []rbacv1.PolicyRule{
		own,
		rule("batch", []string{"get"}, "jobs"),
		rule("tekton.dev", []string{"get"}, "pipelines"),
		// To wait for the pull secrets of the steps' account.
		rule("", []string{"get"}, "serviceaccounts"),
		rule("tekton.dev", []string{"get", "list", "watch", "create"}, "pipelineruns"),
		rule("tekton.dev", []string{"list", "watch"}, "taskruns"),
		rule("coordination.k8s.io", []string{"get"}, "leases"),
		// fire reads the receipts of earlier nights, and adds a regression to this night's.
		rule("", []string{"get", "list", "create", "patch"}, "configmaps"),
	}
}

// readSchedule reads a schedule from its CronJob, which may have been edited by hand.
func readSchedule(found *batchv1.CronJob) (Schedule, error) {
	s := Schedule{Days: "*", TimeZone: "UTC", OnBusy: "skip", Tolerance: trend.DefaultTolerance()}
	err := json.Unmarshal([]byte(found.Annotations[annotation]), &s)
	if err == nil {
		err = s.Check()
	}
	if err == nil && prefix+s.Name != found.Name {
		err = fmt.Errorf("name %q: want the name of the CronJob without %s", s.Name, prefix)
	}
	if err != nil {
		return s, fail.Because(fail.InvalidInput, fmt.Errorf("reading schedule %s/%s from annotation %s: %w", found.Namespace, found.Name,
			annotation, err))
	}
	return s, nil
}

// withoutUser returns the schedule without the user in its repository's URL, which may be a token.
func (s Schedule) withoutUser() Schedule {
	s.Values = maps.Clone(s.Values)
	for _, url := range s.Values["repo-url"] {
		s.Values["repo-url"] = []string{git.WithoutUser(url)}
	}
	return s
}

func (s Schedule) paramsText() string {
	var texts []string
	for name, values := range s.Values {
		texts = append(texts, name+"="+strings.Join(values, ","))
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}
