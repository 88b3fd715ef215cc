// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/trend"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
	"github.com/ml-dev-env/ml-dev-env/test/webhook"
)

func nightly() Schedule {
	return Schedule{Name: "nightly", At: "02:30", Days: "mon-fri", TimeZone: "Europe/Madrid", OnBusy: "skip",
		Tolerance: trend.DefaultTolerance(),
		Values:    map[string][]string{"repo-url": {"https://git.example.com/a.git"}, "script": {"train.py"}}}
}

func TestCheck(t *testing.T) {
	if err := nightly().Check(); err != nil {
		t.Error(err)
	}
	bad := Schedule{Name: "Night_1", At: "25:00", Days: "daily", TimeZone: "Mars/Olympus", OnBusy: "cancel"}
	err := bad.Check()
	if fail.ReasonOf(err) != fail.InvalidInput {
		t.Fatalf("got %v, want InvalidInput", err)
	}
	for _, want := range []string{`name "Night_1"`, `--at "25:00"`, `--days "daily"`, `--time-zone "Mars/Olympus"`, `--on-busy "cancel"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported: %v", want, err)
		}
	}
}

// The schedule's CronJob, account and Role would replace the reaper's, or the account and Role that all runs use.
func TestCheckKeepsWhatInstallMakes(t *testing.T) {
	for _, name := range []string{"reaper", "pipeline"} {
		s := nightly()
		s.Name = name
		if err := s.Check(); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("schedule %s: got %v, want InvalidInput", name, err)
		}
	}
}

// night returns 02:30 on 10 March 2026 in Madrid.
func night() time.Time { return time.Date(2026, 3, 10, 1, 30, 0, 0, time.UTC) }

const runOfNight = "mlenv-nightly-20260310-013000"

func about(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }

// place returns a cluster with the schedule's CronJob, its Job of the night, and an installed pipeline.
func place(t *testing.T, s Schedule, objects, tekton []runtime.Object) (*runner, *bytes.Buffer) {
	t.Helper()
	s.Notify = "slack"
	made := s.Objects("ns", "steps@sha256:1")
	pod := made[len(made)-1].(*batchv1.CronJob).Spec.JobTemplate.Spec.Template.Spec
	if !slices.Contains(pod.Containers[0].Command, "--notify-dir=/etc/mlenv/notify/slack") {
		t.Errorf("the Job posts no events: %s", pod.Containers[0].Command)
	}
	job := &batchv1.Job{ObjectMeta: about("job")}
	job.Annotations = map[string]string{batchv1.CronJobScheduledTimestampAnnotation: "2026-03-10T02:30:00+01:00"}
	pipeline := &v1.Pipeline{ObjectMeta: about(launch.Pipeline), Spec: v1.PipelineSpec{Params: v1.ParamSpecs{
		{Name: "repo-url", Type: v1.ParamTypeString}, {Name: "script", Type: v1.ParamTypeString},
		{Name: "name", Type: v1.ParamTypeString, Default: v1.NewStructuredValues("env")},
		{Name: "on-busy", Type: v1.ParamTypeString, Default: v1.NewStructuredValues("fail")},
	}}}
	var log bytes.Buffer
	clients := &kube.Clients{Namespace: "ns", Kube: fake.NewClientset(append(append(objects, made...), job)...),
		Tekton: tektonfake.NewSimpleClientset(append(tekton, pipeline)...)}
	return &runner{clients: clients, log: command.TextLog(&log), now: night}, &log
}

// ended returns the night's run as the Job's first pod started it, with its end.
func ended(status corev1.ConditionStatus) *v1.PipelineRun {
	r := &v1.PipelineRun{ObjectMeta: about(runOfNight), Spec: v1.PipelineRunSpec{
		PipelineRef:     &v1.PipelineRef{Name: launch.Pipeline},
		TaskRunTemplate: v1.PipelineTaskRunTemplate{ServiceAccountName: launch.ServiceAccount},
		Params: v1.Params{{Name: "repo-url", Value: *v1.NewStructuredValues("https://git.example.com/a.git")},
			{Name: "script", Value: *v1.NewStructuredValues("train.py")}},
	}}
	r.UID, r.Labels = "uid", map[string]string{run.ScheduleLabel: "nightly"}
	r.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: status, Reason: "Completed"})
	return r
}

func left(t *testing.T, f *runner, r receipt.Receipt) {
	t.Helper()
	r.Namespace, r.Environment, r.Schedule = "ns", "env", "nightly"
	if err := receipt.Write(t.Context(), f.clients.Kube, r); err != nil {
		t.Fatal(err)
	}
}

func TestFireFindsTheRunAndCompares(t *testing.T) {
	for _, tc := range []struct {
		name   string
		status corev1.ConditionStatus
		step   time.Duration
		want   fail.Reason
	}{
		{"as always", corev1.ConditionTrue, 250 * time.Millisecond, ""},
		{"slower", corev1.ConditionTrue, 400 * time.Millisecond, fail.Regression},
		{"failed", corev1.ConditionFalse, 250 * time.Millisecond, fail.RankFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, log := place(t, nightly(), nil, []runtime.Object{ended(tc.status)})
			reached := receipt.Receipt{Run: runOfNight, RunUID: "uid", Verdict: receipt.Succeeded, Started: night(),
				Curve: &metrics.Curve{StepTime: tc.step}, Metrics: json.RawMessage(`{"loss": 2}`)}
			if tc.status == corev1.ConditionFalse {
				reached.Verdict, reached.Reason, reached.Message = receipt.Failed, fail.RankFailed, "rank 3"
			}
			left(t, f, reached)
			for i := range 10 {
				left(t, f, receipt.Receipt{Run: "earlier-" + string(rune('a'+i)), Verdict: receipt.Succeeded, Started: night().AddDate(0, 0, -1-i),
					Curve: &metrics.Curve{StepTime: 250 * time.Millisecond}, Metrics: json.RawMessage(`{"loss": 2}`)})
			}
			posted := webhook.Receive(t, &f.notify)
			err := f.fire(t.Context(), "nightly", "job")
			if regressed := tc.want == fail.Regression; (len(posted) == 1) != regressed {
				t.Errorf("%d events were posted, want one of a regression only", len(posted))
			} else if regressed {
				if e := <-posted; e.Kind != notify.Regression || e.Reason != fail.Regression || !strings.Contains(e.Text, "Succeeded: Regression: ") {
					t.Errorf("the event %+v", e)
				}
			}
			switch {
			case tc.want == "" && err != nil:
				t.Fatal(err)
			case tc.want != "" && fail.ReasonOf(err) != tc.want:
				t.Fatalf("got %v, want %s", err, tc.want)
			}
			got, err := receipt.Read(t.Context(), f.clients.Kube, "ns", runOfNight)
			if err != nil {
				t.Fatal(err)
			}
			if (got.Regression != "") != (tc.want == fail.Regression) {
				t.Errorf("the receipt has the regression %q", got.Regression)
			}
			if !strings.Contains(log.String(), "Following pipelinerun ns/"+runOfNight+", scheduled for 2026-03-10T01:30:00Z.") {
				t.Errorf("the log:\n%s", log)
			}
		})
	}
}

func TestFireSkips(t *testing.T) {
	held := func(renewed time.Duration) runtime.Object {
		who, at := "h-kim", metav1.NewMicroTime(night().Add(-renewed))
		l := &coordinationv1.Lease{ObjectMeta: about("env"), Spec: coordinationv1.LeaseSpec{HolderIdentity: &who, RenewTime: &at,
			LeaseDurationSeconds: new(int32(600))}}
		l.Annotations = map[string]string{lease.HolderName: "H. Kim", lease.HolderKind: "Person"}
		return l
	}
	for _, tc := range []struct {
		name     string
		schedule Schedule
		objects  []runtime.Object
		want     string
	}{
		{"held by a person", nightly(), []runtime.Object{held(time.Minute)}, "Skipped: environment env is taken: it is held by H. Kim; it " +
			"becomes free at 2026-03-10T01:39:00Z."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, log := place(t, tc.schedule, tc.objects, nil)
			if err := f.fire(t.Context(), "nightly", "job"); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(log.String(), tc.want) {
				t.Errorf("the log has no %q:\n%s", tc.want, log)
			}
			if runs, err := f.clients.Tekton.TektonV1().PipelineRuns("ns").List(t.Context(), metav1.ListOptions{}); err != nil ||
				len(runs.Items) > 0 {
				t.Errorf("there are runs %v, %v; want none", runs.Items, err)
			}
		})
	}
	t.Run("what does not keep it", func(t *testing.T) {
		waiting := nightly()
		waiting.OnBusy = "wait"
		for name, s := range map[string]struct {
			schedule Schedule
			objects  []runtime.Object
		}{"nobody": {nightly(), nil}, "it has ended": {nightly(), []runtime.Object{held(time.Hour)}},
			"it waits": {waiting, []runtime.Object{held(time.Minute)}}} {
			f, _ := place(t, s.schedule, s.objects, nil)
			pipeline, err := launch.Installed(t.Context(), f.clients)
			if err != nil {
				t.Fatal(err)
			}
			if why, err := f.busy(t.Context(), s.schedule, pipeline); why != "" || err != nil {
				t.Errorf("%s: skipped for %q, %v", name, why, err)
			}
		}
	})
}

// A Job that was created by hand has no scheduled time.
func TestJobByHand(t *testing.T) {
	by := &batchv1.Job{ObjectMeta: about("by-hand")}
	by.CreationTimestamp = metav1.NewTime(night().Add(time.Hour))
	f, _ := place(t, nightly(), []runtime.Object{by}, nil)
	at, err := f.scheduled(t.Context(), "by-hand")
	if err != nil || nightly().runName(at) != "mlenv-nightly-20260310-023000" {
		t.Errorf("got %s, %v", nightly().runName(at), err)
	}
}

// A schedule continues with the installed image and the rights of this version.
func TestCarry(t *testing.T) {
	weekly := nightly()
	weekly.Name = "weekly"
	var live []runtime.Object
	for _, s := range []Schedule{nightly(), weekly} {
		objects, err := s.untyped("ns", "steps@sha256:1")
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			live = append(live, object)
		}
	}
	client := dynamicfake.NewSimpleDynamicClient(scheme.Scheme, live...)
	carried, err := ObjectsWithImage(t.Context(), client, "ns", "steps@sha256:2")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, object := range carried {
		if object.GetKind() != "CronJob" {
			got = append(got, install.ObjectName(object))
			continue
		}
		containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "jobTemplate", "spec", "template", "spec", "containers")
		got = append(got, fmt.Sprint(install.ObjectName(object), " ", containers[0].(map[string]any)["image"]))
	}
	want := []string{"serviceaccount/mlenv-nightly", "role/mlenv-nightly", "rolebinding/mlenv-nightly", "cronjob/mlenv-nightly steps@sha256:2",
		"serviceaccount/mlenv-weekly", "role/mlenv-weekly", "rolebinding/mlenv-weekly", "cronjob/mlenv-weekly steps@sha256:2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if other, err := ObjectsWithImage(t.Context(), client, "elsewhere", "steps@sha256:2"); err != nil || len(other) > 0 {
		t.Errorf("elsewhere: %v, %v; want nothing", other, err)
	}
}

// Nothing but the schedule's own objects goes: other schedules stay, what has such a name without the label, and what got the name of
// an object that was deleted meanwhile.
func TestRemove(t *testing.T) {
	weekly := nightly()
	weekly.Name = "weekly"
	byHand := &batchv1.CronJob{ObjectMeta: about("mlenv-by-hand")}
	server := apitest.Start(t, byHand)
	for _, object := range slices.Concat(nightly().Objects("ns", "steps@sha256:1"), weekly.Objects("ns", "steps@sha256:1")) {
		server.Add(object)
	}
	var want []string
	for _, path := range server.Paths() {
		if !strings.HasSuffix(path, "/mlenv-nightly") {
			want = append(want, path)
		}
	}
	clients := server.Clients(nil)
	if err := remove(t.Context(), clients.Objects, "ns", "by-hand"); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("by-hand, which is no schedule: %v, want %s", err, fail.InvalidInput)
	}
	if err := remove(t.Context(), clients.Objects, "ns", "nightly"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, server.Paths()); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	server.Handle = func(_ http.ResponseWriter, r *http.Request) bool {
		if job := server.Get(r.URL.Path); r.Method == http.MethodDelete {
			server.Delete(r.URL.Path)
			delete(job["metadata"].(apitest.Object), "uid")
			server.Put(r.URL.Path, job)
		}
		return false
	}
	if err := remove(t.Context(), clients.Objects, "ns", "weekly"); !apierrors.IsConflict(err) {
		t.Errorf("a schedule that was replaced meanwhile: %v, want a conflict", err)
	}
}

func TestCarrySaysWhatIsNoSchedule(t *testing.T) {
	broken := &batchv1.CronJob{TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "CronJob"}, ObjectMeta: about("mlenv-odd")}
	broken.Labels = install.Labels(part)
	_, err := ObjectsWithImage(t.Context(), dynamicfake.NewSimpleDynamicClient(scheme.Scheme, broken), "ns", "steps@sha256:2")
	if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(fail.NextOf(err), "oc delete cronjob mlenv-odd -n ns") {
		t.Errorf("got %v, next %q", err, fail.NextOf(err))
	}
}

// An annotation that was written by hand may omit keys, and its mistakes are reported.
func TestOf(t *testing.T) {
	job := &batchv1.CronJob{ObjectMeta: about("mlenv-nightly")}
	job.Annotations = map[string]string{annotation: `{"name": "nightly", "at": "03:15", "tolerancePercent": {"loss": 7}}`}
	s, err := readSchedule(job)
	if err != nil || s.OnBusy != "skip" || s.TimeZone != "UTC" || s.Tolerance[trend.Loss] != 7 || s.Tolerance[trend.StepTime] != 10 {
		t.Errorf("got %+v, %v", s, err)
	}
	for text, want := range map[string]string{
		"":                                  "annotation ml-dev-env.github.io/schedule-spec",
		`{"name": "nightly", "at": "3 am"}`: `--at "3 am"`,
		`{"name": "nights", "at": "03:15"}`: `name "nights"`,
	} {
		job.Annotations[annotation] = text
		if _, err := readSchedule(job); fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want InvalidInput with %s", text, err, want)
		}
	}
}

// fire does not accept a run with the night's name if the schedule did not create it.
func TestFireLeavesAnothersRun(t *testing.T) {
	other := ended(corev1.ConditionTrue)
	other.Labels = nil
	f, _ := place(t, nightly(), nil, []runtime.Object{other})
	if err := f.fire(t.Context(), "nightly", "job"); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("got %v, want InvalidInput", err)
	}
}

func TestCron(t *testing.T) {
	for _, tc := range []struct{ at, days, want string }{
		{"02:30", "*", "30 2 * * *"}, {"00:00", "mon-fri", "0 0 * * mon-fri"}, {"23:59", "Sat,SUN", "59 23 * * sat,sun"},
	} {
		s := nightly()
		s.At, s.Days = tc.at, tc.days
		if err := s.Check(); err != nil {
			t.Error(err)
		}
		if got := s.cron(); got != tc.want {
			t.Errorf("%s %s: %q, want %q", tc.at, tc.days, got, tc.want)
		}
	}
}

func TestObjects(t *testing.T) {
	objects := nightly().Objects("ns", "steps@sha256:1")
	job := objects[len(objects)-1].(*batchv1.CronJob)
	if job.Spec.Schedule != "30 2 * * mon-fri" || *job.Spec.TimeZone != "Europe/Madrid" ||
		job.Spec.ConcurrencyPolicy != batchv1.ForbidConcurrent {
		t.Errorf("the CronJob is %+v", job.Spec)
	}
	back, err := readSchedule(job)
	if err != nil || back.At != "02:30" || back.Values["script"][0] != "train.py" || back.Tolerance[trend.Loss] != 5 {
		t.Errorf("read back: %+v, %v", back, err)
	}
}

// The Job fails for good if its pod exits with 1 or 2.
func TestExitOf(t *testing.T) {
	away := kube.Problem(fmt.Errorf("getting: %w", apierrors.NewServiceUnavailable("starting")))
	for _, tc := range []struct {
		err  error
		want int
	}{{away, command.Interrupted}, {fail.Because(fail.RankFailed, errors.New("rank 1")), 0}, {nil, 0}} {
		err := exitOf(tc.err)
		var exit *command.Exit
		got := 0
		if errors.As(err, &exit) {
			got = exit.Code
		}
		if got != tc.want || (err == nil) != (tc.err == nil) {
			t.Errorf("%v: got %v with code %d, want %d", tc.err, err, got, tc.want)
		}
	}
}

// A token in the repository's URL is not printed, and stays in the schedule.
func TestShownWithoutToken(t *testing.T) {
	s := nightly()
	s.Values = map[string][]string{"repo-url": {"https://me:hush@git.example/r.git"}, "script": {"train.py"}}
	if got := s.withoutUser().paramsText(); got != "repo-url=https://git.example/r.git script=train.py" {
		t.Errorf("got %s", got)
	}
	if got := s.Values["repo-url"][0]; got != "https://me:hush@git.example/r.git" {
		t.Errorf("the schedule has %s", got)
	}
}
